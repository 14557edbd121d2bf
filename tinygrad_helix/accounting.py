"""Measuring what a function keeps and how high it peaks, by NumPy's own allocations.

Three numbers are to agree for what a graph keeps: *predicted* by a formula of the shapes,
*counted* over the storages on the tape (`memory.saved_bytes`), and *measured* here: the
bytes that NumPy gives back when the graph is dropped.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import memory
from .backend import backend_of, is_array
from .errors import GraphError
from .meter import Meter, numpy_meter
from .modes import no_grad
from .op import Input
from .sweep import Sweep
from .tensor import Tensor

__all__ = ["Profile", "measure_saved", "numpy_bytes", "profile", "tracing"]


tracing = numpy_meter.tracing
numpy_bytes = numpy_meter.array_bytes


def meter_of(inputs: Iterable[Any]) -> Meter:
    """The meter of the device on which Tensors or arrays among `inputs` are: NumPy's,
    unless one is elsewhere."""
    found = [backend_of(a) for a in map(_array, inputs) if a is not None]
    return next((b.meter for b in found if b.name != "cpu"), numpy_meter)


def _tensors(value: Any) -> list[Tensor]:
    """The Tensors in a function's result: one, or a tuple, list or dict of them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    return []


def _array(x: Any) -> Any:
    """The array of a Tensor or array, None of anything else."""
    return x.data if isinstance(x, Tensor) else x if is_array(x) else None


def _fresh(inputs: Mapping[str, Any], parameters: frozenset[str]) -> dict[str, Any]:
    """The inputs with every array copied that is not a parameter's.

    Tensors are new leaves. One Tensor under two names stays one, and arrays that share a
    storage share its copy (on CUDA each has a copy of its own).
    """
    for name in parameters & inputs.keys():
        memory.mark_parameter(_array(inputs[name]))
    arrays = {id(a): a for a in map(_array, inputs.values()) if a is not None}
    copies = _copies([a for a in arrays.values() if not memory.is_parameter(a)])
    made: dict[int, Any] = {}
    for x in inputs.values():
        array = _array(x)
        if array is not None and id(x) not in made:
            data = copies.get(id(array), array)
            made[id(x)] = data
            if isinstance(x, Tensor):
                made[id(x)] = Tensor(data, requires_grad=x.requires_grad)
    return {name: made.get(id(x), x) for name, x in inputs.items()}


def _copies(arrays: list[Any]) -> dict[int, Any]:
    """A copy of every array, by its id. Where several share a storage (that lies in one
    piece), it is copied as a whole, once, and they are views of the copy."""
    copies: dict[int, Any] = {}
    sharing: dict[int, list[Any]] = {}
    for array in arrays:
        sharing.setdefault(id(memory.storage(array)), []).append(array)
    for group in sharing.values():
        owner = memory.storage(group[0])
        whole = isinstance(owner, np.ndarray) and owner.size > 0
        if (
            len(group) > 1
            and whole
            and (owner.flags.c_contiguous or owner.flags.f_contiguous)
        ):
            flat = np.array(owner if owner.flags.c_contiguous else owner.T, order="C")
            for a in group:
                offset = a.ctypes.data - owner.ctypes.data
                copies[id(a)] = np.ndarray(a.shape, a.dtype, flat, offset, a.strides)
        else:
            copies |= {id(a): backend_of(a).copy(a) for a in group}
    return copies


def measure_saved(
    fn: Callable[..., Any], inputs: Mapping[str, Any], parameters: Any = ()
) -> int:
    """The bytes that the device gives back when the graph of `fn(**inputs)` is dropped.

    Every input array that is no parameter (named in `parameters`, or marked as one) is
    copied first and dropped after the forward pass, so that it counts exactly if the tape
    saves it. The outputs' own arrays are held meanwhile, unless the tape saves them too.
    The byte that NumPy allocates for an empty array is left out. On CUDA it is the bytes
    that CuPy's pool gets back, as they were asked for.

    >>> import tinygrad_helix as th
    >>> x = th.ones(8, 4, requires_grad=True)
    >>> th.accounting.measure_saved(lambda x: (x.exp() * x).sum(), {"x": x})
    256
    """
    meter = meter_of(inputs.values())
    with meter.tracing():
        fresh = _fresh(inputs, frozenset(parameters))
        outputs = _tensors(fn(**fresh))
        del fresh
        rows = memory.saved(*outputs)
        held = {s.storage_id for s in rows}
        empty = sum(s.first and s.nbytes == 0 and not s.parameter for s in rows)
        bare = [y.data for y in outputs if id(memory.storage(y.data)) not in held]
        before = meter.array_bytes()
        del outputs
        after = meter.array_bytes()
        del bare
    return max(0, before - after - empty * meter.empty_bytes)


@dataclass(frozen=True, slots=True)
class Profile:
    """One forward and backward pass of a function, measured.

    `ops` counts op nodes without getitem, `nodes` all. `peak_bytes` is the most that was
    alive, less gradients and inputs that the tape does not save; `peak_at` says in which
    phase and node that was, and the largest band (`op.label`) on the tape then.
    `transient_bytes`: the most alive during the backward pass, less the gradients that it
    had made by then, less what was alive when it began. `workspace_bytes`: what stays
    allocated when everything has been dropped. `no_grad_peak_bytes`: the peak of the
    forward pass alone under no_grad, inputs aside. `saved_tensors` and
    `storages` count what the tape saved and the distinct buffers behind it, parameters
    aside. `heights` are the (peak, live) bytes of each event as `peak_bytes` counts
    them; `graph` is what `describe` made of the graph.
    """

    ops: int
    nodes: int
    saved_tensors: int
    storages: int
    counted: int
    measured: int
    predicted: int | None
    bands: dict[str, int]
    peak_bytes: int
    peak_at: dict[str, str]
    transient_bytes: int
    workspace_bytes: int
    no_grad_peak_bytes: int
    events: list[memory.Event]
    heights: list[tuple[int, int]]
    graph: Any


def _predicted(nodes: list[Any]) -> int | None:
    """Σ of what the ops themselves state, where every op that saves states it. An input
    that a node before has saved, or that is a parameter, is no new storage."""
    total = 0
    seen: set[int] = set()
    for node in nodes:
        predict = getattr(node.op, "predict", None)
        if predict is not None:
            held = {s.label: s.array for s in node.saved if s.array is not None}
            for label, size in predict(node.inputs, node.needs, **node.attrs).items():
                array = held.get(label)
                known = array is not None and (
                    id(memory.storage(array)) in seen or memory.is_parameter(array)
                )
                if not (known and isinstance(node.op.saves.get(label), Input)):
                    total += size
                if array is not None:
                    seen.add(id(memory.storage(array)))
        elif any(
            s.array is not None and not memory.is_parameter(s.array) for s in node.saved
        ):
            return None
    return total


def profile(
    fn: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    parameters: Any = (),
    cotangent: Any = None,
    describe: Callable[[list[Tensor], dict[str, Any]], Any] | None = None,
) -> Profile:
    """Measure `fn(**inputs)` and its backward pass: see Profile.

    Inputs are copied as in `measure_saved`, and no gradient lands anywhere. The backward
    pass starts at the first output, with `cotangent` (dy; ones if left out). Between the
    two passes `describe(outputs, inputs)` may look at the graph; it must keep nothing of
    it, and what it allocates is left out of all numbers.
    """
    names = frozenset(parameters)
    measured = measure_saved(fn, inputs, names)
    meter = meter_of(inputs.values())
    with meter.tracing():
        fresh = _fresh(inputs, names)
        with no_grad():
            start = meter.live_and_peak()[0]
            meter.reset_peak()
            outputs = fn(**fresh)
            no_grad_peak = meter.live_and_peak()[1] - start
        del outputs, fresh

        empty = meter.array_bytes()
        with memory.record() as ledger:
            fresh = _fresh(inputs, names)
            outputs = _tensors(fn(**fresh))
            rows = memory.saved(*outputs)
            held = {s.storage_id for s in rows}
            owned = [
                memory.storage(a) for a in map(_array, fresh.values()) if a is not None
            ]
            sizes = {id(a): a.nbytes for a in owned if not memory.is_parameter(a)}
            unsaved = sum(size for key, size in sizes.items() if key not in held)
            del owned
            nodes = memory.nodes(*outputs)
            predicted = _predicted(nodes)
            counts = sum(node.op.name != "getitem" for node in nodes), len(nodes)
            del nodes
            graph = None
            if describe is not None:
                before = meter.live_and_peak()[0]
                graph = describe(outputs, fresh)
                ledger.start += meter.live_and_peak()[0] - before
            forward_events = len(ledger.events)
            if not outputs:
                raise GraphError(
                    "the function returned no Tensor, so there is no backward pass to "
                    "measure. Return its result."
                )
            y = outputs[0]
            if y.node is None:
                raise GraphError(
                    "the function's first output does not require a gradient, so there is "
                    "no backward pass to measure. Set requires_grad=True on an input."
                )
            device = backend_of(y.data)
            if cotangent is None:
                seed = device.xp.ones(y.shape, y.dtype)
            else:
                seed = device.copied(device.asarray(cotangent))
            root = y.edge
            del outputs, fresh, y
            entry = meter.live_and_peak()[0] - ledger.start
            meter.reset_peak()
            sweep = Sweep([root], [seed], Tensor._of_edge)
            del root, seed
            gradients = sweep.run()
            del sweep
        del gradients
        workspace = max(0, meter.array_bytes() - empty)

    events = ledger.events
    heights = []
    for i, e in enumerate(events):
        apart = e.gradients + (unsaved if i < forward_events else 0)
        heights.append((e.peak - apart, e.live - apart))
    top = int(np.argmax([peak for peak, _ in heights]))
    # What a node has saved is there until its vjp has run.
    bands = events[top - 1 if top >= forward_events else top].bands
    transient = max(e.peak - e.gradients for e in events[forward_events:]) - entry
    return Profile(
        ops=counts[0],
        nodes=counts[1],
        saved_tensors=sum(not s.parameter for s in rows),
        storages=sum(s.first and not s.parameter for s in rows),
        counted=sum(s.nbytes for s in rows if s.first and not s.parameter),
        measured=measured,
        predicted=predicted,
        bands=_by_label(rows),
        peak_bytes=heights[top][0],
        peak_at={
            "phase": events[top].phase,
            "node": events[top].op,
            "label": max(bands, key=lambda name: bands[name]) if bands else "",
        },
        transient_bytes=max(0, transient),
        workspace_bytes=workspace,
        no_grad_peak_bytes=no_grad_peak,
        events=events,
        heights=heights,
        graph=graph,
    )


def _by_label(rows: list[memory.Saved]) -> dict[str, int]:
    bands: dict[str, int] = {}
    for s in rows:
        if s.first and not s.parameter:
            name = f"{s.op}.{s.label}"
            bands[name] = bands.get(name, 0) + s.nbytes
    return bands
