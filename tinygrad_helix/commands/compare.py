"""`compare`, the main job: the same computation in several forms, side by side."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import HelixError
from ..report import SCHEMA, differing, output_folder
from .arguments import (
    DEVICE,
    OWN,
    SEED,
    SIZES,
    at_least,
    complete,
    settings,
    target_argument,
    target_arguments,
)
from .output import unicode_stdout, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "the main job: variants side by side, bytes, peaks, times, gradients"

ABOUT = """\
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

EXAMPLES = """\
examples:
  python -m tinygrad_helix compare
  python -m tinygrad_helix compare --dim 256 --layers 4 --text stdlib
  python -m tinygrad_helix compare tutorials/swiglu.py --set D=512
  python -m tinygrad_helix compare --json new.json --against old.json
  python -m tinygrad_helix compare --table latex > table.tex

report.html in the folder of --out is one file that shows it all: graphs, live bytes, the
backward pass node by node. It needs no network; open it in any browser.
"""

_MODEL: dict[str, Any] = {
    **SIZES,
    "layers": 2,
    "steps": 5,
    "warmup": 2,
    "text": "package",
    "policy": None,
}
_OWN: dict[str, Any] = {**OWN, "reference": None, "repeats": 5}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    target_argument(parser)
    model = parser.add_argument_group("the language model (TARGET helix)")
    whole = at_least(1)
    for name, what in (
        ("dim", "model width D"),
        ("layers", "blocks"),
        ("batch", "sequences"),
        ("seq", "bytes each"),
        ("steps", "timed steps"),
    ):
        model.add_argument(f"--{name}", type=whole, help=f"{what} ({_MODEL[name]})")
    model.add_argument("--warmup", type=at_least(0), help="untimed steps (2)")
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
    own = parser.add_argument_group("a target of your own")
    target_arguments(own)
    own.add_argument("--reference", help="the variant to compare with (the first)")
    own.add_argument("--repeats", type=whole, help="timed runs (5)")
    own.set_defaults(**dict.fromkeys(_OWN))
    parser.add_argument("--seed", **SEED)
    parser.add_argument("--device", **DEVICE)
    parser.add_argument(
        "--out",
        default="helix-report",
        metavar="DIR",
        help="folder for report.html, report.json and the picture (%(default)s)",
    )
    parser.add_argument(
        "--table",
        choices=("md", "latex", "csv"),
        help="print the tables as Markdown, LaTeX or CSV, and nothing else",
    )
    parser.add_argument(
        "--against",
        metavar="OLD.json",
        help="exit with 1 if saved or peak bytes rose against this earlier report",
    )


def _earlier(args: argparse.Namespace) -> Any:
    """The report of --against, checked before any work is done."""
    file = args.against
    try:
        old = json.loads(Path(file).read_text(encoding="utf-8"))
        if old["schema"] != SCHEMA:
            raise ValueError(f"its schema is {old['schema']!r}, {SCHEMA!r} is due")
        was = dict(old["config"])
        for row in [*old["rows"], *old["model"]]:
            counts = row["saved_bytes"]["counted"], row["peak_bytes"]
            if not isinstance(row["variant"], str) or {*map(type, counts)} != {int}:
                raise ValueError("a row of it has no name or no whole numbers of bytes")
    except (OSError, ValueError, LookupError, TypeError) as error:
        missing = "it lacks " if isinstance(error, KeyError) else ""
        raise HelixError(
            f"--against {file!r} is no readable report ({missing}{error}). Give a "
            "report.json that compare wrote."
        ) from None
    ours = args.target == "helix"
    if ours != (was.get("target") == "helix"):
        raise HelixError(
            f"--against {file!r} is a report of {was.get('target')!r}, not of "
            f"{args.target!r}. Give one of the same target."
        )
    config = {"set": settings(args)}
    if ours:
        config = {k: getattr(args, k) for k in ("dim", "layers", "batch", "seq", "dtype")}
    found = differing(config, was)
    if found:
        raise HelixError(
            f"--against {file!r}: {' '.join(found)} Give the same options as then."
        )
    return old


def run(args: argparse.Namespace) -> int:
    """Compare variants, print and write the report, and say what does not agree."""
    from ..viz import text_timeline

    complete(args, _MODEL, _OWN)
    output_folder(args.out, keep=False)
    old = _earlier(args) if args.against else None
    report = _language(args) if args.target == "helix" else _own(args)
    paths = report.save(args.out)
    quiet = args.json == "-" or args.table is not None
    if args.table and args.json != "-":
        print(report.table(args.table))
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
            print(text_timeline(report.events, ascii_only=not unicode_stdout()))
        for path in paths:
            print(f"wrote {path}")
        if not any(path.suffix == ".png" for path in paths):
            print(
                'for a picture in PNG and SVG: python -m pip install "tinygrad_helix[viz]"'
            )
    if args.json:
        write_json(report.to_json(), args.json)
    failures = report.check() + (report.against(old) if old else [])
    for failure in failures:
        print(failure, file=sys.stderr)
    if not failures and not quiet:
        agree = "predicted, counted and measured bytes agree"
        if any(r.saved_bytes["predicted"] is None for r in report.rows):
            agree = "counted and measured bytes agree"
        print(f"all checks passed: {agree}, and so do values and gradients")
    return 1 if failures else 0


def _language(args: argparse.Namespace) -> Any:
    from ..language import POLICIES, compare_language_model, parse_policy

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
        device=args.device,
    )


def _own(args: argparse.Namespace) -> Any:
    from ..compare import compare
    from ..create import manual_seed
    from ..targets import TargetError, beside, load_target, told

    chosen = settings(args)
    manual_seed(args.seed)
    try:  # a vjp, a hook or an exit of the user's may come up anywhere in it
        target = load_target(args.target, chosen, args.variant, args.inputs)
        with beside(args.target):
            report = compare(
                target.variants,
                target.inputs,
                reference=args.reference,
                parameters=target.parameters,
                repeats=args.repeats,
                device=args.device,
            )
    except HelixError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(told(f"comparing {args.target!r}", error)) from error
    report.config |= {"target": target.name, "set": chosen, "seed": args.seed}
    return report
