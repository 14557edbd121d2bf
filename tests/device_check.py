"""A run on a GPU, in stages: what is right, what is as predicted, and how fast it is.

    python tests/device_check.py                    all stages, under seven minutes
    python tests/device_check.py --quick --json -   small shapes, results as JSON
    python tests/device_check.py --stage scan --stage bytes
    python tests/device_check.py --list

Where there is no GPU the same stages run on the doubles of the tests, with tiny shapes, and
say what they leave out: so the script is known to work before it meets a GPU. On a GPU each
stage is a process of its own with a limit on its time, so that one that fails, hangs or
spoils the device does not touch the next; what it found until then is kept.

It needs the package's own dependencies, CuPy and pytest. PyTorch, fla-core and
accelerated-scan are compared with where they are installed or lie in a folder of wheels,
packed or unpacked (--wheels DIR).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "tinygrad_helix.device_check/1"
TOTAL = 410  # seconds for all stages


class Skip(Exception):
    """A stage or a part of one that cannot run here; the message says why."""


class OutOfTime(Exception):
    """A stage has used its time."""


@dataclass
class Row:
    """One result. `ok` is None where nothing was promised. `data` are its numbers."""

    stage: str
    name: str
    expected: str
    seen: str
    ok: bool | None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Lab:
    """What a stage works with. `gpu`: a real one."""

    stage: str
    device: Any
    gpu: bool
    quick: bool
    deadline: float
    sink: Callable[[Row], None]

    @property
    def xp(self) -> Any:
        return self.device.xp

    @property
    def left(self) -> float:
        """Seconds that the stage may still take."""
        return self.deadline - time.monotonic()

    def row(
        self,
        name: str,
        seen: object,
        ok: bool | None = None,
        expected: object = "",
        **data: Any,
    ) -> None:
        self.sink(Row(self.stage, name, str(expected), str(seen), ok, data))

    @contextmanager
    def part(self, name: str, expected: object = "", fatal: bool = True):
        """A part that may fail by itself: its error becomes a row. With `fatal` False that
        is no failure of ours (another library's, say), and reads n/a."""
        if self.left < 0:
            raise OutOfTime
        try:
            yield
        except OutOfTime:
            raise
        except (Skip, ImportError) as why:
            self.row(name, f"n/a: {one_line(why)}", None, expected)
        except Exception as error:
            seen = f"{type(error).__name__}: {one_line(error)}"
            self.row(
                name, seen if fatal else f"n/a: {seen}", False if fatal else None, expected
            )


def one_line(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:199] + "…"


def command_line(command: Sequence[str], seconds: float) -> Any:
    """Run a program from the repository's root; what it said, or Skip after `seconds`."""
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=max(1, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Skip("not done in time") from None


# --- the device


@contextmanager
def laboratory(stage: str, quick: bool, seconds: float, sink: Callable[[Row], None]):
    """A Lab on the GPU, or on the doubles where there is none."""
    from tinygrad_helix.backend import get_backend
    from tinygrad_helix.cuda.device import unavailable
    from tinygrad_helix.cuda.toolkit import compiler, headers, missing

    def lab(device: Any, gpu: bool) -> Lab:
        # The doubles need g++ first, and no device waits for them.
        limit = time.monotonic() + (seconds if gpu else 1000)
        return Lab(stage, device, gpu, quick, limit, sink)

    if unavailable() is None:
        yield lab(get_backend("cuda"), True)
    elif missing(compiler, headers) is None:
        from host_device import host_device

        with host_device() as device:
            yield lab(device, False)
    else:
        from standin import standin

        with standin() as device:
            yield lab(device, False)


def run_stage(name: str, quick: bool, seconds: float, sink: Callable[[Row], None]) -> str:
    """Run one stage here; "ok", "failed" or "skipped: reason"."""
    from device_stages import STAGES

    failed = False

    def noted(row: Row) -> None:
        nonlocal failed
        failed = failed or row.ok is False
        sink(row)

    try:
        with laboratory(name, quick, seconds, noted) as lab:
            STAGES[name].run(lab)
    except Skip as why:
        return f"skipped: {why}"
    except OutOfTime:
        return "cut short: its time was up" + (", and it had failed" if failed else "")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        seen = f"{type(error).__name__} ({where}): {one_line(error)}"
        noted(Row(name, "the stage itself", "", seen, False))
    return "failed" if failed else "ok"


def run_apart(
    name: str, options: Sequence[str], seconds: float, sink: Callable[[Row], None]
) -> str:
    """Run one stage in a process of its own, which is ended when its time is up."""
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "rows"
        notes.touch()
        command = [sys.executable, __file__, *options, "--stage", name]
        command += ["--notes", str(notes), "--seconds", str(seconds)]
        try:
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds + 5, check=False
            )
            said = ended.stderr.strip().splitlines()
            status = f"failed: {ended.returncode}, {said[-1] if said else 'no word'}"
        except subprocess.TimeoutExpired:
            status = f"failed: not done after {seconds:.0f} s"
        for line in notes.read_text(encoding="utf-8").splitlines():
            try:
                note = json.loads(line)
            except json.JSONDecodeError:  # it was ended while it wrote
                continue
            if isinstance(note, str):
                status = note
            else:
                sink(Row(**note))
    return status


# --- what is shown


def table(stages: Sequence[dict[str, Any]], rows: Sequence[Row]) -> str:
    """All rows, then the stages with their time."""
    lines = []
    for stage in stages:
        lines.append(f"\n{stage['name']}: {stage['status']} ({stage['seconds']:.1f} s)")
        mine = [row for row in rows if row.stage == stage["name"]]
        width = min(48, max((len(row.name) for row in mine), default=0))
        for row in mine:
            mark = {True: "ok  ", False: "MISS", None: "    "}[row.ok]
            due = f"   [expected {row.expected}]" if row.expected else ""
            lines.append(f"  {mark} {row.name:<{width}}  {row.seen}{due}")
    spent = sum(stage["seconds"] for stage in stages)
    missed = sum(row.ok is False for row in rows)
    lines.append(f"\n{len(rows)} results, {missed} not as expected, {spent:.0f} s")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--quick", action="store_true", help="small shapes, few of each kind")
    p.add_argument("--json", metavar="FILE", help="write the results; - for stdout")
    p.add_argument("--stage", metavar="NAME", action="append", help="only this; repeatable")
    p.add_argument("--list", action="store_true", help="list the stages")
    p.add_argument("--wheels", metavar="DIR", help="a folder of pure-Python wheels")
    p.add_argument("--notes", help=argparse.SUPPRESS)  # of a process for one stage
    p.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return p


@contextmanager
def wheels(folder: str | None):
    """Put what lies in the folder on the path, wheels unpacked; yields that path."""
    if folder is None:
        yield None
        return
    if not Path(folder).is_dir():
        raise SystemExit(f"--wheels {folder}: there is no such folder")
    packed = sorted(Path(folder).glob("*.whl"))
    with tempfile.TemporaryDirectory() as made:  # Triton reads the text of its kernels
        for wheel in packed:
            zipfile.ZipFile(wheel).extractall(made)
        path = made if packed else folder
        sys.path.insert(0, path)
        try:
            yield path
        finally:
            sys.path.remove(path)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from device_stages import STAGES

    if args.list:
        for name, stage in STAGES.items():
            print(f"{name:<10} {stage.seconds:>3} s  {stage.about}")
        return 0
    names = args.stage or list(STAGES)
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise SystemExit(f"no stage {unknown[0]!r}. There are: {', '.join(STAGES)}")
    with wheels(args.wheels) as folder:
        if args.notes:
            return take_notes(names[0], args)
        return run_all(names, args, folder)


def take_notes(name: str, args: argparse.Namespace) -> int:
    """Run one stage and write its rows, then its status, a line of JSON each."""
    with open(args.notes, "a", encoding="utf-8") as file:

        def note(what: Any) -> None:
            file.write(json.dumps(what) + "\n")
            file.flush()

        note(run_stage(name, args.quick, args.seconds, lambda row: note(vars(row))))
    return 0


def run_all(names: Sequence[str], args: argparse.Namespace, folder: str | None) -> int:
    from device_stages import STAGES

    from tinygrad_helix.cuda.device import unavailable

    apart = unavailable() is None
    options = ["--quick"] * args.quick + (["--wheels", folder] if folder else [])
    rows: list[Row] = []
    stages: list[dict[str, Any]] = []
    began = time.monotonic()
    for name in names:
        start = time.monotonic()
        seconds = min(STAGES[name].seconds, TOTAL - (start - began))
        if seconds <= 0:
            status = "skipped: no time is left"
        elif apart:
            status = run_apart(name, options, seconds, rows.append)
        else:
            status = run_stage(name, args.quick, seconds, rows.append)
        spent = time.monotonic() - start
        stages.append({"name": name, "status": status, "seconds": round(spent, 2)})
        print(f"{name}: {status} ({spent:.1f} s)", file=sys.stderr, flush=True)
        if args.json and args.json != "-":  # after each: what there is survives the run
            write(args.json, stages, rows)
    if args.json == "-":
        print(json.dumps(report(stages, rows), indent=1))
    else:
        print(table(stages, rows))
    return int(any(s["status"] != "ok" and "fail" in s["status"] for s in stages))


def report(stages: Sequence[dict[str, Any]], rows: Sequence[Row]) -> dict[str, Any]:
    return {"schema": SCHEMA, "stages": list(stages), "rows": [vars(row) for row in rows]}


def write(file: str, stages: Sequence[dict[str, Any]], rows: Sequence[Row]) -> None:
    path = Path(file)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(report(stages, rows), indent=1) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    # The stages import Skip and Row from this module by its name.
    sys.modules["device_check"] = sys.modules["__main__"]
    sys.exit(main())
