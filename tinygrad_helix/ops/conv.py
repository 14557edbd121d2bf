"""Convolutions: causal in time for each channel, and over images; max pooling."""

import math
from typing import Any

import numpy as np

from ..backend import array_module, backend_of
from ..errors import ShapeError
from ..op import Input, Op, Output, apply
from .elementwise import add
from .join import cat, pad, stack
from .linalg import einsum, matmul
from .operands import accumulator, floating, plain, same_float, zeros
from .reduce import sum as sum_over
from .view import flip, reshape, swapaxes

__all__ = ["causal_conv1d", "conv2d", "max_pool2d"]


# --- in time


def _window(x: Any, state: Any, width: int) -> Any:
    """The width - 1 values before x, which are 0 where no state says, and x."""
    if state is None:
        state = zeros((x.shape[0], width - 1, x.shape[2]), x)
    return cat([state, x], axis=1)  # [B, K-1+T, D]


class CausalConv1d(Op):
    """y_t = Σ_k w_k · x_{t-(K-1)+k}, k = 0..K-1, with the state, or 0, before x
    dx_s = Σ_k w_k · dy_{s+(K-1)-k}, dstate likewise: the same op, with the weight flipped
    dw_k = Σ dy_t · x_{t-(K-1)+k} over batch and time
    keeps x and state if the weight needs a gradient, the weight if they do."""

    name = "causal_conv1d"
    saves = {"x": Input(0), "weight": Input(1), "state": Input(2)}

    @staticmethod
    def forward(xp, x, weight, state, *, needs):
        steps, width = x.shape[1], weight.shape[1]
        window = _window(x, state, width)
        y = xp.zeros(x.shape, accumulator(x.dtype))
        for k in range(width):
            y += window[:, k : k + steps] * weight[:, k]
        last = window[:, steps:].copy()  # not a view that keeps all of the window
        return (y.astype(x.dtype, copy=False), last), {
            "x": x if needs[1] else None,
            "weight": weight if needs[0] or needs[2] else None,
            "state": state if needs[1] else None,
        }

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dy, dlast = dy
        steps, width = dy.shape[1], inputs[1][0][1]
        dx = dweight = dstate = None
        if needs[0] or needs[2]:
            later = pad(dy, ((0, 0), (0, width - 1), (0, 0)))
            down, _ = apply(CausalConv1d, later, flip(saved["weight"], 1), None)
            down = down + pad(dlast, ((0, 0), (steps, 0), (0, 0)))
            dstate, dx = down[:, : width - 1], down[:, width - 1 :]
        if needs[1]:
            window = _window(saved["x"], saved["state"], width)
            dweight = stack(
                [
                    sum_over(dy * window[:, k : k + steps], axis=(0, 1))
                    for k in range(width)
                ],
                axis=1,
            )
        return dx, dweight, dstate if needs[2] else None


def causal_conv1d(
    x: Any, weight: Any, bias: Any = None, state: Any = None
) -> tuple[Any, Any]:
    """y_t = Σ_k weight[:, k] · x_{t-(K-1)+k} + bias, each channel by itself; returns
    (y, state).

    x [B, T, D], weight [D, K] whose last column meets x_t, bias [D] or None; y [B, T, D].
    No y sees a later x. `state` [B, K-1, D] holds the K-1 values before x, None for 0;
    the state returned is the one after x (a copy), so that a long sequence may be cut
    anywhere, down to single steps. Both results are differentiable. One float dtype.

    Keeps x and state if the weight needs a gradient, the weight if x or state does; with a
    bias it records add as well. The convolution of Mamba and of Hyena.
    """
    given = {"bias": bias, "state": state}
    same_float("causal_conv1d", x=x, weight=weight, **given)
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[2]:
        raise ShapeError(
            f"causal_conv1d takes x [B, T, D] and a weight [D, K]; got {x.shape} and "
            f"{weight.shape}."
        )
    width = weight.shape[1]
    if width == 0:
        raise ShapeError(f"causal_conv1d got a weight of shape {weight.shape}: K is 0.")
    due = {"bias": x.shape[2:], "state": (x.shape[0], width - 1, x.shape[2])}
    for name, value in given.items():
        if value is not None and value.shape != due[name]:
            raise ShapeError(
                f"causal_conv1d of x {x.shape} and weight {weight.shape} takes a {name} of "
                f"shape {due[name]}; got {value.shape}."
            )
    y, last = apply(CausalConv1d, x, weight, state)
    return (y if bias is None else add(y, bias)), last


# --- over images


def _taps(x: Any, kernel: Any, stride: Any, size: Any) -> list[Any]:
    """For each place (i, j) in the kernel the pixels that it meets: x[:, :, i::sh, j::sw],
    as a view [N, C, OH, OW]."""
    (sh, sw), (oh, ow) = stride, size
    return [
        x[:, :, i : i + sh * (oh - 1) + 1 : sh, j : j + sw * (ow - 1) + 1 : sw]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]


def _size(image: Any, kernel: Any, stride: Any, padding: Any) -> tuple[int, ...]:
    """(OH, OW): how many places the kernel has."""
    sides = zip(image, kernel, stride, padding, strict=True)
    return tuple([(n + 2 * p - k) // s + 1 for n, k, s, p in sides])


def _padded(xp: Any, x: Any, padding: Any, value: float = 0.0) -> Any:
    sides = ((0, 0), (0, 0), *((p, p) for p in padding))
    return xp.pad(x, sides, constant_values=value) if any(padding) else x


class Unfold(Op):
    """y [N, C·KH·KW, OH·OW] = the pixels that the kernel meets at each of its places
    dx = dy added up where they came from (Fold)
    keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, kernel, stride, padding):
        size = _size(x.shape[2:], kernel, stride, padding)
        taps = _taps(_padded(xp, x, padding), kernel, stride, size)
        rows = x.shape[1] * len(taps)
        return xp.stack(taps, axis=2).reshape(x.shape[0], rows, math.prod(size)), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, **geometry):
        return (apply(Fold, dy, image=inputs[0][0][2:], **geometry),)


class Fold(Op):
    """y [N, C, H, W] = the columns added up where Unfold took them from
    dx = the columns of dy (Unfold)
    keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, image, kernel, stride, padding):
        (h, w), (ph, pw) = image, padding
        size = _size(image, kernel, stride, padding)
        count = math.prod(kernel)
        channels = x.shape[1] // count
        parts = x.reshape(x.shape[0], channels, count, *size)
        dtype = accumulator(x.dtype)
        y = xp.zeros((x.shape[0], channels, h + 2 * ph, w + 2 * pw), dtype)
        for k, tap in enumerate(_taps(y, kernel, stride, size)):
            tap += parts[:, :, k]
        inner = y[:, :, ph : ph + h, pw : pw + w]
        return inner.astype(x.dtype, copy=any(padding)), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, image, **geometry):
        return (apply(Unfold, dy, **geometry),)


class Conv2d(Op):
    """y = w @ columns of x, a product for each image
    dx = wᵀ @ dy folded back,   dw = Σ dy @ columnsᵀ over the images
    keeps x if w needs a gradient, w if x does; the columns are made again."""

    name = "conv2d"
    saves = {"x": Input(0), "weight": Input(1)}

    @staticmethod
    def forward(xp, x, weight, *, needs, stride, padding):
        kernel = weight.shape[2:]
        size = _size(x.shape[2:], kernel, stride, padding)
        columns = apply(Unfold, x, kernel=kernel, stride=stride, padding=padding)
        matrix = weight.reshape(weight.shape[0], columns.shape[1])
        y = backend_of(x).matmul(matrix, columns)
        return y.reshape(x.shape[0], weight.shape[0], *size), {
            "x": x if needs[1] else None,
            "weight": weight if needs[0] else None,
        }

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, stride, padding):
        (shape, _), (wide, _) = inputs
        geometry = {"kernel": wide[2:], "stride": stride, "padding": padding}
        rows = math.prod(wide[1:])
        dy = reshape(dy, (shape[0], wide[0], math.prod(dy.shape[2:])))
        dx = dweight = None
        if needs[0]:
            matrix = reshape(saved["weight"], (wide[0], rows))
            columns = matmul(swapaxes(matrix, 0, 1), dy)
            dx = apply(Fold, columns, image=shape[2:], **geometry)
        if needs[1]:
            columns = apply(Unfold, saved["x"], **geometry)
            dweight = reshape(einsum("nop,ncp->oc", dy, columns), wide)
        return dx, dweight


def conv2d(x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> Any:
    """y[n, o, i, j] = Σ_{c,k,l} weight[o, c, k, l] · x[n, c, i·s + k - p, j·s + l - p]
    + bias[o], with 0 around x.

    x [N, C, H, W], weight [O, C, KH, KW], bias [O] or None; stride and padding are an int
    or a pair (of rows, of columns). y is [N, O, OH, OW], OH = (H + 2p - KH) // s + 1: a
    correlation, as everywhere in the field. One float dtype.

    The pixels under the kernel are copied into columns (KH·KW times x), so that the work
    is one product of matrices an image; they are not kept. Keeps x if the weight needs a
    gradient, the weight if x does; with a bias it records add as well.
    """
    same_float("conv2d", x=x, weight=weight, bias=bias)
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1]:
        raise ShapeError(
            f"conv2d takes x [N, C, H, W] and a weight [O, C, KH, KW]; got {x.shape} and "
            f"{weight.shape}."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"conv2d with a weight of shape {weight.shape} takes a bias of shape "
            f"{weight.shape[:1]}; got {bias.shape}."
        )
    stride, padding = (
        _pair("conv2d", "stride", stride, 1),
        _pair("conv2d", "padding", padding, 0),
    )
    _fits("conv2d", x, weight.shape[2:], padding)
    y = apply(Conv2d, x, weight, stride=stride, padding=padding)
    return y if bias is None else add(y, reshape(bias, (-1, 1, 1)))


class MaxPool2d(Op):
    """y = max over each place of the kernel
    dx = dy / m at each of the m pixels there that equal y, added up over places
    keeps x and y."""

    name = "max_pool2d"
    saves = {"x": Input(0), "y": Output()}

    @staticmethod
    def forward(xp, x, *, needs, kernel, stride, padding):
        size = _size(x.shape[2:], kernel, stride, padding)
        first, *rest = _taps(_padded(xp, x, padding, -xp.inf), kernel, stride, size)
        y = first.copy()
        for tap in rest:
            xp.maximum(y, tap, out=y)
        return y, {"x": x, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, kernel, stride, padding):
        x, y = plain(saved["x"]), plain(saved["y"])
        xp = array_module(x)
        (n, channels, *image), size = x.shape, y.shape[2:]
        taps = _taps(_padded(xp, x, padding, -xp.inf), kernel, stride, size)
        hits = xp.stack(taps, axis=2) == y[:, :, None]  # [N, C, KH·KW, OH, OW]
        # A NaN equals nothing: then there is no hit, and no gradient.
        share = hits / xp.maximum(hits.sum(axis=2, keepdims=True), 1)
        down = share.astype(x.dtype) * reshape(dy, (n, channels, 1, *size))
        columns = reshape(down, (n, channels * len(taps), math.prod(size)))
        geometry = {"kernel": kernel, "stride": stride, "padding": padding}
        return (apply(Fold, columns, image=tuple(image), **geometry),)


def max_pool2d(x: Any, kernel: Any, stride: Any = None, padding: Any = 0) -> Any:
    """The largest x under each place of a kernel: x [N, C, H, W] gives [N, C, OH, OW].

    kernel, stride (the kernel's size by default) and padding are an int or a pair (of
    rows, of columns); OH = (H + 2p - KH) // s + 1. Padding is at most half the kernel and
    never the largest. Equal largest values share the gradient evenly. Keeps x and its
    result.
    """
    x = floating(x)
    if x.ndim != 4:
        raise ShapeError(f"max_pool2d takes x [N, C, H, W]; got shape {x.shape}.")
    kernel = _pair("max_pool2d", "kernel", kernel, 1)
    stride = kernel if stride is None else _pair("max_pool2d", "stride", stride, 1)
    padding = _pair("max_pool2d", "padding", padding, 0)
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeError(
            f"max_pool2d got padding {padding} for a kernel {kernel}. It is at most half "
            "of it, or a place might have no pixels."
        )
    _fits("max_pool2d", x, kernel, padding)
    return apply(MaxPool2d, x, kernel=kernel, stride=stride, padding=padding)


def _pair(op: str, name: str, value: Any, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or any(
        not isinstance(n, (int, np.integer)) or n < least for n in pair
    ):
        raise ShapeError(
            f"{op} got {name}={value!r}. Give an int of at least {least}, or two."
        )
    return int(pair[0]), int(pair[1])


def _fits(op: str, x: Any, kernel: Any, padding: Any) -> None:
    image = x.shape[2:]
    if min(kernel) < 1 or any(
        n + 2 * p < k for n, k, p in zip(image, kernel, padding, strict=True)
    ):
        raise ShapeError(
            f"{op} of images {image} with padding {padding} and a kernel {kernel}: the "
            "kernel must have a pixel and fit into the padded image."
        )
