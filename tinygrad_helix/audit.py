"""`audit`: does an op keep exactly what it reads, and say so?

It takes an op's saved tensors one by one: is each read, is none written, is nothing kept
beside them. For the op's mathematics there is `gradcheck`.
"""

import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import memory
from .accounting import numpy_bytes, tracing
from .backend import array_module, backend_of, is_array
from .differentiate import grad
from .errors import GraphError
from .gradcheck import float_outputs
from .modes import enable_grad, no_grad
from .op import Input, Op, Output, _caller, apply
from .tensor import Tensor

__all__ = ["Audit", "Finding", "audit"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of an op: what it is, of which label, how many bytes, how to mend it."""

    op: str
    label: str
    what: str
    nbytes: int
    fix: str
    place: str

    def __str__(self) -> str:
        name = f"{self.op}.{self.label}" if self.label else self.op
        size = f" ({self.nbytes:,} bytes)" if self.nbytes else ""
        return f"{name}: {self.what}{size}, at {self.place}. {self.fix}"


@dataclass(frozen=True, slots=True, repr=False)
class Audit:
    """What `audit` found: `ops`, the names of the ops looked at, and `findings`."""

    ops: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings

    def __repr__(self) -> str:
        n = len(self.findings)
        head = f"audit of {', '.join(self.ops)}: {n or 'no'} finding{'s' if n != 1 else ''}"
        return "\n  ".join([head, *map(str, self.findings)])


@dataclass(frozen=True, slots=True)
class _Call:
    op: type[Op]
    arrays: tuple[Any, ...]
    needs: tuple[bool, ...]
    attrs: dict[str, Any]
    place: str

    def copies(self) -> list[Any]:
        """Copies of the arrays: one a buffer's array, however often it was passed."""
        made: dict[int, Any] = {}
        for a in self.arrays:
            if is_array(a) and id(a) not in made:
                made[id(a)] = backend_of(a).copy(a)
                if memory.is_parameter(a):
                    memory.mark_parameter(made[id(a)])
        return [made[id(a)] if is_array(a) else a for a in self.arrays]

    def apply(self, arrays: list[Any]) -> tuple[list[Any], tuple[Tensor, ...]]:
        """The inputs as leaves, and the outputs."""
        leaves = [
            Tensor(a, requires_grad=need) if is_array(a) else a
            for a, need in zip(arrays, self.needs, strict=True)
        ]
        y = apply(self.op, *leaves, **self.attrs)
        return leaves, y if isinstance(y, tuple) else (y,)

    def finding(self, label: str, what: str, nbytes: int, fix: str) -> Finding:
        return Finding(self.op.name, label, what, nbytes, fix, self.place)


def audit(op: Any, *inputs: Any, **attrs: Any) -> Audit:
    """Whether an op keeps exactly what it reads, and says so.

    `op` is an Op class, applied to `inputs` (Tensors, arrays, numbers, None) and `attrs`:
    once with the gradients that they ask for, once with each alone. Or it is a function
    of Tensors; then each op that it applies is audited on the arrays that it got there.
    Findings, by what they say:

    - not read: a saved value, or half of it along an axis, was replaced (floats by NaN,
      ints by others of the same array, bools by their negation) and no gradient changed;
    - kept outside the tape: more bytes stay alive after forward than the tape and the
      outputs hold, measured by NumPy's tracemalloc domain;
    - a view: a saved array of the op's own keeps a larger buffer alive;
    - saved under no_grad: forward made something to keep, or it stayed alive, although
      no input needs a gradient;
    - written by the vjp: a saved value, an input, an output or a cotangent has changed;
    - other bits in a second sweep over the retained graph;
    - predicted otherwise: `predict` and the bytes on the tape differ for a label
      (parameters aside);
    - breaks the contract: the tape refused what forward or vjp returned.

    Faults are findings, not exceptions. Choose values at which everything matters: all
    branches taken, three steps or more of a recurrence. The op runs a few dozen times;
    traces that `tracemalloc` holds are cleared.

    >>> import tinygrad_helix as th
    >>> class Double(th.Op):
    ...     saves = {"x": th.Input(0)}
    ...     @staticmethod
    ...     def forward(xp, x, *, needs):
    ...         return x + x, {"x": x}
    ...     @staticmethod
    ...     def vjp(dy, saved, *, needs, inputs):
    ...         return (dy + dy,)
    >>> report = th.audit(Double, th.ones(4, requires_grad=True))
    >>> [(f.label, f.what, f.nbytes) for f in report.findings]
    [('x', 'saved and not read: all of it', 16)]
    """
    if isinstance(op, type) and issubclass(op, Op):
        arrays = tuple(x.data if isinstance(x, Tensor) else x for x in inputs)
        needs = tuple(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        alone = [tuple(j == i for j in range(len(needs))) for i, n in enumerate(needs) if n]
        place = "{}:{}".format(*_caller())
        wants = dict.fromkeys([needs, *alone])
        calls = [_Call(op, arrays, wanted, attrs, place) for wanted in wants]
    else:
        calls = _calls_of(op, inputs, attrs)
    if not any(any(call.needs) for call in calls):
        raise GraphError(
            "audit got nothing that the tape records. Give at least one input a Tensor of "
            "floats with requires_grad=True."
        )
    found: dict[Any, Finding] = {}
    with enable_grad():
        for call in calls:
            for f in _faults(call):
                found.setdefault((f.op, f.label, f.what), f)
    names = dict.fromkeys(call.op.name for call in calls)
    return Audit(tuple(names), tuple(found.values()))


def _calls_of(fn: Callable[..., Any], inputs: Any, attrs: Any) -> list[_Call]:
    """The recorded calls of ops that `fn` makes; equal ones (but for values) once."""
    with enable_grad():
        ops = {node.op for node in memory.nodes(*float_outputs(fn(*inputs, **attrs)))}
        calls: dict[Any, _Call] = {}
        with _watched(ops, calls):
            fn(*inputs, **attrs)
    return list(calls.values())


@contextmanager
def _watched(ops: set[type[Op]], calls: dict[Any, _Call]) -> Iterator[None]:
    """Within the block each forward of `ops` is noted in `calls`."""
    bound = {op: op.forward for op in ops}  # before any changes: ops inherit from ops
    own = {op: op.__dict__.get("forward") for op in ops}

    def watch(op: type[Op]) -> Callable[..., Any]:
        def forward(xp: Any, *arrays: Any, needs: tuple[bool, ...], **attrs: Any) -> Any:
            if any(needs):
                kinds = tuple((a.shape, a.dtype.str) if is_array(a) else a for a in arrays)
                key = (op, kinds, needs, tuple(attrs.items()))
                place = "{}:{}".format(*_caller())
                calls.setdefault(key, _Call(op, arrays, needs, attrs, place))
            return bound[op](xp, *arrays, needs=needs, **attrs)

        return forward

    try:
        for op in ops:
            op.forward = staticmethod(watch(op))
        yield
    finally:
        for op, forward in own.items():
            if forward is None:
                del op.forward
            else:
                op.forward = forward


def _faults(call: _Call) -> Iterator[Finding]:
    try:
        yield from _beside_the_tape(call)
        leaves, ys = call.apply(call.copies())
        node = next((y.node for y in ys if y.node is not None), None)
        if node is None:
            return
        yield from _bytes(call, node, ys)
        yield from _sweeps(call, node, leaves, ys)
        yield from _unread(call, node, ys)
    except GraphError as error:
        yield call.finding("", "breaks the contract", 0, str(error))


def _beside_the_tape(call: _Call) -> Iterator[Finding]:
    """What stays alive after forward, with and without recording."""
    alive = _alive(call)
    if alive > 0:
        declare = "Return it in `saved` under a label of its own, or do not keep it."
        yield call.finding("", "kept outside the tape", alive, declare)
    with no_grad():
        alive = _alive(call)
    drop = "Return None for it when no entry of `needs` asks for it."
    if alive > 0:
        yield call.finding("", "saved under no_grad", alive, drop)
    arrays = call.copies()
    xp = array_module(next(a for a in arrays if is_array(a)))
    y, saved = call.op.forward(xp, *arrays, needs=(False,) * len(arrays), **call.attrs)
    known = [*arrays, *(y if isinstance(y, tuple) else (y,))]
    owners = {id(memory.storage(a)) for a in known if is_array(a)}
    for label, value in saved.items():
        if is_array(value) and id(memory.storage(value)) not in owners:
            yield call.finding(label, "saved under no_grad", value.nbytes, drop)


def _alive(call: _Call) -> int:
    """Bytes alive after forward, less those of the tape and the outputs.

    The inputs are copied under tracing and dropped, so that one that the op holds on to
    elsewhere counts too; what an earlier call left is not traced and cannot offset it.
    """
    with tracing():
        tracemalloc.clear_traces()
        ys = call.apply(call.copies())[1]
        nodes = {y.node for y in ys if y.node is not None}
        held = [y.data for y in ys]
        held += [s.array for node in nodes for s in node.saved or () if s.array is not None]
        owners = {id(memory.storage(a)): memory.storage(a) for a in held}
        # An empty array takes one byte.
        return numpy_bytes() - sum(max(owner.nbytes, 1) for owner in owners.values())


def _bytes(call: _Call, node: Any, ys: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Counted bytes by label, against `predict` and against what the values span."""
    rows = memory.saved(*ys)
    counted = {s.label: s.nbytes for s in rows if s.first and not s.parameter}
    for s in node.saved:
        if s.array is not None and not isinstance(s.kind, (Input, Output)):
            wide = memory.storage(s.array).nbytes
            if wide > s.array.nbytes:
                yield call.finding(
                    s.label,
                    f"a view of {s.array.nbytes:,} bytes of a larger buffer",
                    wide,
                    "Save a copy, or the array that owns the buffer.",
                )
    predict = getattr(call.op, "predict", None)
    if predict is None:
        return
    stated = predict(node.inputs, node.needs, **call.attrs)
    for label in {**counted, **stated}:
        want, got = stated.get(label, 0), counted.get(label, 0)
        if want != got:
            yield call.finding(
                label,
                f"predicted otherwise: {want:,} bytes",
                got,
                "Mend `predict`, or mark a parameter as one (nn.Parameter).",
            )


def _sweeps(
    call: _Call, node: Any, leaves: list[Any], ys: tuple[Tensor, ...]
) -> Iterator[Finding]:
    """Two sweeps over the retained graph: nothing written, the same bits twice."""
    xs = [x for x, need in zip(leaves, call.needs, strict=True) if need]
    roots = [y for y in ys if y.requires_grad]
    dys = _cotangents(roots)
    watched = {("saved", s.label): s.array for s in node.saved if s.array is not None}
    watched |= {("input", i): x.data for i, x in enumerate(leaves) if isinstance(x, Tensor)}
    watched |= {("output", i): y.data for i, y in enumerate(ys)}
    watched |= {("cotangent", i): dy for i, dy in enumerate(dys)}
    before = {key: _bits(a) for key, a in watched.items()}
    first, second = (
        [_bits(g) for g in grad(roots, xs, dys, retain_graph=True, allow_unused=True)]
        for _ in range(2)
    )
    written: set[int] = set()
    for (kind, which), a in watched.items():
        if _bits(a) != before[kind, which] and id(a) not in written:
            written.add(id(a))
            yield call.finding(
                which if kind == "saved" else f"{kind} {which}",
                "written by the vjp",
                a.nbytes,
                "Compute into an array of the vjp's own.",
            )
    if first != second:
        yield call.finding(
            "",
            "other bits in a second sweep",
            0,
            "A vjp depends on its arguments alone: it writes to none and keeps no state.",
        )


def _cotangents(ys: Sequence[Tensor]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [backend_of(y.data).asarray(rng.standard_normal(y.shape), y.dtype) for y in ys]


def _bits(a: Any) -> bytes | None:
    """The bytes of an array or Tensor, None for None."""
    a = a.data if isinstance(a, Tensor) else a
    return backend_of(a).to_numpy(a).tobytes() if is_array(a) else None


def _unread(call: _Call, node: Any, ys: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Replace each half of each saved value: some gradient must change."""
    kept = {s.label: s.value for s in node.saved}
    dys = _cotangents(ys)

    def gradients(label: str = "", value: Any = None) -> list[bytes | None]:
        saved: dict[str, Any] = dict.fromkeys(call.op.saves)
        saved |= {name: v.copy() if is_array(v) else v for name, v in kept.items()}
        saved |= {label: value} if label else {}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = call.op.vjp(
                tuple(dy.copy() for dy in dys) if len(dys) > 1 else dys[0].copy(),
                saved,
                needs=call.needs,
                inputs=node.inputs,
                **call.attrs,
            )
        wanted = (r for r, need in zip(results, call.needs, strict=True) if need)
        return [_bits(np.asarray(r) if isinstance(r, np.generic) else r) for r in wanted]

    clean = gradients()

    def is_read(label: str, value: Any, part: Any) -> bool:
        for other in _others(value, part):
            try:
                if gradients(label, other) != clean:
                    return True
            except Exception:  # it was read, or it would not have been refused
                return True
        return False

    for label, value in kept.items():
        if not is_array(value) or value.size == 0:
            continue
        unread = ""
        for halves in _halves(value):
            missed = [name for name, part in halves if not is_read(label, value, part)]
            if len(missed) == len(halves):
                unread = "all of it"
                break
            unread = unread or " ".join(missed)
        if unread:
            yield call.finding(
                label,
                f"saved and not read: {unread}",
                value.nbytes if unread == "all of it" else value.nbytes // 2,
                "Keep what the vjp reads, and only where `needs` wants what reads it.",
            )


def _halves(value: Any) -> Iterator[list[tuple[str, Any]]]:
    """Both halves along the first and the last axis that have two elements or more."""
    axes = [i for i, n in enumerate(value.shape) if n > 1]
    if not axes:
        yield [("all of it", ...)]
    for axis in dict.fromkeys(axes[:1] + axes[-1:]):
        middle = value.shape[axis] // 2
        lead = (slice(None),) * axis
        yield [
            (f"the first half of axis {axis}", (*lead, slice(None, middle))),
            (f"the second half of axis {axis}", (*lead, slice(middle, None))),
        ]


def _others(value: Any, part: Any) -> Iterator[Any]:
    """Copies of `value` that differ in `part`, the likeliest to matter first."""
    xp = array_module(value)
    elsewhere = xp.flip(value)
    if value.dtype.kind == "f":
        candidates = [xp.full_like(value, xp.nan), elsewhere]
    elif value.dtype.kind == "b":
        candidates = [~value]
    else:
        candidates = [elsewhere, -value, value + 1]
    for candidate in candidates:
        other = value.copy()
        other[part] = candidate[part]
        yield other
