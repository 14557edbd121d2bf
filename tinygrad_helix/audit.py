"""`audit`: does an op keep exactly what it reads, and say so?

It takes an op's saved tensors one by one: is each read, is none written, is nothing kept
beside them. For the op's mathematics there is `gradcheck`.
"""

import os.path
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import memory
from .accounting import meter_of
from .backend import backend_of, is_array
from .calls import Call, Finding, calls_of
from .differentiate import grad
from .errors import GraphError
from .modes import enable_grad, no_grad
from .op import Input, Op, Output, caller, run
from .substitutes import halves, others
from .sweep import vjp_of
from .tape import place_text
from .tensor import Tensor

__all__ = ["Audit", "Finding", "audit"]

_OWN = re.escape(os.path.dirname(__file__) + os.sep)


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


def audit(op: Any, *inputs: Any, **attrs: Any) -> Audit:
    """Whether an op keeps exactly what it reads, and says so.

    `op` is an Op class, applied to `inputs` (Tensors, arrays, numbers, None) and `attrs`:
    once with the gradients that they ask for, once with each alone. Or it is a function
    of Tensors; then each op that it applies is audited on the arrays that it got there.
    Findings, by what they say:

    - not read: a saved value, or half of it along an axis, was replaced (floats by NaN,
      ints by others of the same array, bools by their negation) and no gradient changed
      (if that is so for some wanted gradients only, it says for which);
    - kept outside the tape: more bytes stay alive after forward than the tape and the
      outputs hold, measured by NumPy's tracemalloc domain (on CUDA by a MemoryHook);
    - a view: a saved array of the op's own keeps a larger buffer alive;
    - saved under no_grad: forward made something to keep, or it stayed alive, although
      no input needs a gradient;
    - written by forward: an input, even if with the values that it had;
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
        place = place_text(caller())
        wants = dict.fromkeys([needs, *alone])
        calls = [Call(op, arrays, wanted, attrs, place) for wanted in wants]
    else:
        calls = calls_of(op, inputs, attrs)
    if not any(any(call.needs) for call in calls):
        raise GraphError(
            "audit got nothing that the tape records. Give at least one input a Tensor of "
            "floats with requires_grad=True."
        )
    found: dict[Any, tuple[Finding, list[str]]] = {}
    with enable_grad():
        for call in calls:
            for f in _faults(call):
                # Findings that differ in a number of bytes are one.
                key = f.op, f.label, re.split(r"\d", f.what)[0]
                found.setdefault(key, (f, []))[1].append(call.wanted())
    names = dict.fromkeys(call.op.name for call in calls)
    return Audit(tuple(names), tuple(_with_wanted(*pair) for pair in found.values()))


def _with_wanted(f: Finding, wanted: list[str]) -> Finding:
    """A value that is not read, with the gradients that were wanted if not all were."""
    if "not read" not in f.what or "" in wanted:
        return f
    listed = ", or only of ".join(dict.fromkeys(wanted))
    return replace(f, what=f"{f.what}, when only the gradient of {listed} is wanted")


def _faults(call: Call) -> Iterator[Finding]:
    try:
        yield from _written_by_forward(call)
        yield from _beside_the_tape(call)
        leaves, ys = call.apply(call.copies())
        node = next((y.node for y in ys if y.node is not None), None)
        if node is None:
            return
        yield from _bytes(call, node, ys)
        yield from _sweeps(call, node, leaves, ys)
        yield from _unread(call, node, ys)
    except GraphError as error:
        inside = _OWN + r"calls\.py:\d+"  # where this package repeats the call
        text = re.sub(rf" \(in {inside}\)", "", str(error))
        text = re.sub(inside, lambda _: call.place, text)
        yield call.finding("", "breaks the contract", 0, text)


def _written_by_forward(call: Call) -> Iterator[Finding]:
    """Inputs that forward writes to: as arrays that refuse it, and by their bytes."""

    def writes(*which: int) -> bool:
        arrays = call.copies()
        locked = [arrays[i] for i in which]
        before = [_bits(a) for a in locked]
        backend = backend_of(locked[0])
        for a in locked:
            if isinstance(a, np.ndarray):  # CuPy has no read-only arrays
                a.flags.writeable = False
        try:
            run(call.op, backend, arrays, call.needs, call.attrs)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            return True
        return [_bits(a) for a in locked] != before

    inputs = [i for i, a in enumerate(call.arrays) if is_array(a)]
    for i in inputs if writes(*inputs) else ():
        if writes(i):
            yield call.finding(
                call.names()[i],
                "written by forward",
                call.arrays[i].nbytes,
                "Compute into an array of forward's own.",
            )


def _beside_the_tape(call: Call) -> Iterator[Finding]:
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
    backend = backend_of(next(a for a in arrays if is_array(a)))
    unwanted = (False,) * len(arrays)
    (y, saved), _ = run(call.op, backend, arrays, unwanted, call.attrs)
    known = [*arrays, *(y if isinstance(y, tuple) else (y,))]
    owners = {id(memory.storage(a)) for a in known if is_array(a)}
    for label, value in saved.items():
        if is_array(value) and id(memory.storage(value)) not in owners:
            yield call.finding(label, "saved under no_grad", value.nbytes, drop)


def _alive(call: Call) -> int:
    """Bytes alive after forward, less those of the tape and the outputs.

    The inputs are copied under tracing and dropped, so that one that the op holds on to
    elsewhere counts too; what an earlier call left is not traced and cannot offset it.
    """
    meter = meter_of(call.arrays)
    with meter.tracing():
        meter.forget()
        ys = call.apply(call.copies())[1]
        nodes = {y.node for y in ys if y.node is not None}
        held = [y.data for y in ys]
        held += [s.array for node in nodes for s in node.saved or () if s.array is not None]
        owners = {id(memory.storage(a)): memory.storage(a) for a in held}
        sizes = (max(owner.nbytes, meter.empty_bytes) for owner in owners.values())
        return meter.array_bytes() - sum(sizes)


def _bytes(call: Call, node: Any, ys: tuple[Tensor, ...]) -> Iterator[Finding]:
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
    call: Call, node: Any, leaves: list[Any], ys: tuple[Tensor, ...]
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


def _unread(call: Call, node: Any, ys: tuple[Tensor, ...]) -> Iterator[Finding]:
    """Replace each half of each saved value: some gradient must change."""
    kept = {s.label: s.value for s in node.saved}
    dys = _cotangents(ys)

    def gradients(label: str = "", value: Any = None) -> list[bytes | None]:
        saved: dict[str, Any] = dict.fromkeys(call.op.saves)
        saved |= {name: v.copy() if is_array(v) else v for name, v in kept.items()}
        saved |= {label: value} if label else {}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = vjp_of(node)(
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
        for other in others(value, part):
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
        for parts in halves(value):
            missed = [name for name, part in parts if not is_read(label, value, part)]
            if len(missed) == len(parts):
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
