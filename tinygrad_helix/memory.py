"""The ledger: which buffers the tape holds, under which names, and how many bytes.

A *storage* is the array that owns a buffer; views share it, and it is counted once. Two
tables say more of a storage than its bytes: how often it was written in place (its
version), and whether it is a parameter. Both hold weak references, and only to the few
arrays that need an entry.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .backend import backend_of
from .meter import current_meter

__all__ = [
    "Event",
    "Ledger",
    "Saved",
    "bump",
    "current_ledger",
    "is_parameter",
    "mark_parameter",
    "nodes",
    "record",
    "saved",
    "saved_bytes",
    "storage",
    "table",
    "unrecorded",
    "version",
]


def storage(array: Any) -> Any:
    """The array that owns the buffer of `array`: itself unless it is a view."""
    return backend_of(array).owner(array)


# --- versions and parameters, by the id of the owning array

_versions: dict[int, int] = {}
_parameters: dict[int, Any] = {}  # id -> its finalizer


def version(array: Any) -> int:
    """How often the storage of `array` was written in place by an operation."""
    return _versions.get(id(storage(array)), 0) if _versions else 0


def bump(array: Any) -> None:
    """Say that the storage of `array` was written to: every view gets a new version."""
    owner = storage(array)
    key = id(owner)
    if key not in _versions:
        weakref.finalize(owner, _versions.pop, key, None).atexit = False
        _versions[key] = 0
    _versions[key] += 1


def mark_parameter(array: Any) -> None:
    """Count the storage of `array` as a parameter from now on, not as an activation."""
    owner = storage(array)
    key = id(owner)
    if key not in _parameters:
        _parameters[key] = weakref.finalize(owner, _parameters.pop, key, None)
        _parameters[key].atexit = False


def is_parameter(array: Any) -> bool:
    """Whether the storage of `array` was marked as a parameter."""
    return id(storage(array)) in _parameters


# --- what a graph holds


@dataclass(frozen=True, slots=True)
class Saved:
    """One saved tensor: `op.label`, where its node was made, and its bytes.

    `nbytes` is the storage's, `view_nbytes` those that the saved value itself spans: they
    differ when a small view keeps a large buffer alive. `first` is False when a row
    before this one already counted the same storage.
    """

    op: str
    label: str
    place: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    view_nbytes: int
    storage_id: int
    parameter: bool
    first: bool


def nodes(*outputs: Any) -> list[Any]:
    """The nodes below `outputs`, each once, in the order in which they were made."""
    seen: dict[Any, None] = {}
    for y in outputs:
        if y.node is not None:
            seen.update(dict.fromkeys(y.node.reachable()))
    return sorted(seen, key=lambda node: node.counter)


def saved(*outputs: Any) -> list[Saved]:
    """Every saved tensor of the graph below `outputs`, in the order of the tape."""
    rows: list[Saved] = []
    counted: set[int] = set()
    for node in nodes(*outputs):
        for s in node.saved or ():
            if s.array is None:
                continue
            owner = storage(s.array)
            rows.append(
                Saved(
                    op=node.op.name,
                    label=s.label,
                    place=node.place,
                    shape=s.array.shape,
                    dtype=str(s.array.dtype),
                    nbytes=owner.nbytes,
                    view_nbytes=s.array.nbytes,
                    storage_id=id(owner),
                    parameter=is_parameter(owner),
                    first=id(owner) not in counted,
                )
            )
            counted.add(id(owner))
    return rows


def saved_bytes(*outputs: Any) -> int:
    """The bytes that the graph below `outputs` holds, parameters aside.

    Σ over the distinct storages of its saved tensors of the storage's bytes. A buffer is
    counted once however many views or nodes share it, and as a whole even where a small
    view of it is saved (`memory.saved` shows both numbers). An input that the tape saves
    counts; after `backward()` the sum is 0.

    >>> import numpy as np, tinygrad_helix as th
    >>> x = th.Tensor(np.ones((4, 8)), requires_grad=True)
    >>> th.saved_bytes(x.exp().sum())
    256
    """
    return sum(s.nbytes for s in saved(*outputs) if s.first and not s.parameter)


def table(*outputs: Any) -> str:
    """`memory.saved` as text: a line per saved tensor, then the sum.

    A storage that an earlier line counted shows as `shared`, a parameter as `parameter`.
    """
    rows = saved(*outputs)
    lines = []
    for s in rows:
        size = f"{s.nbytes:,}"
        if s.parameter:
            size = "parameter"
        elif not s.first:
            size = "shared"
        elif s.view_nbytes != s.nbytes:
            size += f" (a view of {s.view_nbytes:,})"
        shape = "×".join(map(str, s.shape)) or "scalar"
        lines.append((f"{s.op}.{s.label}", shape, s.dtype, size, s.place))
    widths = [max((len(line[i]) for line in lines), default=0) for i in range(4)]
    text = [
        f"{name:<{widths[0]}}  {shape:>{widths[1]}}  {dtype:<{widths[2]}}  "
        f"{size:>{widths[3]}}  {place}"
        for name, shape, dtype, size, place in lines
    ]
    total = sum(s.nbytes for s in rows if s.first and not s.parameter)
    return "\n".join([*text, f"saved: {total:,} bytes"])


# --- events over time


class Event(NamedTuple):
    """One op forward, or one node backward, as the ledger saw it end.

    `bands` maps `op.label` to the counted bytes that the tape held under that name;
    `gradients` those of the leaf gradients that the sweep has made so far. `live` and
    `peak` are traced bytes (at the end, and the most since the event before), counted from
    where the recording began; both are 0 when nothing was traced. `node` is the counter of
    the op's node, None where none was made.
    """

    phase: str
    op: str
    place: str
    bands: dict[str, int]
    gradients: int
    live: int
    peak: int
    node: int | None = None


@dataclass(slots=True)
class Ledger:
    """What `with memory.record() as ledger:` collects: a list of events."""

    events: list[Event] = field(default_factory=list)
    start: int = 0
    _bands: Counter[str] = field(default_factory=Counter)
    _held: dict[int, list[Any]] = field(default_factory=dict)

    def hold(self, name: str, array: Any) -> None:
        """The tape saved `array` under `name`."""
        owner = storage(array)
        entry = self._held.get(id(owner))
        if entry is not None:
            entry[0] += 1
        elif id(owner) not in _parameters:
            key = id(owner)
            gone = weakref.ref(owner, lambda _: self._drop(key))  # without a sweep
            self._held[key] = [1, name, owner.nbytes, gone]
            self._bands[name] += owner.nbytes

    def release(self, array: Any) -> None:
        """The tape dropped one hold on `array`."""
        key = id(storage(array))
        entry = self._held.get(key)
        if entry is None:
            return
        entry[0] -= 1
        if entry[0] == 0:
            self._drop(key)

    def _drop(self, key: int) -> None:
        entry = self._held.pop(key, None)
        if entry is not None:
            self._bands[entry[1]] -= entry[2]

    def event(
        self,
        phase: str,
        op: str,
        place: str,
        gradients: int = 0,
        node: int | None = None,
    ) -> None:
        """An op (`phase` "forward") or a node's vjp ("backward") has ended."""
        live = peak = 0
        meter = current_meter()
        if meter.is_tracing():
            live, peak = (n - self.start for n in meter.live_and_peak())
            meter.reset_peak()
        bands = {name: n for name, n in self._bands.items() if n}
        self.events.append(Event(phase, op, place, bands, gradients, live, peak, node))


_ledger: ContextVar[Ledger | None] = ContextVar("ledger", default=None)
current_ledger = _ledger.get


@contextmanager
def record() -> Iterator[Ledger]:
    """Record an event for every op and every vjp inside the block.

    Where `tracemalloc` (or the meter of another device) is tracing, events carry measured
    bytes too (and its peak is reset at each event). The ledger itself allocates;
    measure time elsewhere.

    >>> import tinygrad_helix as th
    >>> x = th.ones(3, requires_grad=True)
    >>> with th.memory.record() as ledger:
    ...     x.exp().sum().backward()
    >>> [(e.phase, e.op) for e in ledger.events]
    [('forward', 'exp'), ('forward', 'sum'), ('backward', 'sum'), ('backward', 'exp')]
    """
    ledger = Ledger()
    meter = current_meter()
    if meter.is_tracing():
        meter.reset_peak()
        ledger.start = meter.live_and_peak()[0]
    token = _ledger.set(ledger)
    try:
        yield ledger
    finally:
        _ledger.reset(token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Record nothing inside the block, for work that belongs to an event of its own."""
    token = _ledger.set(None)
    try:
        yield
    finally:
        _ledger.reset(token)
