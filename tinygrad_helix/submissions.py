"""Checking a user's targets: files that were handed in, say.

`check_target` checks the variants and ops of one, `check_targets` many, each in a process
of its own and in bounded time.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import memory
from .check import Row, check, check_package, one_line
from .create import manual_seed
from .gradcheck import float_outputs
from .op import Op, apply
from .samples import Sample
from .targets import Target, TargetError, load_target, located, told

__all__ = ["TIMEOUT", "check_target", "check_targets"]

TIMEOUT = 60.0  # seconds for a target


def check_target(
    spec: str,
    settings: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    inputs: str = "inputs",
    seed: int = 0,
) -> Iterator[Row]:
    """A row for every variant of a TARGET, and for every Op class that none applies.

    Runs in this process; TargetError if the target cannot be loaded. Variants after the
    first must agree with it. Of a variant's ops the target's own are audited; an Op class
    of its own that no variant applies is tried on the inputs in their order.
    """
    manual_seed(seed)
    target = load_target(spec, settings or {}, variants, inputs, with_ops=True)
    applied: set[type[Op]] = set()
    reference: Sample | None = None
    for name in target.variants:
        sample = _variant(target, name, reference)
        applied |= sample.ops or set()
        reference = reference or sample
        yield check(sample, spec)
    for name, op in target.ops.items():
        if op not in applied:
            yield _check_op(target, name, op)


def _variant(target: Target, name: str, reference: Sample | None) -> Sample:
    names = tuple(target.inputs)
    variant = target.variants[name]

    def fn(*values: Any) -> Any:
        return variant(**dict(zip(names, values, strict=True)))

    sample = Sample(
        name,
        fn,
        names,
        tuple(target.inputs.values()),
        parameters=frozenset(target.parameters),
        reference=reference.fn if reference else None,
        reference_name=reference.name if reference else "",
        second=None,
    )
    try:
        nodes = memory.nodes(*float_outputs(fn(*sample.values)))
    except Exception:  # `check` will tell
        nodes = []
    own = frozenset(node.op for node in nodes if not _is_ours(node.op))
    return replace(sample, ops=own)


def _is_ours(op: type[Op]) -> bool:
    return op.__module__.partition(".")[0] == __name__.partition(".")[0]


def _check_op(target: Target, name: str, op: type[Op]) -> Row:
    values = tuple(target.inputs.values())

    def fn(*values: Any) -> Any:
        return apply(op, *values)

    try:
        fn(*values)
    except Exception as error:
        row = Row(target.name, name, verdict="not tried" if target.variants else "error")
        finding = told(f"applied to the inputs in their order {name}", error)
        if target.variants:
            row.notes.append(f"no variant applies it, and {finding}")
        else:
            row.findings.append(finding)
        return row
    names = tuple(target.inputs)
    parameters = frozenset(target.parameters)
    return check(Sample(name, fn, names, values, parameters, second=None), target.name)


# --- many targets, each in a process of its own

_CHILD = """\
import json, sys
job = json.loads(sys.argv[1])
sys.path[:] = job["path"]
from tinygrad_helix.submissions import _child
_child(job)
"""


def check_targets(
    specs: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    inputs: str = "inputs",
    seed: int = 0,
    timeout: float = TIMEOUT,
) -> Iterator[Row]:
    """The rows of every TARGET, each checked in a process of its own.

    What one of them raises, prints, exits with or loops over does not reach the others: a
    row with the verdict "error" says it in a line, and after `timeout` seconds the process
    is ended. The files are run with all rights of the caller. "helix" is a target too.
    TargetError if one of them does not exist, before any is run, or if "helix" is among
    them and there are settings, variants or inputs, of which it has none.
    """
    from tqdm.auto import tqdm

    for spec in specs:
        if spec != "helix":
            located(spec)
        elif settings or variants or inputs != "inputs":
            raise TargetError(
                "the target helix takes no --set, --variant and --inputs: they are for "
                "targets of your own. Check it by itself."
            )
    given = {"settings": settings or {}, "variants": variants, "inputs": inputs}
    bar = tqdm(specs, disable=None if len(specs) > 1 else True, leave=False)
    for spec in bar:
        bar.set_description(spec)
        if spec == "helix":
            yield from check_package(only_helix=True)
        else:
            yield from _in_a_process({"spec": spec, "seed": seed, **given}, timeout)


def _in_a_process(job: dict[str, Any], timeout: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "rows"
        lines.touch()
        job |= {"rows": str(lines), "path": sys.path}
        try:
            ended = _run([sys.executable, "-c", _CHILD, json.dumps(job)], timeout)
            how = f"ended its process, exit status {ended}"
            if ended < 0:
                how = f"had its process killed by {_signal(-ended)}"
        except subprocess.TimeoutExpired:
            how = (
                f"took longer than {timeout:g} s. Make its inputs smaller (--set) or give "
                "it more time (--timeout)"
            )
        found = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    rows = [Row(**fields) for fields in found if fields]
    if not found or found[-1]:  # the empty one at the end is missing
        rows.append(Row(job["spec"], "", verdict="error", findings=[f"{how}."]))
    return rows


def _run(command: list[str], timeout: float) -> int:
    """The exit status of a command. What it has started ends with it (on Windows, where
    there are no process groups, only itself)."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    finally:
        process.kill()
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one, which has no name
        return f"signal {number}"


def _child(job: dict[str, Any]) -> None:
    """Check one target and write a line of JSON a row, and in the end an empty object."""
    process = os.getpid()
    with open(job["rows"], "a", encoding="utf-8") as lines:

        def write(fields: dict[str, Any]) -> None:
            if os.getpid() != process:  # the target has forked, and this is the copy
                os._exit(0)
            print(json.dumps(fields), file=lines, flush=True)

        spec = job["spec"]
        try:
            found = check_target(
                spec, job["settings"], job["variants"], job["inputs"], job["seed"]
            )
            for row in found:
                write(asdict(row))
        except Exception as error:
            finding = one_line(spec, error)
            write(asdict(Row(spec, "", verdict="error", findings=[finding])))
        write({})
