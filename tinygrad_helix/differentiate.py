"""`backward` and `grad`: what a sweep starts with, and where its results go."""

from collections.abc import Sequence
from typing import Any

from . import memory
from .backend import Backend, backend_of, is_writeable
from .errors import DeviceError, DTypeError, GraphError, NonScalarBackwardError, ShapeError
from .modes import enable_grad
from .sweep import Sum, Sweep, unreached
from .tape import Edge, Leaf
from .tensor import Tensor

__all__ = ["backward", "grad", "land", "start"]


def _cotangent(y: Tensor, given: Any, create_graph: bool) -> Any:
    """What a sweep from `y` starts with: an array, or a Tensor if it is recorded."""
    if not isinstance(y, Tensor):
        raise DTypeError(f"a sweep starts at a Tensor; got {type(y).__name__}.")
    if not y._requires_grad:
        raise GraphError(
            f"this Tensor of shape {y.shape} does not require a gradient: nothing below "
            "it does, or it was computed under no_grad(). Set requires_grad=True on a "
            "leaf before the forward pass."
        )
    backend = backend_of(y._data)
    if given is None:
        if y.size != 1:
            made = f" made by {y.node!r}" if y.node is not None else ""
            raise NonScalarBackwardError(
                f"a sweep from a Tensor of shape {y.shape}{made} needs a cotangent of "
                f"that shape, since only one element can do without. Pass backward(dy), "
                "or reduce it to one number, say by sum()."
            )
        given = backend.xp.ones(y.shape, y.dtype)
    if not isinstance(given, Tensor):
        given = Tensor(given)
    if given.shape != y.shape:
        raise ShapeError(
            f"the cotangent has shape {given.shape} and the Tensor that the sweep starts "
            f"at {y.shape}. They must be equal."
        )
    if backend_of(given._data) is not backend:
        raise DeviceError(f"the cotangent is on {given.device}, its Tensor on {y.device}.")
    if given.dtype != y.dtype:
        given = given.astype(y.dtype)
    return given if create_graph else given._data


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def start(
    outputs: Any, cotangents: Any, create_graph: bool = False
) -> tuple[list[Edge], list[Any]]:
    """The edges that a sweep starts at, and what it starts with there, checked."""
    ys = _listed(outputs)
    given = [None] * len(ys) if cotangents is None else _listed(cotangents)
    if len(given) != len(ys):
        raise GraphError(f"{len(ys)} outputs got {len(given)} cotangents. Give one each.")
    dys = [_cotangent(y, c, create_graph) for y, c in zip(ys, given, strict=True)]
    return [y.edge for y in ys], dys


def _own(total: Any, backend: Backend) -> Any:
    return total.value if total.owned else backend.copy(total.value)


def backward(
    outputs: Tensor | Sequence[Tensor], cotangents: Any = None, retain_graph: bool = False
) -> None:
    """Add Σ dy·∂y/∂leaf to `.grad` of every leaf below the outputs.

    One sweep, whatever the number of outputs; `cotangents` is one per output, or None
    where an output has one element. If it raises, no gradient has changed.
    """
    roots, dys = start(outputs, cotangents)
    sweep = Sweep(roots, dys, Tensor._of_edge, retain_graph=retain_graph)
    del dys
    land(sweep.run())


def land(arrived: dict[Any, Sum]) -> None:
    """Add what a sweep brought to the gradients of its leaves."""
    for to, total in arrived.items():
        if isinstance(to, Leaf):
            to.grad = _added(to.grad, total)
        else:  # a result whose gradient is retained
            node, index = to
            node.grads[index] = _added(node.grads[index], total)


def _added(grad: Tensor | None, total: Any) -> Tensor:
    """`grad`, with what a sweep brought added in place; a Tensor of its own if None."""
    if grad is None:
        return Tensor._of(_own(total, backend_of(total.value)), None)
    array = grad._data
    if not is_writeable(array):
        return Tensor._of(array + total.value, None)
    array += total.value
    memory.bump(array)
    return grad


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    cotangents: Any = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> tuple[Tensor | None, ...]:
    """Σ dy·∂y/∂x for every x of `inputs`, as a tuple; no `.grad` changes.

    Inputs may be leaves or results. Only what leads to them is computed. With
    `create_graph=True` the gradients are themselves on the tape, for second derivatives
    (and the graph is retained unless `retain_graph=False`). An input that the outputs do
    not depend on is an error, or None with `allow_unused=True`.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([2.0], requires_grad=True)
    >>> (g,) = th.grad(x**3, x, create_graph=True)
    >>> th.grad(g, x)[0].item()
    12.0
    """
    roots, dys = start(outputs, cotangents, create_graph)
    xs = _listed(inputs)
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor) or not x._requires_grad:
            what = f"shape {x.shape}" if isinstance(x, Tensor) else type(x).__name__
            raise GraphError(
                f"input {i} of grad() ({what}) requires no gradient. Set requires_grad="
                "True on it before the forward pass."
            )
    edges = [x.edge for x in xs]
    if not allow_unused:
        for i in unreached(roots, edges):  # before the sweep drops anything
            raise GraphError(
                f"the outputs do not depend on input {i} of grad() (shape {xs[i].shape}). "
                "Leave it out, or pass allow_unused=True to get None for it."
            )
    with enable_grad():
        sweep = Sweep(
            roots,
            dys,
            Tensor._of_edge,
            targets=edges,
            retain_graph=create_graph if retain_graph is None else retain_graph,
            create_graph=create_graph,
        )
        del dys
        arrived = sweep.run()
    results: list[Tensor | None] = []
    for edge in edges:
        total = arrived.get(edge[0] if type(edge[0]) is Leaf else edge)
        if total is None:
            results.append(None)
        elif create_graph:
            results.append(total.value)
        else:
            results.append(Tensor._of(_own(total, backend_of(total.value)), None))
    return tuple(results)
