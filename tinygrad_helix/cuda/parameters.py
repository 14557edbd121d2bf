"""One parameter of a kernel, read from its text: its type, and what a launch may pass."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..errors import KernelError
from .text import canonical

__all__ = ["Parameter", "parameter"]

# Types of parameters and of the elements of arrays: dtype, and elements of it in one.
_TYPES: dict[str, tuple[str, int]] = {
    "bool": ("bool", 1),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "short": ("int16", 1),
    "unsigned short": ("uint16", 1),
    "int": ("int32", 1),
    "unsigned int": ("uint32", 1),
    "long long": ("int64", 1),
    "unsigned long long": ("uint64", 1),
    "ptrdiff_t": ("int64", 1),
    "size_t": ("uint64", 1),
    **{f"int{n}_t": (f"int{n}", 1) for n in (8, 16, 32, 64)},
    **{f"uint{n}_t": (f"uint{n}", 1) for n in (8, 16, 32, 64)},
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
    "double2": ("float64", 2),
    **{f"int{n}": ("int32", n) for n in (2, 4)},
    **{f"uint{n}": ("uint32", n) for n in (2, 4)},
}

_TOKEN = r"[\w:]+<[^*]*>|[\w:]+|\S"
_RESTRICT = ("__restrict__", "__restrict")
_INTEGER = {"signed", "unsigned", "char", "short", "int", "long"}


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


def parameter(
    text: str,
    given: Mapping[str, str],
    aliases: Mapping[str, str],
    shapes: Mapping[str, tuple[str, ...]],
    nullable: Collection[str],
    kernel: str,
) -> Parameter:
    """The parameter written as `text`, with template arguments `given`.

    `aliases` are types by another name. Errors: KernelError for what a launch could not
    check: types that are no plain numbers, references, pointers to pointers, no name.
    """
    here = f"{kernel}: the parameter {' '.join(text.split())!r}"
    before, star, after = text.partition("*")
    # An array is a pointer here as in C++: "float x[]", "const float x[16]".
    if array := not star and "[" in text:
        declared, _, size = text.partition("[")
        before, after = declared, ""
        if not re.fullmatch(r"\s*\w*\s*\]\s*", size):
            raise KernelError(f"{here} is more than a row of numbers. Take a pointer.")
    words = re.findall(_TOKEN, before)
    behind = re.findall(_TOKEN, after)
    qualifiers = {w for w in behind if w in ("const", "volatile", *_RESTRICT)}
    names = [w for w in behind if w not in qualifiers] if star else words[-1:]
    if not star:
        words = words[:-1]
    const = "const" in words
    words = [w for w in words if w not in ("const", "volatile", "struct", "typename")]
    if len(names) == 1 and (not words or names[0] in _INTEGER or names[0] in _TYPES):
        words, names = [*words, *names], []  # what was taken for a name is the type
    kind = _spelled(words, given, aliases)
    if kind == "long":
        raise KernelError(
            f"{here} is a long, which has 64 bits on Linux and 32 on Windows. Write long "
            "long, or int."
        )
    if kind not in _TYPES or any(w in ("*", "&") for w in behind):
        raise KernelError(
            f"{here} has a type that a launch cannot check. Take a number, or a pointer to "
            "numbers, of a plain type or of a template parameter; say of a dependent type "
            f"what it is: // where {kind} is float"
        )
    if not names or not names[0].isidentifier():
        raise KernelError(f"{here} has no name. Give it one: arguments are told by it.")
    if len(names) > 1:
        raise KernelError(
            f"{here} is not understood from {names[1]!r} on. Write a type and a name alone."
        )
    name, pointer = names[0], bool(star or array)
    dtype, lanes = _TYPES[kind]
    return Parameter(
        name,
        kind,
        dtype,
        lanes,
        pointer,
        const and pointer,
        any(w in qualifiers for w in _RESTRICT),
        shapes.get(name) if pointer else None,
        name in nullable,
    )


def _spelled(words: list[str], given: Mapping[str, str], aliases: Mapping[str, str]) -> str:
    """The type of `words` in the spelling of `_TYPES`, template parameters filled in."""
    kind = " ".join(words)
    kind = given.get(kind, kind)
    if "<" in kind:
        for old, new in given.items():
            kind = re.sub(rf"\b{old}\b", new, kind)
        kind = canonical(kind)
    kind = aliases.get(kind, kind)
    parts = kind.replace("std::", "").split()
    if parts and _INTEGER.issuperset(parts):
        sign = ["unsigned"] if "unsigned" in parts else []
        if "char" in parts:
            return " ".join([*(sign or parts.count("signed") * ["signed"]), "char"])
        size = ["short"] if "short" in parts else parts.count("long") * ["long"]
        if size == ["long"]:
            return "long"
        return " ".join([*sign, *(size or ["int"])])
    return " ".join(parts)
