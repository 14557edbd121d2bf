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
templates over types and integers. Kernels made by macros or inside named namespaces are not
seen. Nothing is preprocessed: the branches of an #if are all read.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import KernelError
from .parameters import Parameter, parameter
from .text import (
    ascii_comments,
    budgets,
    canonical,
    closing,
    comment_above,
    constants,
    defined,
    in_namespace,
    integer,
    maximum,
    promises,
    split_commas,
    without_comments,
)

__all__ = ["Instance", "Parameter", "Source", "read_source"]

KERNELS = Path(__file__).parent / "kernels"

_ALIAS = r"//\s*where\s+(\w+<.+?>)\s+is\s+([\w ]+?)\s*$"
_USING = r"\busing\s+(\w+)\s*=\s*([\w: ]+?)\s*;"
_TYPEDEF = r"\btypedef\s+([\w: ]+?)\s+(\w+)\s*;"


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
        self.text = text = ascii_comments(text)
        self.code = without_comments(text)
        self.constants = constants(self.code)
        self.aliases = {
            canonical(m[1]): m[2] for m in re.finditer(_ALIAS, text, re.MULTILINE)
        }
        self.aliases |= {m[1]: m[2] for m in re.finditer(_USING, self.code)}
        self.aliases |= {m[2]: m[1] for m in re.finditer(_TYPEDEF, self.code)}
        self.declarations: dict[str, _Declaration] = {}
        self._ambiguous: set[str] = set()
        for d in self._declarations():
            old = self.declarations.setdefault(d.name, d)
            if (old.template, old.parameters) != (d.template, d.parameters):
                self._ambiguous.add(d.name)
        self.budgets = dict(budgets(text))

    @property
    def expressions(self) -> list[str]:
        """What can be compiled: the instances stated, and kernels that are no templates."""
        plain = [n for n, d in self.declarations.items() if not d.template]
        return list(dict.fromkeys([*self.budgets, *plain]))

    def instance(self, expression: str, options: Sequence[str] = ()) -> Instance:
        """The kernel that `expression` names, "name" or "name<float, 16>".

        A -DNAME=NUMBER of `options` goes before a constant of the file.
        """
        return self._instances(canonical(expression), tuple(options))

    @functools.cache  # noqa: B019 - a Source lives as long as the program
    def _instances(self, expression: str, options: tuple[str, ...]) -> Instance:
        name, _, rest = expression.partition("<")
        declaration = self.declarations.get(name)
        if declaration is None:
            known = ", ".join(self.declarations) or "none"
            raise KernelError(
                f"{self.name} has no kernel {name!r}. Its kernels: {known}. (Read are "
                "__global__ functions at the top level of the file.)"
            )
        if name in self._ambiguous:
            raise KernelError(
                f"{self.name} declares {name!r} more than once, with different parameters: "
                "which of them a launch calls cannot be told. Give each a name of its own, "
                "inside #if and #else too."
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
        integers = self.constants | defined(options)
        for key, argument in given.items():
            if (number := integer(argument)) is not None:
                integers[key] = number
        shapes, nullable = promises(declaration.comment)
        parameters = tuple(
            parameter(
                text,
                given,
                self.aliases,
                shapes,
                nullable,
                f"{self.name}: {expression}",
            )
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
            if self.code[end:].lstrip().startswith(";") or in_namespace(before):
                continue
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
