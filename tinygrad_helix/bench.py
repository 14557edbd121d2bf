"""Timings as ratios: of blocks, of layers and of the engine (`contests` has them).

A ratio's two sides take turns in one process, and before every timed call there is a
pause in which the BLAS threads of the one before fall asleep.
"""

import fnmatch
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .compare import PAUSE
from .contests import CONTESTS, LARGE, Contest, blas, threads
from .errors import HelixError
from .peers import installed
from .tables import aligned

__all__ = ["Row", "bench", "machine", "table", "to_json"]

SCHEMA = "tinygrad_helix.bench/1"
REPEATS, QUICK_REPEATS = 15, 3
_SHORTEST = 0.01  # seconds: faster calls are timed several at once
_EQUAL = 1e-4  # of results in float32, relative to the largest


@dataclass(frozen=True, slots=True)
class Row:
    """One ratio: `name` over `over`.

    `step_ms` and `floor_ms` are the medians of both sides, in milliseconds per `per`
    (a step, a node, 1,000 tokens), `ratio` theirs. `step_min_ms` and `floor_min_ms` are
    the least, `ratio_low` and `ratio_high` the quartiles of the ratio turn by turn.
    `repeats` turns were timed.
    """

    name: str
    over: str
    shape: tuple[int, ...]
    device: str
    dtype: str
    per: str
    step_ms: float
    floor_ms: float
    ratio: float
    step_min_ms: float
    floor_min_ms: float
    ratio_low: float
    ratio_high: float
    repeats: int


def bench(
    names: Sequence[str] = (),
    *,
    repeats: int | None = None,
    quick: bool = False,
    with_peers: bool = False,
) -> list[Row]:
    """Time the contests that `names` (names or shell patterns; all if none) pick.

    `repeats` timed turns (15, or 3 with `quick`, which also leaves out the largest shapes
    unless they are named). Peers join where they are installed. HelixError for a name that
    picks nothing, or for sides that do not compute the same.
    """
    chosen = _chosen(names, quick)
    repeats = repeats or (QUICK_REPEATS if quick else REPEATS)
    beside = frozenset(installed() if with_peers else ())
    rows = []
    for name in chosen:
        contest = CONTESTS[name](beside)
        rows += _rows(contest, _times(name, contest, repeats))
    return rows


def _chosen(names: Sequence[str], quick: bool) -> list[str]:
    if not names:
        return [name for name in CONTESTS if not (quick and name in LARGE)]
    for pattern in names:
        if not fnmatch.filter(CONTESTS, pattern):
            raise HelixError(
                f"bench has no {pattern!r}. It has: {', '.join(CONTESTS)}. Patterns such "
                "as 'helix*' pick several."
            )
    return [n for n in CONTESTS if any(fnmatch.fnmatch(n, p) for p in names)]


def _times(name: str, contest: Contest, repeats: int) -> dict[str, list[float]]:
    """Seconds of every step, turn by turn: a call, or the mean of several short ones."""
    from tqdm.auto import tqdm

    with tqdm(total=repeats + 1, desc=name, disable=None, leave=False) as bar:
        _same(name, {step: contest.steps[step]() for step in contest.equal})
        calls = {}
        for step, run in contest.steps.items():
            run()
            start = time.perf_counter()
            run()
            calls[step] = 1 + int(_SHORTEST / (time.perf_counter() - start))
        bar.update()
        times: dict[str, list[float]] = {step: [] for step in contest.steps}
        for _ in range(repeats):
            for step, run in contest.steps.items():
                time.sleep(PAUSE)
                start = time.perf_counter()
                for _ in range(calls[step]):
                    run()
                times[step].append((time.perf_counter() - start) / calls[step])
            bar.update()
    return times


def _same(name: str, results: Mapping[str, Sequence[Any]]) -> None:
    first: list[np.ndarray] = []
    for step, values in results.items():
        arrays = [np.asarray(v) for v in values]
        first = first or arrays
        for a, b in zip(arrays, first, strict=True):
            if not np.abs(a - b).max() <= _EQUAL * np.abs(b).max():
                raise HelixError(
                    f"{name}: {step} and {next(iter(results))} do not compute the same "
                    f"(apart by {np.abs(a - b).max():.1e}, largest {np.abs(b).max():.1e}), "
                    "so that a ratio of their times would mean nothing. Report it."
                )


def _rows(contest: Contest, times: Mapping[str, Sequence[float]]) -> list[Row]:
    rows = []
    for name, step, over in contest.ratios:
        ours, theirs = (
            [1e3 * t / contest.units.get(side, 1) for t in times[side]]
            for side in (step, over)
        )
        each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
        quarter = len(each) // 4
        rows.append(
            Row(
                name=name,
                over=over,
                shape=contest.shape,
                device="cpu",
                dtype="float32",
                per=contest.per,
                step_ms=statistics.median(ours),
                floor_ms=statistics.median(theirs),
                ratio=statistics.median(ours) / statistics.median(theirs),
                step_min_ms=min(ours),
                floor_min_ms=min(theirs),
                ratio_low=each[quarter],
                ratio_high=each[-1 - quarter],
                repeats=len(each),
            )
        )
    return rows


# --- what is shown


def machine() -> dict[str, Any]:
    """What a timing depends on: processor, cores, load, BLAS and its threads."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
        name = models[0] if models else name
    pool = blas()
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "blas": pool.get("internal_api", "unknown"),
        "blas_version": pool.get("version"),
        "threads": threads(),
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ["", "over", "shape", "time", "floor", "per", "ratio", "quartiles", "least"]
    lines = [
        [
            row.name,
            row.over,
            "x".join(map(str, row.shape)),
            _time(row.step_ms),
            _time(row.floor_ms),
            row.per,
            f"{row.ratio:.2f}",
            f"{row.ratio_low:.2f} to {row.ratio_high:.2f}",
            f"{row.step_min_ms / row.floor_min_ms:.2f}",
        ]
        for row in rows
    ]
    return aligned([head, *lines], left=3)


def _time(ms: float) -> str:
    return (
        f"{ms:.1f} ms"
        if ms >= 10
        else f"{ms:.2f} ms"
        if ms >= 0.1
        else f"{1e3 * ms:.2f} us"
    )


def to_json(rows: Sequence[Row], config: Mapping[str, Any]) -> dict[str, Any]:
    """The rows as plain data: schema, config, rows."""
    return {"schema": SCHEMA, "config": dict(config), "rows": [asdict(r) for r in rows]}
