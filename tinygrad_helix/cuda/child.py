"""Trials of kernels in processes of their own: one that goes astray ends no more than that.

Under the sanitizers too, which have to be in a process from its start.
"""

import json
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import KernelError
from .host import SANITIZERS, sanitizer_command
from .trial import Trial

__all__ = ["sanitized", "tried"]

_CODE = """\
import json, pickle, sys
job = json.loads(sys.argv[1])
sys.path[:] = job.pop("path")
from tinygrad_helix.cuda.trial import trial
from tinygrad_helix.errors import KernelError
try:
    result = trial(**job)
except KernelError as error:
    result = str(error)
with open(sys.argv[2], "wb") as file:
    pickle.dump(result, file)
"""


def tried(job: Mapping[str, Any]) -> Trial:
    """`trial(**job)` in a process of its own; a crash is a result that is not well.

    What the kernel prints goes to stderr. Errors: those of `trial`.
    """
    result, ended = _run(job, (), capture=False)
    if isinstance(result, Trial):
        return result
    if ended.returncode >= 0:
        raise KernelError(f"the run of {job['expression']} failed: see above.")
    # Memory that is written to astray shows late, and not always.
    why = signal.Signals(-ended.returncode).name
    text = (
        f"its process was ended by {why}: it reads or writes far outside of its arrays, or "
        "an assertion of its own failed. --sanitize says where"
    )
    grid, block = (tuple(job[name] or ()) for name in ("grid", "block"))
    return Trial(job["expression"], grid, block, {}, [], [text])


def sanitized(job: Mapping[str, Any]) -> dict[str, str | None]:
    """Run `trial(**job)` under each sanitizer; what it reports, or None for nothing."""
    found = {}
    for kind in SANITIZERS:
        under = {**job, "orders": (0, 2), "guarded": False}
        result, ended = _run(under, sanitizer_command(kind), capture=True)
        found[kind] = _finding(ended.stderr) if ended.returncode or not result else None
    return found


def _run(
    job: Mapping[str, Any], before: Sequence[str], *, capture: bool
) -> tuple[Trial | None, subprocess.CompletedProcess[str]]:
    text = json.dumps({**job, "path": [str(Path(p).resolve()) for p in sys.path]})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result"
        ended = subprocess.run(
            [*before, sys.executable, "-c", _CODE, text, str(file)],
            stdout=subprocess.PIPE if capture else 2,
            stderr=subprocess.PIPE if capture else None,
            text=True,
            check=False,
        )
        result = pickle.loads(file.read_bytes()) if file.exists() else None
    if isinstance(result, str):
        raise KernelError(result)
    return result, ended


def _finding(log: str) -> str:
    """The first report of a sanitizer: what it is, and the places in the kernel's text."""
    heads = ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "runtime error:")
    lines = log.splitlines()
    start = next((i for i, line in enumerate(lines) if any(h in line for h in heads)), None)
    if start is None:
        raise KernelError(f"the run under a sanitizer failed:\n{log[-2000:].strip()}")
    places = [
        line.strip()
        for line in lines[start + 1 :]
        if line.startswith("    #0 ") and "interceptor" not in line
    ]
    head = re.sub(r"^==\d+==|\(pid=\d+\)| on address .*| on unknown .*", "", lines[start])
    return "\n".join([head.strip(), *places[:2]])
