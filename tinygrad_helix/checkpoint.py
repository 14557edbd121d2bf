"""checkpoint: keep a function's arguments, and run it again when a sweep needs more."""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import memory
from .create import default_generator
from .errors import GraphError
from .modes import enable_grad, is_grad_enabled
from .op import Input, Op, apply
from .tape import SavedTensor, saved_tensor_hooks
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


class _Region:
    """What the nodes of one checkpointed call share: how to run it again, and what the
    second run has saved and no vjp has read yet."""

    def __init__(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.fn = fn
        # Tensors' places are filled from `saved` when it runs again.
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.generators = _generators(args, kwargs)
        self.states = [g.bit_generator.state for g in self.generators]
        self.needs: dict[int | str, bool] = {}  # by position or keyword
        self.saved: tuple[SavedTensor, ...] = ()
        self.count = 0
        self.values: dict[int, Any] = {}

    def pack(self, _: Tensor) -> "_Handle":
        self.count += 1
        return _Handle(self, self.count - 1)

    def value(self, number: int) -> Tensor:
        """The value that the first run saved under `number`; each is handed out once."""
        if number not in self.values:
            self.run_again()
        return self.values.pop(number)

    def run_again(self) -> None:
        args, kwargs = list(self.args), dict(self.kwargs)
        for (place, need), s in zip(self.needs.items(), self.saved, strict=True):
            _put(args, kwargs, place, Tensor(s.read(), requires_grad=need))
        values: list[Tensor] = []

        def keep(t: Tensor) -> int:
            values.append(t)
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
        if len(values) != self.count:
            raise GraphError(
                f"checkpoint ran {_name(self.fn)} again for a sweep and it saved "
                f"{len(values)} values, {self.count} the first time. It must do the same "
                "both times: no change of what it closes over, no generator of its own."
            )
        self.values = dict(enumerate(values))


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

    Raises GraphError in the sweep if the second run saves other values than the first.

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
    with saved_tensor_hooks(region.pack, lambda handle: handle.region.value(handle.number)):
        return fn(*inside, **named)
