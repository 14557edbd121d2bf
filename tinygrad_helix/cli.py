"""The command line: `python -m tinygrad_helix` and `tinygrad-helix`."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from . import __version__, commands
from .errors import HelixError

__all__ = ["main"]

_DESCRIPTION = """\
See, to the byte, what fusing a whole block into one autodiff node buys.

Start with:  python -m tinygrad_helix compare
"""

_COMPARE = """\
Run the same computation several ways and set the variants side by side: the bytes that
each keeps for its backward pass (predicted by formula, counted on the tape, measured in
NumPy), how high it peaks, how long it takes, and whether the gradients agree.

TARGET is one of
  helix              the HELIX block in a byte-level language model that is trained for a
                     few steps on real text: composed, primitive, and fused under each
                     policy (the default)
  file.py[:name]     your own block: functions `composed`, `primitive`, `fused…` and
  pkg.mod[:name]     `inputs`, found by name; tutorials/swiglu.py is an example
"""

_EXAMPLES = """\
examples:
  python -m tinygrad_helix compare
  python -m tinygrad_helix compare --dim 256 --layers 4 --text stdlib
  python -m tinygrad_helix compare tutorials/swiglu.py --set D=512
  python -m tinygrad_helix compare --json new.json --against old.json
"""

_CHECK = """\
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

_CHECK_EXAMPLES = """\
examples:
  python -m tinygrad_helix check
  python -m tinygrad_helix check tutorials/swiglu.py --set B=1 --set T=8
  python -m tinygrad_helix check submitted/*.py --timeout 30 --json marks.json

exit status: 0 if all is well, 1 if something failed or could not be run, 2 for bad
arguments.
"""

_BENCH = """\
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

_BENCH_EXAMPLES = """\
examples:
  python -m tinygrad_helix bench --quick
  python -m tinygrad_helix bench --peers --json bench.json
  python -m tinygrad_helix bench "helix*" --repeats 31
"""


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small: at least {least}")
        return value

    return parse


_SEED: dict[str, Any] = {
    "type": _at_least(0),
    "default": 0,
    "metavar": "N",
    "help": "where the random numbers begin: inputs, weights, batches (%(default)s)",
}


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: more than 0 is due")
    return value


# The options of compare that only one kind of TARGET reads, with their defaults.
_MODEL: dict[str, Any] = {
    "dim": 128,
    "layers": 2,
    "batch": 8,
    "seq": 128,
    "steps": 5,
    "warmup": 2,
    "text": "package",
    "policy": None,
    "dtype": "float32",
}
_OWN: dict[str, Any] = {
    "set": [],
    "variant": [],
    "inputs": "inputs",
    "reference": None,
    "repeats": 5,
}


def _completed(args: argparse.Namespace) -> None:
    """Put in the defaults of compare, and refuse options that its TARGET does not read."""
    if args.command != "compare":
        return
    ours = args.target == "helix"
    idle = _OWN if ours else _MODEL
    given = [f"--{name}" for name in idle if getattr(args, name) is not None]
    if given:
        read = "for a target of your own" if ours else "for the target helix"
        raise HelixError(
            f"{', '.join(given)} would change nothing: only {read} does it. Leave it out."
        )
    for name, default in (_MODEL | _OWN).items():
        if getattr(args, name) is None:
            setattr(args, name, default)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tinygrad-helix",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    several = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, about: str, examples: str | None = None) -> Any:
        command = several.add_parser(
            name,
            help=summary,
            description=about,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=getattr(commands, name))
        command.add_argument(
            "--json", metavar="FILE", help="write JSON to FILE (- for stdout)"
        )
        return command

    _compare(
        add(
            "compare",
            "the main job: variants side by side, bytes, peaks, times, gradients",
            _COMPARE,
            _EXAMPLES,
        )
    )
    _check(
        add(
            "check",
            "gradients, audit and bytes of every op and block, or of your files",
            _CHECK,
            _CHECK_EXAMPLES,
        )
    )
    _bench(
        add(
            "bench",
            "times over the floor of matrix products, and over PyTorch and JAX",
            _BENCH,
            _BENCH_EXAMPLES,
        )
    )
    add(
        "info",
        "versions, devices, extras found and missing and how to install them",
        "Show versions, devices, and which extras are installed.",
    )
    return parser


def _compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument(
        "target",
        nargs="?",
        default="helix",
        metavar="TARGET",
        help="helix, file.py[:name] or pkg.mod[:name], as above (%(default)s)",
    )
    model = compare.add_argument_group("the language model (TARGET helix)")
    whole = _at_least(1)
    for name, what in (
        ("dim", "model width D"),
        ("layers", "blocks"),
        ("batch", "sequences"),
        ("seq", "bytes each"),
        ("steps", "timed steps"),
    ):
        model.add_argument(f"--{name}", type=whole, help=f"{what} ({_MODEL[name]})")
    model.add_argument("--warmup", type=_at_least(0), help="untimed steps (2)")
    model.add_argument(
        "--text",
        metavar="TEXT",
        help="package (this package's source), stdlib, or a file (package)",
    )
    model.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help="a fused policy: keep9 … keep1, a set like keep(x,a,out1), or budget(4MB); "
        "may be repeated (keep9 keep6 keep4 keep3 keep2 keep1)",
    )
    model.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        help="of weights and activations (float32)",
    )
    own = compare.add_argument_group("a target of your own")
    _target_arguments(own)
    own.add_argument("--reference", help="the variant to compare with (the first)")
    own.add_argument("--repeats", type=whole, help="timed runs (5)")
    own.set_defaults(**dict.fromkeys(_OWN))
    compare.add_argument("--seed", **_SEED)
    compare.add_argument(
        "--out",
        default="helix-report",
        metavar="DIR",
        help="folder for report.json and the picture (%(default)s)",
    )
    compare.add_argument(
        "--against",
        metavar="OLD.json",
        help="exit with 1 if saved or peak bytes rose against this earlier report",
    )


def _target_arguments(own: Any) -> None:
    own.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="N=4096",
        help="a setting for its inputs(); may be repeated",
    )
    own.add_argument(
        "--variant", action="append", default=[], help="a function to run; may be repeated"
    )
    own.add_argument(
        "--inputs", default="inputs", help="the function that makes the inputs (inputs)"
    )


def _check(check: argparse.ArgumentParser) -> None:
    check.add_argument(
        "target",
        nargs="*",
        metavar="TARGET",
        help="helix, file.py[:name] or pkg.mod[:name], as above (all of the package)",
    )
    _target_arguments(check.add_argument_group("targets of your own"))
    check.add_argument("--seed", **_SEED)
    check.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="the longest that one target may take (%(default)g)",
    )


def _bench(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("row", nargs="*", metavar="ROW", help="names or patterns (all)")
    bench.add_argument(
        "--repeats", type=_at_least(1), help="timed turns (15, with --quick 3)"
    )
    bench.add_argument(
        "--quick",
        action="store_true",
        help="few turns, and without the largest shapes: for a first look",
    )
    bench.add_argument(
        "--peers",
        action="store_true",
        help="time PyTorch, JAX and MyGrad beside it, those that are installed",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is well, 1 a check that failed, 2 bad arguments."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    args = _parser().parse_args(argv)
    try:
        _completed(args)
        if args.json and args.json != "-":
            commands.check_writable(args.json)
        return args.run(args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except HelixError as error:
        print(f"tinygrad-helix {args.command}: {error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        print(
            f"tinygrad-helix {args.command}: there is not enough memory{why}. Make the "
            "shapes smaller.",
            file=sys.stderr,
        )
        return 2
