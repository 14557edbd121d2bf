"""`walk`: the backward sweep of a function, node by node."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import HelixError
from .forward import Forward, add_target, forward
from .output import check_folder, colour_stdout, unicode_stdout, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "walks the backward sweep, node by node, and shows what each one frees"

ABOUT = """\
Run a function forward once, then its backward sweep node by node, the latest first. Of
every node it prints

  came    the cotangent dy of its result, as its vjp gets it: shape and Euclidean norm
  sent    the cotangents that its vjp returns, and to which node or leaf each goes
  freed   the saved tensors that it lets go of, with their bytes
  live    the bytes that the tape still holds, parameters aside, as a number and a bar

With --frames the same becomes numbered pictures for slides, 16:9: the graph (of a larger
one what is around the current node) with the current node lit and what is done in grey,
above it a cell for every node of the tape, and the bar of live bytes.

TARGET is helix (the HELIX block), file.py[:name] or pkg.mod[:name], where name is a
function or a module and `inputs` makes its arguments.
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix walk
  python -m tinygrad_helix walk --mode fused --policy keep1
  python -m tinygrad_helix walk tutorials/swiglu.py --variant composed --interactive
  python -m tinygrad_helix walk --batch 1 --seq 8 --dim 4 --frames frames
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_target(parser)
    parser.add_argument(
        "--interactive",
        action="store_true",
        help="wait for the Enter key before every step (q ends it)",
    )
    parser.add_argument(
        "--frames", metavar="DIR", help="write a picture of every step into this folder"
    )
    parser.add_argument(
        "--format",
        choices=("svg", "pdf", "png"),
        default="svg",
        help="of the pictures (%(default)s); PDF and PNG need Graphviz' dot",
    )


def run(args: argparse.Namespace) -> int:
    """Walk, print, and write what was asked for."""
    from .. import tape
    from ..targets import TargetError, told
    from ..viz.reader import read
    from ..viz.walk import step_data, step_text

    if args.interactive and not sys.stdin.isatty():
        raise HelixError(
            "--interactive waits for a key, and stdin is no terminal. Leave it out."
        )
    made = forward(args)
    quiet, ascii_only = args.json == "-", not unicode_stdout()
    walk = tape.steps(made.y, _cotangent(made.y))
    reading = read(made.y, made.names)
    graph, leaves = reading.graph, reading.by_key
    del reading  # it holds the arrays that the sweep is to free
    frames = _frames(args, graph, made.title) if args.frames else None
    before = walk.live_bytes
    if not quiet:
        print(_head(made, walk.count, before, ascii_only))
        if args.interactive:
            print("Enter: the next step; q: the end")
    found: list[dict[str, Any]] = []
    while not (args.interactive and _ended()):
        try:
            step = next(walk, None)
        except HelixError:
            raise
        except Exception as error:  # a vjp of the user's may raise anything
            raise TargetError(told(f"walking through {args.target!r}", error)) from error
        if step is None:
            break
        found.append(step_data(step, leaves))
        if not quiet:
            look = {"ascii_only": ascii_only, "colour": colour_stdout()}
            print(step_text(found[-1], before, **look))
    if args.json:
        data = {"schema": "tinygrad_helix.walk/1", "config": made.config}
        write_json(data | {"saved_bytes": before, "steps": found}, args.json)
    if frames is not None:
        for line in frames.write(found):
            print(line, file=sys.stderr if quiet else sys.stdout)
    return 0


def _ended() -> bool:
    """Wait for Enter; whether q was typed, or stdin is at its end."""
    try:
        return input().strip().lower() == "q"
    except EOFError:
        return True


def _cotangent(y: Any) -> Any:
    """Ones for a single element, else N(0, 1) from a fixed seed, as in compare."""
    import numpy as np

    if y.size == 1:
        return None
    return np.random.default_rng(0).standard_normal(y.shape).astype(y.dtype)


def _head(made: Forward, count: int, before: int, ascii_only: bool) -> str:
    from ..viz.graph import shape_text
    from ..viz.text import plain_text

    start = "1" if made.y.size == 1 else "N(0, 1)"
    lines = [
        f"{made.title}: {count} node{'s' * (count != 1)}, {before:,} B saved",
        f"dy = {start}, {shape_text(made.y.shape)} {made.y.dtype}",
        "",
    ]
    return "\n".join([plain_text(line, ascii_only) for line in lines])


def _frames(args: argparse.Namespace, graph: Any, title: str) -> Any:
    from ..viz.frames import Frames

    folder = Path(args.frames)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise HelixError(f"--frames {args.frames!r} is a file. Name a folder.") from None
    except OSError as error:
        raise HelixError(
            f"--frames {args.frames!r}: the folder cannot be made ({error.strerror}). Name "
            "another one."
        ) from None
    check_folder(folder)
    return Frames(graph, title, folder, args.format)
