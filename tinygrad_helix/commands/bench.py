"""`bench`: times, as ratios."""

import argparse
import sys
from typing import Any

from .arguments import at_least
from .output import versions, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "times over the floor of matrix products, and over PyTorch and JAX"

ABOUT = """\
Time blocks, layers and the engine, each as a ratio to something that takes turns with it
in this process, every call after a pause of 0.1 s in which BLAS threads fall asleep:

  helix-BxTxD     a step of the HELIX block (forward, all ten gradients) over its own 12
                  matrix products, which is the floor
  scaling-BxTxD   a token of a long sequence over a token of a short one
  scan            the gated scan over three passes through memory
  engine          a node of a chain of 100 additions of single numbers over NumPy's own
  model           a training step of the default language model, fused over composed

ROW picks some of them by name or pattern. A ratio is that of the medians; beside it are
the quartiles of the ratio turn by turn: where these are far apart, the machine was busy.
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix bench --quick
  python -m tinygrad_helix bench --peers --json bench.json
  python -m tinygrad_helix bench "helix*" --repeats 31
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("row", nargs="*", metavar="ROW", help="names or patterns (all)")
    parser.add_argument(
        "--repeats", type=at_least(1), help="timed turns (15, with --quick 3)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few turns, and without the largest shapes: for a first look",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="time PyTorch, JAX and MyGrad beside it, those that are installed",
    )


def run(args: argparse.Namespace) -> int:
    """Time what the rows name and print the ratios."""
    from ..bench import bench, machine, table, to_json
    from ..peers import PEERS, installed

    found = installed() if args.peers else {}
    config = {
        "rows": args.row,
        "repeats": args.repeats,
        "quick": args.quick,
        "peers": found,
        "machine": machine(),
        "versions": versions(),
    }
    missing = [name for name in PEERS if args.peers and name not in found]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    rows = bench(args.row, repeats=args.repeats, quick=args.quick, with_peers=args.peers)
    if args.json:
        write_json(to_json(rows, config), args.json)
    if args.json != "-":
        print(_head(config, rows[0].repeats))
        print(table(rows))
    return 0


def _head(config: dict[str, Any], repeats: int) -> str:
    at, versions = config["machine"], config["versions"] | config["peers"]
    names = ("numpy", *config["peers"])
    return (
        f"{at['processor']}, {at['cores']} cores, load {at['load']}; {at['blas']} "
        f"{at['blas_version'] or ''}, {at['threads']} threads; "
        + ", ".join(f"{name} {versions[name]}" for name in names)
        + f"; medians of {repeats} turns\n"
    )
