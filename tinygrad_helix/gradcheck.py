"""`gradcheck`: gradients from the tape against central differences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import array_module, backend_of, is_array
from .differentiate import grad
from .errors import GradcheckError, GraphError
from .modes import enable_grad, is_grad_enabled, no_grad
from .tensor import Tensor

__all__ = ["float_outputs", "gradcheck"]

_SMALL = 128  # elements in and out up to which the full Jacobian is the default


def float_outputs(value: Any) -> list[Tensor]:
    """The Tensors of a result, floats only: no others have a gradient."""
    several = value if isinstance(value, (tuple, list)) else (value,)
    return [y for y in several if isinstance(y, Tensor) and y.dtype.kind == "f"]


# --- gradcheck


@dataclass(frozen=True)
class _Check:
    """A function of Tensors with its inputs, and what a message calls them."""

    fn: Callable[..., Any]
    inputs: list[Any]
    input_names: list[str]
    output_names: list[str] | None = None

    @property
    def checked(self) -> list[int]:
        """The inputs that are to be differentiated for."""
        xs = enumerate(self.inputs)
        return [i for i, x in xs if isinstance(x, Tensor) and x.requires_grad]

    def name_of_output(self, k: int) -> str:
        return self.output_names[k] if self.output_names else f"output {k}"

    def values(self) -> Any:
        """All outputs, off the tape, in one new flat array."""
        with no_grad():
            ys = float_outputs(self.fn(*self.inputs))
        return np.concatenate([_flat(y) for y in ys])

    def difference(self, i: int, step: Any) -> tuple[Any, Any]:
        """f(x + step) - f(x - step) for input i, and the step that rounding left."""
        x = self.inputs[i].data
        backend = backend_of(x)
        before = x.copy()
        host = backend.to_numpy(before)
        try:
            plus = host + step
            x[...] = backend.asarray(plus)
            upper = self.values()
            minus = host - step
            x[...] = backend.asarray(minus)
            return upper - self.values(), plus - minus
        finally:
            x[...] = before


def _flat(y: Tensor) -> np.ndarray:
    return backend_of(y.data).to_numpy(y.data).reshape(-1)


def _private(x: Any) -> Any:
    """Floats as a float64 copy of its own buffer; anything else as it is."""
    data = x.data if isinstance(x, Tensor) else x
    if not is_array(data) or data.dtype.kind != "f":
        return x
    copy = backend_of(data).copy(data.astype(np.float64))
    return Tensor(copy, requires_grad=x.requires_grad) if isinstance(x, Tensor) else copy


def gradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    order: int = 1,
    jacobian: bool | None = None,
    generator: np.random.Generator | None = None,
) -> bool:
    """Compare the gradients of fn with (f(x + eps·d) - f(x - eps·d)) / 2eps.

    `inputs` is a Tensor or a sequence of arguments of `fn`, which returns a Tensor or a
    tuple of them. Those that require a gradient are checked; the rest is passed on. All
    floats become float64 copies first, since float32 leaves no digits to a difference;
    the caller's arrays are not touched, and an input that was broadcast (stride 0) is
    moved one element at a time.

    With `jacobian=True` d runs over the elements of each input: the default up to 128
    elements in and out. Else d is one random direction an input, which a wrong gradient
    passes with probability 0, and the message cannot say which element is wrong.
    `order=2` checks the gradient of the gradient as well, for inputs and cotangents.

    Returns True, or raises GradcheckError with the worst element; GraphError where there
    is nothing to check, or where `fn` is not a function: two calls differ.

    At a kink (max of equal values, |x| at 0) the difference is the mean of both sides and
    no one's gradient: choose inputs further than eps from it. The same holds for values
    that fn selects by comparing, and near a pole.

    >>> import tinygrad_helix as th
    >>> x = th.tensor([0.5, -2.0], requires_grad=True)
    >>> th.gradcheck(lambda x: x.exp() * x, x, order=2)
    True
    """
    if order not in (1, 2):
        raise GraphError(f"gradcheck has order 1 and 2; got order={order!r}.")
    xs = [_private(x) for x in (inputs if isinstance(inputs, (tuple, list)) else (inputs,))]
    check = _Check(fn, xs, [f"input {i}" for i in range(len(xs))])
    rng = generator if generator is not None else np.random.default_rng(0)
    ys = _first_order(check, eps, atol, rtol, jacobian, rng)
    if order == 2:
        second = _gradient_of(check, ys, rng)
        _first_order(second, eps, atol, rtol, jacobian, rng)
    return True


def _first_order(
    check: _Check, eps: float, atol: float, rtol: float, jacobian: bool | None, rng: Any
) -> list[Tensor]:
    """Check first derivatives; returns the outputs."""
    checked = check.checked
    if not checked:
        raise GraphError(
            "gradcheck got no input that requires a gradient. Make one a Tensor of floats "
            "with requires_grad=True."
        )
    with enable_grad():
        ys = float_outputs(check.fn(*check.inputs))
    if not any(y.requires_grad for y in ys):
        raise GraphError(
            f"gradcheck: none of the {len(ys)} float Tensors that the function returned "
            "requires a gradient. Compute them from the inputs with recorded operations."
        )
    first = np.concatenate([_flat(y) for y in ys])
    again = check.values()
    if first.shape != again.shape or not np.allclose(first, again, rtol, atol, True):
        raise GraphError(
            "gradcheck: a second call with the same inputs, under no_grad, returned other "
            "values. Take randomness, in-place writes and the grad mode out of it."
        )
    sizes = [check.inputs[i].size for i in checked]
    small = max(sum(sizes), first.size) <= _SMALL
    compare = _jacobian if (small if jacobian is None else jacobian) else _direction
    compare(check, ys, eps, atol, rtol, rng)
    return ys


def _tape_gradients(check: _Check, ys: Sequence[Tensor], dys: Sequence[Any]) -> list[Any]:
    """What the tape gives for each checked input: zeros where nothing leads there."""
    xs = [check.inputs[i] for i in check.checked]
    pairs = [(y, dy) for y, dy in zip(ys, dys, strict=True) if y.requires_grad]
    found: Sequence[Any] = [None] * len(xs)
    if pairs:
        roots, given = zip(*pairs, strict=True)
        found = grad(roots, xs, given, retain_graph=True, allow_unused=True)
    return [
        np.zeros(x.size) if g is None else _flat(g) for x, g in zip(xs, found, strict=True)
    ]


def _jacobian(
    check: _Check, ys: list[Tensor], eps: float, atol: float, rtol: float, rng: Any
) -> None:
    rows: list[list[Any]] = []  # one an output element, in it one array an input
    for k, y in enumerate(ys):
        for j in range(y.size):
            dys = [array_module(o.data).zeros(o.shape, o.dtype) for o in ys]
            dys[k].reshape(-1)[j] = 1
            rows.append(_tape_gradients(check, ys, dys))
    for n, i in enumerate(check.checked):
        x = check.inputs[i]
        tape = np.array([row[n] for row in rows]).reshape(len(rows), x.size)
        numeric = np.empty_like(tape)
        for p in range(x.size):
            step = np.zeros(x.size)
            step[p] = eps
            change, moved = check.difference(i, step.reshape(x.shape))
            numeric[:, p] = change / moved.reshape(-1)[p]
        excess = np.abs(tape - numeric) - (atol + rtol * np.abs(numeric))
        wrong = ~(excess <= 0)  # true where it is not a number
        if not wrong.any():
            continue
        row, p = divmod(int(excess.argmax()), x.size)
        k, j = _element(row, ys)
        where = (
            f"d {check.name_of_output(k)}{_at(j, ys[k].shape)} / "
            f"d {check.input_names[i]}{_at(p, x.shape)}"
        )
        _fail(where, tape[row, p], numeric[row, p], atol, rtol, eps, wrong.sum())


def _element(row: int, ys: Sequence[Tensor]) -> tuple[int, int]:
    """The output that element `row` of all outputs is in, and its place there."""
    for k, y in enumerate(ys):
        if row < y.size:
            return k, row
        row -= y.size
    raise IndexError(row)


def _at(position: int, shape: tuple[int, ...]) -> str:
    return str([int(i) for i in np.unravel_index(position, shape)]) if shape else ""


def _direction(
    check: _Check, ys: list[Tensor], eps: float, atol: float, rtol: float, rng: Any
) -> None:
    dys = [rng.standard_normal(y.shape).astype(y.dtype) for y in ys]
    weights = np.concatenate([dy.reshape(-1) for dy in dys])
    given = [backend_of(y.data).asarray(dy) for y, dy in zip(ys, dys, strict=True)]
    tape = _tape_gradients(check, ys, given)
    for g, i in zip(tape, check.checked, strict=True):
        step = eps * rng.standard_normal(check.inputs[i].shape)
        change, moved = check.difference(i, step)
        numeric = float(weights @ change) / (2 * eps)
        analytic = float(g @ moved.reshape(-1)) / (2 * eps)
        if not abs(analytic - numeric) <= atol + rtol * abs(numeric):
            where = f"along a random direction of {check.input_names[i]} the derivative"
            _fail(where, analytic, numeric, atol, rtol, eps, None)


def _fail(
    where: str, tape: float, numeric: float, atol: float, rtol: float, eps: float, n: Any
) -> None:
    more = "" if n is None or n == 1 else f" {n} elements of this input differ."
    hint = " Pass jacobian=True to find the element." if n is None else ""
    raise GradcheckError(
        f"{where} is {tape:.10g} by the tape and {numeric:.10g} by central differences "
        f"(eps {eps:g}): apart by {abs(tape - numeric):.3g}, tolerance "
        f"{atol + rtol * abs(numeric):.3g}.{more} Mend the vjp; or, at a kink or a pole, "
        f"check at other values.{hint}"
    )


def _gradient_of(check: _Check, ys: Sequence[Tensor], rng: Any) -> _Check:
    """The gradient of a function as a function of its inputs and its cotangents."""
    n = len(check.inputs)
    chosen = [k for k, y in enumerate(ys) if y.requires_grad]
    dys = [
        Tensor(rng.standard_normal(ys[k].shape), None, True, ys[k].device) for k in chosen
    ]
    names: list[str] = []

    def gradients(*args: Any) -> tuple[Tensor, ...]:
        xs, cotangents = args[:n], list(args[n:])
        recorded = is_grad_enabled()
        with enable_grad():
            outputs = float_outputs(check.fn(*xs))
            found = grad(
                [outputs[k] for k in chosen],
                [xs[i] for i in check.checked],
                cotangents,
                create_graph=recorded,
                allow_unused=True,
            )
        pairs = [(i, g) for i, g in zip(check.checked, found, strict=True) if g is not None]
        names[:] = [f"(gradient of {check.input_names[i]})" for i, _ in pairs]
        return tuple(g for _, g in pairs)

    return _Check(
        gradients,
        [*check.inputs, *dys],
        [*check.input_names, *(f"cotangent {k}" for k in chosen)],
        names,
    )
