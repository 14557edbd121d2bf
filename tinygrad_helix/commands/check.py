"""`check`: gradients, audit and bytes of ops, layers and blocks."""

import argparse
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..errors import HelixError
from .arguments import SEED, seconds, settings, target_arguments
from .output import versions, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "gradients, audit and bytes of every op and block, or of your files"

ABOUT = """\
Check what there is: every op, layer and block of the package, or the targets. A row each:

  gradient   the gradient against central differences, in float64
  second     the gradient of the gradient; none: refused, as a fused op should
  agrees     values and gradients against another form: the composed block, or the first
             variant of a file
  audit      every saved value is read and none written, nothing is kept in secret or
             under no_grad, two sweeps give the same bits; for each gradient alone too
  predicted, counted, measured
             the bytes kept for the backward pass, by formula, on the tape, in NumPy

A TARGET is helix, file.py[:name] or pkg.mod[:name] with functions `composed`, `primitive`,
`fused…` and `inputs`, or Op classes and `inputs`. Each file runs in a process of its own:
what it raises or prints, how it exits, or that it never ends does not stop the others. It
runs with your rights, though: check strangers' files where they can do no harm.
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix check
  python -m tinygrad_helix check tutorials/swiglu.py --set B=1 --set T=8
  python -m tinygrad_helix check submitted/*.py --timeout 30 --json marks.json

exit status: 0 if all is well, 1 if something failed or could not be run, 2 for bad
arguments.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "target",
        nargs="*",
        metavar="TARGET",
        help="helix, file.py[:name] or pkg.mod[:name], as above (all of the package)",
    )
    target_arguments(parser.add_argument_group("targets of your own"))
    parser.add_argument("--seed", **SEED)
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="the longest that one target may take (%(default)g)",
    )


def run(args: argparse.Namespace) -> int:
    """Check the package or targets, print the table, and fail if one of them does."""
    from ..check import check_package, devices, summary, table, to_json
    from ..submissions import check_targets

    if not args.target and (args.set or args.variant or args.inputs != "inputs"):
        raise HelixError("--set, --variant and --inputs are for a TARGET. Name one.")
    chosen = settings(args)
    if args.target:
        found = check_targets(
            args.target, chosen, args.variant, args.inputs, args.seed, args.timeout
        )
    else:
        found = check_package()
    rows: list[Any] = []
    try:
        rows.extend(found)
    finally:  # what there is, even if it was interrupted
        counts = summary(rows)
        if args.json:
            config = {
                "targets": args.target,
                "set": chosen,
                "variant": args.variant,
                "inputs": args.inputs,
                "seed": args.seed,
                "timeout": args.timeout,
                "devices": ["cpu"] if args.target else devices(),
            }
            write_json(to_json(rows, config | {"versions": versions()}), args.json)
        if rows and args.json != "-":
            print(table(rows))
            print(f"\n{_verdicts(args.target, rows, counts)}")
    return 1 if counts.keys() & {"failed", "error"} else 0


def _verdicts(targets: list[str], rows: list[Any], counts: dict[str, int]) -> str:
    """The last line: how many rows came out as what, and how many targets."""
    of_rows = Counter(row.verdict for row in rows)
    text = f"{len(rows)} checked: {_listed(of_rows)}"
    if len(targets) > 1:
        rest = {what: n for what, n in counts.items() if what != "targets"}
        text += f"; {counts['targets']} targets: {_listed(rest)}"
    return text


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.items())
