"""What is read of a .cu file's text: brackets, comments, constants, integer expressions."""

import ast
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "ascii_comments",
    "budgets",
    "canonical",
    "closing",
    "comment_above",
    "constants",
    "defined",
    "evaluate",
    "in_namespace",
    "integer",
    "maximum",
    "promises",
    "split_commas",
    "without_comments",
]


# A comment or a string.
_UNREAD = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"'


def canonical(expression: str) -> str:
    """One spelling of a name expression: no space but between words."""
    return re.sub(r"\s*([<>,:*&])\s*", r"\1", " ".join(expression.split()))


def without_comments(text: str) -> str:
    """`text` with comments and strings blanked, every character still in its place."""
    return re.sub(_UNREAD, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


def ascii_comments(text: str) -> str:
    """`text` with ? for what is not ASCII in comments, which compilers need not see."""
    return re.sub(
        _UNREAD,
        lambda m: m[0].encode("ascii", "replace").decode() if m[0][0] == "/" else m[0],
        text,
        flags=re.DOTALL,
    )


def comment_above(text: str, position: int) -> str:
    """The // lines, or the /* */, that end directly above the line that begins at
    `position`."""
    if block := re.search(r"/\*((?:(?!\*/).)*)\*/[ \t]*\n\Z", text[:position], re.DOTALL):
        return " ".join(line.strip().strip("*").strip() for line in block[1].splitlines())
    lines = []
    for line in reversed(text[:position].splitlines()):
        if not line.lstrip().startswith("//"):
            break
        lines.append(line.lstrip().removeprefix("//").strip())
    return " ".join(reversed(lines))


def promises(comment: str) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Shapes by name, and the names that may be null."""
    names = r"(\w+(?:(?:\s*,\s*|\s+and\s+|\s*,\s+and\s+)\w+)*)"
    split = re.compile(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+").split
    shapes: dict[str, tuple[str, ...]] = {}
    for m in re.finditer(names + r"\s+\[([^\]]*)\]", comment):
        for name in split(m[1]):
            shapes.setdefault(name, tuple(split_commas(m[2])))
    nullable = {
        n for m in re.finditer(names + r"\s+may be null", comment) for n in split(m[1])
    }
    return shapes, nullable


def budgets(text: str) -> list[tuple[str, int]]:
    """The registers that the text grants each instance, by comments like
    `// f<{float, double}, 8>: 40 registers`."""
    pattern = r"^\s*//\s*(\w+(?:\s*<[^\n]*>)?)\s*:\s*(\d+) registers\b"
    found = []
    for match in re.finditer(pattern, text, re.M):
        pieces = re.split(r"\{([^}]*)\}", match[1])
        choices = [split_commas(p) if i % 2 else [p] for i, p in enumerate(pieces)]
        found += [
            (canonical("".join(c)), int(match[2])) for c in itertools.product(*choices)
        ]
    return found


def constants(code: str) -> dict[str, int]:
    """Integers that the file names: #define N 128, constexpr int N = 2 * M;

    Not one that is defined more than once, with different values.
    """
    pattern = (
        r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S[^\n]*?)[ \t]*$"
        r"|\bconstexpr\s+(?:(?:unsigned|signed|long|static|const)\s+)*"
        r"\w+\s+(\w+)\s*=\s*([^;{}]+);"
    )
    found: dict[str, int] = {}
    twice = set()
    for m in re.finditer(pattern, code, re.MULTILINE):
        name, value = m[1] or m[3], maximum(m[2] or m[4], found)
        if value is None or found.setdefault(name, value) != value:
            twice.add(name)
    return {name: value for name, value in found.items() if name not in twice}


def defined(options: Iterable[str]) -> dict[str, int]:
    """The integers that a compiler's options define: -DN=128."""
    found = (re.fullmatch(r"-D\s*(\w+)=(\d+)", o) for o in options)
    return {m[1]: int(m[2]) for m in found if m}


def in_namespace(before: str) -> bool:
    """Whether text that comes after `before` stands in a named namespace."""
    named = []
    for m in re.finditer(r"(\bnamespace\s+[\w:]+\s*)?\{|\}", before):
        if m[0] != "}":
            named.append(m[1] is not None)
        elif named:
            named.pop()
    return any(named)


def integer(text: str) -> int | None:
    """The value of a literal of C++, true and false among them; None if it is none."""
    words = {"true": 1, "false": 0}
    try:
        return words[text] if text in words else int(text)
    except ValueError:
        return None


def maximum(text: str, integers: Mapping[str, int]) -> int | None:
    """The value of an expression of `integers`; None where a name is not among them."""
    try:
        return evaluate(text, integers)
    except (KeyError, ValueError, ZeroDivisionError):
        return None


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """An integer expression of names, numbers, + - * / and brackets.

    KeyError for an unknown name, ValueError for what is no such expression.
    """
    return _evaluator(text)(values)


@functools.cache
def _evaluator(text: str) -> Callable[[Mapping[str, int]], int]:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no integer expression") from None

    def run(node: ast.expr, values: Mapping[str, int]) -> int:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                return values[name]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return run(left, values) + run(right, values)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return run(left, values) - run(right, values)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return run(left, values) * run(right, values)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return run(left, values) // run(right, values)
        raise ValueError(f"{text!r} is no integer expression")

    return functools.partial(run, tree)


def closing(text: str, position: int) -> int:
    """The place after the bracket that closes the one at `position`."""
    depth = 0
    for i in range(position, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def split_commas(text: str) -> list[str]:
    """`text` cut at commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [p for p in parts if p]
