"""What an explanation consists of."""

from dataclasses import dataclass

from ..errors import HelixError

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kind of error: its class, the cause in words, at most five lines that raise it,
    the fix in words, and the lines mended.

    `needs` is "cuda" where the lines want a GPU, "no cuda" where they raise only without
    one, else empty.
    """

    error: type[HelixError]
    cause: str
    lines: str
    fix: str
    fixed_lines: str
    needs: str = ""
