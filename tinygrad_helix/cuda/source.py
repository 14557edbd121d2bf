"""Reading a .cu file: its kernels, their parameters, and what its comments promise.

CUDA checks nothing of what a launch passes: a float64 where the kernel has a float, or an
array of the wrong size, is read as garbage. So the signatures are read from the text, and
`launch` holds every argument against them. Three kinds of comment say more than C++ can:

    // x, y [B, T]; gain [T]; reset [B]. gain and reset may be null.
    // rms_rows<{float, double}, 4>: 32 registers
    // where State<__half> is float

The first stands directly above a kernel: the shapes of its arrays (in elements of the
parameter's type; each name is one integer throughout a launch, that of the parameter or
template parameter of this name if there is one), and which pointers may be None. The second
is an instance of a kernel and the most registers that it may use; braces stand for each of
several. The third names the type behind one that depends on a template parameter.

What is read is CUDA C++ as it is written by hand: `__global__` functions at the top level,
templates over types and integers. Kernels made by macros or inside namespaces are not seen.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import KernelError
from .text import (
    budgets,
    canonical,
    closing,
    comment_above,
    constants,
    integer,
    maximum,
    promises,
    split_commas,
    without_comments,
)

__all__ = ["Instance", "Parameter", "Source", "read_source"]

KERNELS = Path(__file__).parent / "kernels"

# Types of parameters and of the elements of arrays: dtype, and elements of it in one.
TYPES: dict[str, tuple[str, int]] = {
    "bool": ("bool", 1),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "int8_t": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "uint8_t": ("uint8", 1),
    "short": ("int16", 1),
    "int16_t": ("int16", 1),
    "unsigned short": ("uint16", 1),
    "uint16_t": ("uint16", 1),
    "int": ("int32", 1),
    "int32_t": ("int32", 1),
    "unsigned": ("uint32", 1),
    "unsigned int": ("uint32", 1),
    "uint32_t": ("uint32", 1),
    "long long": ("int64", 1),
    "long long int": ("int64", 1),
    "int64_t": ("int64", 1),
    "ptrdiff_t": ("int64", 1),
    "unsigned long long": ("uint64", 1),
    "uint64_t": ("uint64", 1),
    "size_t": ("uint64", 1),
    "float": ("float32", 1),
    "double": ("float64", 1),
    "half": ("float16", 1),
    "__half": ("float16", 1),
    "__half2": ("float16", 2),
    "half2": ("float16", 2),
    "__nv_bfloat16": ("bfloat16", 1),
    "nv_bfloat16": ("bfloat16", 1),
    "__nv_bfloat162": ("bfloat16", 2),
    "nv_bfloat162": ("bfloat16", 2),
    **{f"float{n}": ("float32", n) for n in (2, 4)},
    **{f"double{n}": ("float64", n) for n in (2,)},
    **{f"int{n}": ("int32", n) for n in (2, 4)},
    **{f"uint{n}": ("uint32", n) for n in (2, 4)},
}


_ALIAS = r"//\s*where\s+(\w+<.+?>)\s+is\s+([\w ]+?)\s*$"


@dataclass(frozen=True)
class Parameter:
    """A parameter of one instance of a kernel; its dtype by name, `lanes` of it in one."""

    name: str
    type: str
    dtype: str
    lanes: int
    pointer: bool
    const: bool
    restrict: bool
    shape: tuple[str, ...] | None
    nullable: bool

    def __str__(self) -> str:
        const = "const " if self.const else ""
        return f"{const}{self.type}{'*' if self.pointer else ''} {self.name}"


@dataclass(frozen=True)
class Instance:
    """A kernel with its template arguments filled in: what a launch calls."""

    expression: str
    parameters: tuple[Parameter, ...]
    integers: Mapping[str, int]  # template parameters and constants of the file
    max_threads: int | None  # of __launch_bounds__
    registers: int | None  # the stated budget


@dataclass(frozen=True)
class _Declaration:
    name: str
    template: tuple[str, ...]
    parameters: tuple[str, ...]
    bounds: str | None
    comment: str


class Source:
    """The text of a .cu file, its own includes filled in, and what it declares."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.text = text
        self.code = without_comments(text)
        self.constants = constants(self.code)
        self.aliases = {
            canonical(m[1]): m[2] for m in re.finditer(_ALIAS, text, re.MULTILINE)
        }
        self.declarations = {d.name: d for d in self._declarations()}
        self.budgets = dict(budgets(text))

    @property
    def expressions(self) -> list[str]:
        """What can be compiled: the instances stated, and kernels that are no templates."""
        plain = [n for n, d in self.declarations.items() if not d.template]
        return list(dict.fromkeys([*self.budgets, *plain]))

    def instance(self, expression: str) -> Instance:
        """The kernel that `expression` names, "name" or "name<float, 16>"."""
        expression = canonical(expression)
        return self._instances(expression)

    @functools.cache  # noqa: B019 - a Source lives as long as the program
    def _instances(self, expression: str) -> Instance:
        name, _, rest = expression.partition("<")
        declaration = self.declarations.get(name)
        if declaration is None:
            known = ", ".join(self.declarations) or "none"
            raise KernelError(
                f"{self.name} has no kernel {name!r}. Its kernels: {known}. (Read are "
                "__global__ functions at the top level of the file.)"
            )
        arguments = split_commas(rest.removesuffix(">")) if rest else []
        if len(arguments) != len(declaration.template):
            wanted = ", ".join(declaration.template)
            raise KernelError(
                f"{self.name}: {expression!r} gives {len(arguments)} template arguments, "
                f"the kernel takes {len(declaration.template)}"
                + (f". Name it as {name}<{wanted}>." if wanted else f". Name it as {name}.")
            )
        given = dict(zip(declaration.template, arguments, strict=True))
        integers = dict(self.constants)
        for key, argument in given.items():
            if (number := integer(argument)) is not None:
                integers[key] = number
        shapes, nullable = promises(declaration.comment)
        parameters = tuple(
            self._parameter(text, given, shapes, nullable, expression)
            for text in declaration.parameters
        )
        bounds = declaration.bounds
        return Instance(
            expression,
            parameters,
            integers,
            None if bounds is None else maximum(split_commas(bounds)[0], integers),
            self.budgets.get(expression),
        )

    def _parameter(
        self,
        text: str,
        given: Mapping[str, str],
        shapes: Mapping[str, tuple[str, ...]],
        nullable: set[str],
        expression: str,
    ) -> Parameter:
        text, pointers, tail = text.partition("*")
        words = re.findall(r"\w+<[^*]*>|\w+|&", text)
        after = re.findall(r"\w+|\*|&", tail)
        name = after[-1] if pointers else words.pop()
        const = "const" in words
        written = " ".join(w for w in words if w not in ("const", "struct"))
        kind = given.get(written, written)
        if "<" in kind:
            for old, new in given.items():
                kind = re.sub(rf"\b{old}\b", new, kind)
            kind = self.aliases.get(canonical(kind), kind)
        if kind not in TYPES or "*" in after or "&" in after or "&" in words:
            raise KernelError(
                f"{self.name}: the parameter {' '.join((text + pointers + tail).split())!r}"
                f" of {expression} has a type that a launch cannot check. Take a number, or"
                " a pointer to numbers, of a plain type or of a template parameter; say of "
                f"a dependent type what it is: // where {canonical(kind)} is float"
            )
        dtype, lanes = TYPES[kind]
        return Parameter(
            name,
            kind,
            dtype,
            lanes,
            bool(pointers),
            const and bool(pointers),
            any(w in ("__restrict__", "__restrict") for w in after),
            shapes.get(name) if pointers else None,
            name in nullable,
        )

    def _declarations(self) -> list[_Declaration]:
        found = []
        for match in re.finditer(r"\b__global__\b", self.code):
            start = match.end()
            bounds = re.compile(r"[\s\w]*?__launch_bounds__\s*\(").match(self.code, start)
            text = None
            if bounds:
                start = closing(self.code, bounds.end() - 1)
                text = self.code[bounds.end() : start - 1]
            head = re.compile(r"[\s\w]*?\b(\w+)\s*\(").match(self.code, start)
            if head is None:
                continue
            end = closing(self.code, head.end() - 1)
            before = self.code[: match.start()]
            template = re.search(r"\btemplate\s*<([^;{}]*)>\s*\Z", before)
            begin = template.start() if template else match.start()
            names = tuple(
                re.findall(r"\w+", part.split("=")[0])[-1]
                for part in (split_commas(template[1]) if template else [])
            )
            inside = self.code[head.end() : end - 1]
            line_start = self.code.rfind("\n", 0, begin) + 1
            found.append(
                _Declaration(
                    head[1],
                    names,
                    tuple(split_commas(inside)) if inside.strip() else (),
                    text,
                    comment_above(self.text, line_start),
                )
            )
        return found


def read_source(file: str | Path) -> Source:
    """The .cu file `file`: a name of the package's own (kernels/), or a path to any.

    Lines `#include "other.cuh"` are replaced by that file's text, once each, so that the
    text is all that a compiler's cache has to look at.
    """
    if isinstance(file, str) and (own := _own(file)) is not None:
        return own
    path = Path(file)
    if not path.is_file():
        ours = ", ".join(sorted(p.name for p in KERNELS.glob("*.cu"))) or "none"
        raise KernelError(
            f"there is no kernel file {str(file)!r}. Give the path of a .cu file, or the "
            f"name of one of the package's: {ours}."
        )
    return _source(_with_includes(path, set()), path.name)


@functools.cache  # the package's files do not change while it runs
def _own(name: str) -> Source | None:
    path = KERNELS / name
    if Path(name).name != name or not path.is_file():
        return None
    return _source(_with_includes(path, set()), name)


@functools.lru_cache(maxsize=64)
def _source(text: str, name: str) -> Source:
    return Source(text, name)


def _with_includes(path: Path, seen: set[Path]) -> str:
    seen.add(path.resolve())
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path} cannot be read as text: {error}.") from None
    out = [f'#line 1 "{path.name}"']
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if re.match(r"\s*#\s*pragma\s+once\b", line):
            out.append("")
        elif match and (path.parent / match[1]).is_file():
            other = path.parent / match[1]
            if other.resolve() not in seen:
                out += [_with_includes(other, seen), f'#line {number + 1} "{path.name}"']
            else:
                out.append("")
        else:
            out.append(line)
    return "\n".join(out)
