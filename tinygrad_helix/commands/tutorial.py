"""`tutorial`: list, print, run and export the tutorials."""

import argparse
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Any

from .. import tutorial as tutorials
from ..errors import HelixError
from ..files import write_file
from .output import write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "eleven short lessons, from one multiplication to the fused block's kernels"

ABOUT = """\
Without a number: list the tutorials. With one: print it. They are Python files in the
percent format, which editors open as notebooks, and each ends with exercises that check
themselves.

  --run            run it here; pictures go into ./figures
  --student        the edition without solutions, to print, run or write
  --script FILE    write it as it is
  --notebook FILE  write it as a Jupyter notebook, not yet run
  --html FILE      run it, and write one page with its outputs and pictures

The last two need the extra: python -m pip install "tinygrad_helix[tutorials]"
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix tutorial
  python -m tinygrad_helix tutorial 01 --run
  python -m tinygrad_helix tutorial 01 --student --script mine.py
  python -m tinygrad_helix tutorial 06 --notebook 06.ipynb

exit status: 0, or 1 if an exercise of a tutorial that was run is not right.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "number", nargs="?", metavar="NN", help="1 to 11, or a name from the list"
    )
    parser.add_argument("--run", dest="execute", action="store_true", help="run it")
    parser.add_argument("--student", action="store_true", help="without the solutions")
    parser.add_argument("--script", metavar="FILE", help="write it as Python")
    parser.add_argument("--notebook", metavar="FILE", help="write a Jupyter notebook")
    parser.add_argument("--html", metavar="FILE", help="run it and write a page")


def run(args: argparse.Namespace) -> int:
    """Do what the options say; printing is the default."""
    formats = (
        (args.script, str),
        (args.notebook, tutorials.notebook_text),
        (args.html, tutorials.html),
    )
    if args.number is None:
        if args.execute or args.student or any(file for file, _ in formats):
            raise HelixError("which tutorial? Give its number, 01 say, before the options.")
        return _list(args.json)
    chosen = tutorials.find(args.number)
    text = tutorials.student(chosen.text) if args.student else chosen.text
    found: dict[str, Any] = _described(chosen)
    for file, make in formats:
        if file:
            _write(file, make(text))
    status = 0
    if args.execute:
        # What it prints must not get into JSON on stdout.
        with redirect_stdout(sys.stderr) if args.json == "-" else nullcontext():
            right = tutorials.run(chosen, text if args.student else None)
        found["right"] = {str(n): ok for n, ok in right.items()}
        status = 1 if False in right.values() else 0
    elif not any(file for file, _ in formats) and args.json != "-":
        print(text, end="")
    if args.json:
        write_json(found | {"text": text}, args.json)
    return status


def _described(t: tutorials.Tutorial) -> dict[str, Any]:
    return {"name": t.name, "title": t.title, "path": str(t.path), "exercises": t.exercises}


def _list(json: str | None) -> int:
    found = tutorials.tutorials()
    if json:
        write_json({"tutorials": [_described(t) for t in found]}, json)
    if json != "-":
        width = max(len(t.name) for t in found)
        for t in found:
            print(f"{t.name:<{width}}  {t.title}")
        print("\npython -m tinygrad_helix tutorial 01 --run   runs the first of them")
    return 0


def _write(file: str, text: str) -> None:
    write_file(file, text)
    print(f"wrote {file}", file=sys.stderr)
