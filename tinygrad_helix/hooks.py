"""Looking at gradients on their way: hooks on Tensors, gradients of results."""

from collections.abc import Callable

from .errors import GraphError
from .tape import Handle, Leaf, Node, check_callable
from .tensor import Tensor

__all__ = ["register_hook", "retain_grad"]


def register_hook(x: Tensor, fn: Callable[[Tensor], Tensor | None]) -> Handle:
    """Call fn(dx) in every sweep with the cotangent of x, summed over all its uses.

    `fn` runs once a sweep and may return another Tensor of the same shape and dtype, which
    takes the cotangent's place. What it gets is read-only on the CPU, since others may hold
    that array: `dx *= 10` raises GraphError, `return dx * 10` is the way. (CuPy has no
    read-only arrays; there, too, do not write to it.) The handle's `remove()` takes the
    hook off.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([1.0, 2.0], requires_grad=True)
    >>> handle = x.register_hook(lambda dx: dx * 10)
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [20.0, 40.0]
    """
    check_callable("register_hook", fn)
    target, index = x.edge
    if not x.requires_grad:
        raise GraphError(
            f"a hook on a Tensor of shape {x.shape} that requires no gradient would never "
            "run. Set requires_grad=True on it first."
        )
    if isinstance(target, Leaf):
        if target.hooks is None:
            target.hooks = {}
        return Handle(target.hooks, fn)
    if target.output_hooks is None:
        target.output_hooks = {}
    return Handle(target.output_hooks.setdefault(index, {}), fn)


def retain_grad(x: Tensor) -> None:
    """Let sweeps add up the gradient of x, the result of an op, in `x.grad`, as on a leaf.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([3.0], requires_grad=True)
    >>> y = x * x
    >>> y.retain_grad()
    >>> (y * 5).backward()
    >>> y.grad.item()
    5.0
    """
    target, index = x.edge
    if not x.requires_grad:
        raise GraphError(
            f"retain_grad() of a Tensor of shape {x.shape} that requires no gradient. Set "
            "requires_grad=True on what it is computed from."
        )
    if isinstance(target, Node):
        if target.grads is None:
            target.grads = {}
        target.grads.setdefault(index, None)
