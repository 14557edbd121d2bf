"""`explain`: what causes an error, the lines that do, and the fix."""

import argparse
import textwrap
from typing import Any

from ..errors import HelixError
from ..explanations import EXPLANATIONS, Explanation, explanations_of
from .output import write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "what causes an error, five lines that do, and the fix"

ABOUT = """\
Explain an error: its cause, at most five lines that raise it, the fix, and the lines
mended. ERROR is the name that a traceback shows (SavedTensorsFreedError), or that of one
kind of error (backward-twice). Without it, all names are listed.
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix explain
  python -m tinygrad_helix explain backward-twice
  python -m tinygrad_helix explain GraphError
"""

_WIDTH = 79


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "error", nargs="?", metavar="ERROR", help="an error's class or kind (a list of all)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the pages of one error, or the list of all."""
    pages = EXPLANATIONS if args.error is None else explanations_of(args.error)
    if not pages:
        raise HelixError(
            f"there is no explanation of {args.error!r}. The kinds of errors, by class:\n\n"
            f"{listing()}"
        )
    if args.json:
        write_json({kind: _plain(page) for kind, page in pages.items()}, args.json)
    if args.json != "-":
        shown = [text(kind, page) for kind, page in pages.items()]
        print(listing() if args.error is None else "\n\n".join(shown))
    return 0


def listing() -> str:
    """The classes of errors, each with its kinds."""
    kinds: dict[str, list[str]] = {}
    for kind, page in EXPLANATIONS.items():
        kinds.setdefault(page.error.__name__, []).append(kind)
    width = max(map(len, kinds))
    return "\n".join(
        textwrap.fill(
            ", ".join(of_class),
            _WIDTH,
            initial_indent=f"{name:<{width}}  ",
            subsequent_indent=" " * (width + 2),
            break_on_hyphens=False,
        )
        for name, of_class in kinds.items()
    )


def text(kind: str, page: Explanation) -> str:
    """One page, as text."""
    where = {"": "", "cuda": " (with a GPU)", "no cuda": " (without a GPU)"}[page.needs]
    return "\n\n".join(
        [
            f"{kind}: {page.error.__name__}",
            textwrap.fill(page.cause, _WIDTH),
            f"These lines raise it{where}:",
            textwrap.indent(page.lines, "    "),
            textwrap.fill(page.fix, _WIDTH),
            textwrap.indent(page.fixed_lines, "    "),
        ]
    )


def _plain(page: Explanation) -> dict[str, Any]:
    return {
        "error": page.error.__name__,
        "cause": page.cause,
        "lines": page.lines.splitlines(),
        "fix": page.fix,
        "fixed_lines": page.fixed_lines.splitlines(),
        "needs": page.needs,
    }
