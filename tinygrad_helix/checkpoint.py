"""checkpoint: keep a function's arguments, and run it again when a sweep needs more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from . import memory
from .backend import is_array
from .create import default_generator
from .errors import GraphError, InPlaceModificationError
from .modes import enable_grad, is_grad_enabled
from .op import Input, Op, apply
from .tape import SavedTensor, packing, saved_tensor_hooks, swept, watching
from .tensor import Tensor

__all__ = ["checkpoint"]

_MAX_ARGUMENTS = 16


class Checkpoint(Op):
    """yᵢ = xᵢ, the same arrays      dxᵢ = dyᵢ      keeps all xᵢ for the second run."""

    saves = {f"x{i or ''}": Input(i) for i in range(_MAX_ARGUMENTS)}

    @staticmethod
    def forward(xp, *arrays, needs):
        return arrays, {f"x{i or ''}": x for i, x in enumerate(arrays)}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy if isinstance(dy, tuple) else (dy,)


def _generators(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[np.random.Generator]:
    given = [*args, *kwargs.values()]
    return [default_generator(), *(g for g in given if isinstance(g, np.random.Generator))]


class _Seen(NamedTuple):
    """What is known of a saved value that was dropped, to compare the second run's with."""

    name: str  # "op.label"
    shape: tuple[int, ...]
    dtype: Any

    @staticmethod
    def of(t: Tensor) -> "_Seen":
        return _Seen(packing.get(), t.shape, t.dtype)

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}"


class _Reads:
    """The storages that ops of a function read and did not make: its arguments and what it
    closes over, each with its version when the function had ended."""

    def __init__(self) -> None:
        self.made: set[int] = set()
        self.storages: dict[int, tuple[Any, str]] = {}  # a weak reference, and who reads
        self.versions: dict[int, int] = {}

    def watch(self, op: type[Op], operands: Any, results: Any) -> None:
        for array in operands:
            if is_array(array):
                owner = memory.storage(array)
                if id(owner) not in self.made and id(owner) not in self.storages:
                    self.storages[id(owner)] = ref(owner), op.name
        owners = {id(memory.storage(array)) for array in results}
        self.made |= owners - self.storages.keys()

    @contextmanager
    def watching(self) -> Iterator[None]:
        outer = watching.get()

        def watch(*args: Any) -> None:
            self.watch(*args)
            if outer is not None:
                outer(*args)

        token = watching.set(watch)
        try:
            yield
        finally:
            watching.reset(token)
            self.end()

    def end(self) -> None:
        """The function has run: what it wrote itself, it will write again."""
        self.made.clear()
        for key, (storage, _) in self.storages.items():
            owner = storage()
            if owner is not None:
                self.versions[key] = memory.version(owner)

    def check(self, what: str) -> None:
        """Raise if one of them was written in place since the function ended."""
        for key, (storage, reader) in self.storages.items():
            owner = storage()
            if owner is not None and memory.version(owner) != self.versions[key]:
                raise InPlaceModificationError(
                    f"checkpoint has to run {what} again for a sweep, and an array "
                    f"{owner.shape} {owner.dtype} that {reader} reads in it was written in "
                    "place since. Write to a copy, or after the sweep."
                )


class _Region:
    """What the nodes of one checkpointed call share: how to run it again, and what the
    first run saved. What the second run saves, the sweep keeps until its vjps read it."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.fn = fn
        # Tensors' places are filled from `saved` when it runs again.
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.generators = _generators(args, kwargs)
        self.states = [g.bit_generator.state for g in self.generators]
        self.needs: dict[int | str, bool] = {}  # by position or keyword
        self.saved: tuple[SavedTensor, ...] = ()
        self.seen: list[_Seen] = []  # by the first run
        self.reads = _Reads()

    def pack(self, t: Tensor) -> "_Handle":
        self.seen.append(_Seen.of(t))
        return _Handle(self, len(self.seen) - 1)

    def value(self, number: int) -> Tensor:
        """The value that the first run saved under `number`; each is handed out once."""
        sweep = swept.get()
        values = {} if sweep is None else sweep.setdefault(self, {})
        if number not in values:
            values.update(enumerate(self.run_again()))
        return values.pop(number)

    def run_again(self) -> list[Tensor]:
        """Everything that a second run saves."""
        self.reads.check(_name(self.fn))
        args, kwargs = list(self.args), dict(self.kwargs)
        for (place, need), s in zip(self.needs.items(), self.saved, strict=True):
            _put(args, kwargs, place, Tensor(s.read(), requires_grad=need))
        values: list[Tensor] = []
        seen: list[_Seen] = []

        def keep(t: Tensor) -> int:
            values.append(t)
            seen.append(_Seen.of(t))
            return len(values) - 1

        now = [g.bit_generator.state for g in self.generators]
        try:
            for g, state in zip(self.generators, self.states, strict=True):
                g.bit_generator.state = state
            hooks = saved_tensor_hooks(keep, values.__getitem__)
            with enable_grad(), hooks, memory.unrecorded():  # a part of the node's event
                self.fn(*args, **kwargs)
        finally:
            for g, state in zip(self.generators, now, strict=True):
                g.bit_generator.state = state
            self.reads.end()
        self.compare(seen)
        return values

    def compare(self, seen: list[_Seen]) -> None:
        """Raise unless the second run has saved what the first did, as far as is known."""
        found = ""
        for i, (first, second) in enumerate(zip(self.seen, seen, strict=False)):
            if first != second:
                found = f"{second} as value {i}, {first} the first time"
                break
        if not found and len(seen) != len(self.seen):
            found = f"{len(seen)} values, {len(self.seen)} the first time"
        if found:
            raise GraphError(
                f"checkpoint ran {_name(self.fn)} again for a sweep and it saved {found}. "
                "It must do the same both times: no change of what it closes over, no "
                "generator of its own."
            )


class _Handle:
    """Stands on the tape in the place of one saved value of a region."""

    __slots__ = ("number", "region")

    def __init__(self, region: _Region, number: int) -> None:
        self.region = region
        self.number = number


def _put(args: list[Any], kwargs: dict[str, Any], place: int | str, value: Any) -> None:
    if isinstance(place, int):
        args[place] = value
    else:
        kwargs[place] = value


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def checkpoint(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """fn(*args, **kwargs), keeping only its Tensor arguments for the backward pass.

    Keyword arguments count as positional ones do.

    What the ops inside would save is dropped, and made again by running `fn` once more
    when a sweep first reads it: bytes of the arguments instead of bytes of all
    activations, for one more forward pass. The arguments stand on the tape as
    `checkpoint.x`, `checkpoint.x1`, …; what `fn` closes over is kept as it is. Works under
    `grad`, with `create_graph`, nested, and with random numbers from the package's
    generator or one that is among the arguments (their state is put back for the second
    run). If no argument requires a gradient, the arguments are held all the same, but off
    the tape.

    The second run must do as the first did. The sweep raises GraphError where it saves
    other values (another number of them, another op, shape or dtype), and
    InPlaceModificationError where an array that an op in it reads, be it an argument's or
    closed over, was written in place since. Values are not compared: that `fn` takes
    another number, or another Tensor, is not seen. What a second run makes is kept until
    the sweep ends, or all of it has been read.

    Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016.

    >>> import tinygrad_helix as th
    >>> x = th.ones(100, requires_grad=True)
    >>> f = lambda x: x.exp().tanh().sigmoid()
    >>> th.saved_bytes(f(x)), th.saved_bytes(th.checkpoint(f, x))
    (1200, 400)
    """
    given: dict[int | str, Any] = dict(enumerate(args)) | kwargs
    places = [i for i, a in given.items() if isinstance(a, Tensor)]
    if len(places) > _MAX_ARGUMENTS:
        raise GraphError(
            f"checkpoint of {_name(fn)} got {len(places)} Tensor arguments; at most "
            f"{_MAX_ARGUMENTS} work. Let it close over parameters instead."
        )
    if not is_grad_enabled():
        return fn(*args, **kwargs)
    region = _Region(fn, args, kwargs)
    inside, named = list(args), dict(kwargs)
    if any(given[i].requires_grad for i in places):
        entered = apply(Checkpoint, *(given[i] for i in places))
        node = entered[0].node or next(t.node for t in entered if t.node is not None)
        region.saved = node.saved
        for i, t in zip(places, entered, strict=True):
            _put(inside, named, i, t if given[i].requires_grad else given[i])
            region.needs[i] = given[i].requires_grad
            _put(region.args, region.kwargs, i, None)
    hooks = saved_tensor_hooks(region.pack, lambda h: h.region.value(h.number))
    with hooks, region.reads.watching():
        return fn(*inside, **named)
