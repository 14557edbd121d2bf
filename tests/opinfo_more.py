"""Rows of the table of ops, continued (see opinfo.py, which joins them on)."""

from typing import Any

import numpy as np
from opinfo import (
    Bytes,
    Make,
    N,
    OpInfo,
    also,
    unary,
    uniform,
)
from scipy import ndimage, signal, special

import tinygrad_helix as th


def functional(torch: Any) -> Any:
    return torch.nn.functional


def gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FUNCTIONS = [
    unary("abs", np.abs, lambda torch, x: x.abs(), "x"),
    unary("log1p", np.log1p, lambda torch, x: x.log1p(), "x", -0.5, 2.0),
    unary("expm1", np.expm1, lambda torch, x: x.expm1(), "y"),
    unary("sin", np.sin, lambda torch, x: x.sin(), "x"),
    unary("cos", np.cos, lambda torch, x: x.cos(), "x"),
    unary("erf", special.erf, lambda torch, x: x.erf(), "x"),
    unary("erfc", special.erfc, lambda torch, x: x.erfc(), "x"),
    unary("relu", lambda x: np.maximum(x, 0), lambda torch, x: x.relu(), "y"),
    unary("gelu", lambda x: x * special.ndtr(x),
          lambda torch, x: functional(torch).gelu(x), "x", -4.0, 4.0),
    OpInfo("gelu tanh", lambda x: th.gelu(x, approximate="tanh"),
           uniform((3, 4), low=-4.0, high=4.0), gelu_tanh,
           lambda torch, x: functional(torch).gelu(x, approximate="tanh"),
           {"gelu_tanh.x": N}, (uniform(()), uniform((0,)))),
    # Its gradient is 0 everywhere, and a finite difference has nothing to say.
    OpInfo("sign", th.sign, uniform((3, 4)), np.sign, lambda torch, x: x.sign(),
           gradient=False),
    OpInfo("clip", lambda x: th.clip(x, -1.0, 0.5), uniform((3, 4)),
           lambda x: np.clip(x, -1.0, 0.5), lambda torch, x: x.clip(-1.0, 0.5),
           {"clip.inside": Bytes(N)}, (uniform(()), uniform((0, 2)))),
    OpInfo("clip from below", lambda x: th.clip(x, low=0.25), uniform((3, 4)),
           lambda x: np.maximum(x, 0.25), lambda torch, x: x.clip(min=0.25),
           {"clip.inside": Bytes(N)}),
    OpInfo("masked_fill", lambda x, mask: th.masked_fill(x, mask, -7.0),
           also(uniform((3, 4)), np.arange(4) % 2 == 0),
           lambda x, mask: np.where(mask, -7.0, x),
           lambda torch, x, mask: x.masked_fill(mask, -7.0),
           {"where.condition": Bytes(4)}),
    OpInfo("dropout",
           lambda x: th.dropout(x, 0.25, generator=np.random.default_rng(1)),
           uniform((3, 4)), lambda x: dropped(x, 0.25), None,
           {"dropout.mask": Bytes(N)}, (uniform(()), uniform((0, 2)))),
]  # fmt: skip


def dropped(x: Any, p: float) -> Any:
    kept = np.random.default_rng(1).random(x.shape, np.float32) >= p
    return np.where(kept, x / (1 - p), 0)


def reduction(
    name: str,
    reference: Any,
    torch: Any,
    axis: Any,
    keepdims: bool = False,
    saved: str = "x",
    edges: tuple[Make, ...] = (),
    **options: Any,
) -> OpInfo:
    """A row over (2, 3, 4); `saved` names what is kept of x and the result y."""
    kept = np.sum(np.ones((2, 3, 4)), axis=axis).size
    sizes = {"x": 24, "y": kept}
    return OpInfo(
        " ".join([name, str(axis), "keepdims" if keepdims else "", *map(str, options)]),
        lambda x: getattr(th, name)(x, axis=axis, keepdims=keepdims, **options),
        uniform((2, 3, 4)),
        lambda x: reference(x, axis=axis, keepdims=keepdims, **options),
        lambda torch_, x: torch(
            torch_, x, tuple(range(x.ndim)) if axis is None else axis, keepdims
        ),
        {f"{name}.{label}": sizes[label] for label in saved},
        edges,
    )


def products(torch: Any, x: Any, dim: Any, keepdim: bool) -> Any:
    dims = (dim,) if isinstance(dim, int) else dim
    for i in sorted([d % x.ndim for d in dims], reverse=True):
        x = x.prod(i, keepdim=keepdim)
    return x


AXES: list[tuple[Any, bool]] = [(None, False), (-1, True), ((0, 2), False)]
REDUCTIONS = [
    row
    for axis, keepdims in AXES
    for row in (
        reduction("min", np.min, lambda torch, *args: torch.amin(*args), axis, keepdims,
                  "xy"),
        reduction("prod", np.prod, products, axis, keepdims),
        reduction("var", np.var,
                  lambda torch, *args: torch.var(*args[:2], correction=0, keepdim=args[2]),
                  axis, keepdims),
        reduction("std", np.std,
                  lambda torch, *args: torch.std(*args[:2], correction=0, keepdim=args[2]),
                  axis, keepdims, "xy"),
        reduction("logsumexp", special.logsumexp,
                  lambda torch, *args: torch.logsumexp(*args), axis, keepdims, "xy"),
        reduction("norm", lambda x, axis, keepdims: np.sqrt(
                      np.sum(x * x, axis=axis, keepdims=keepdims)),
                  lambda torch, x, dim, keepdim: torch.linalg.vector_norm(
                      x, 2, dim, keepdim), axis, keepdims, "xy"),
    )
] + [
    reduction("min", np.min, lambda torch, *args: torch.amin(*args), None, saved="xy",
              edges=(uniform(()), uniform((1, 1)))),
    reduction("prod", np.prod, products, 1, edges=(
        uniform((0, 3)), uniform((3, 0)), uniform((2, 1)))),
    reduction("logsumexp", special.logsumexp, lambda torch, *args: torch.logsumexp(*args),
              0, saved="xy", edges=(uniform((3, 0)),)),
    reduction("var", np.var, lambda torch, *args: torch.var(*args[:2], correction=1),
              0, ddof=1),
    reduction("std", np.std, lambda torch, *args: torch.std(*args[:2], correction=1),
              (1, 2), saved="xy", ddof=1),
    OpInfo("norm 1", lambda x: th.norm(x, 1, axis=1), uniform((3, 4)),
           lambda x: np.abs(x).sum(1), lambda torch, x: torch.linalg.vector_norm(x, 1, 1),
           {"abs.x": N}),
    OpInfo("norm inf", lambda x: th.norm(x, np.inf, axis=1), uniform((3, 4)),
           lambda x: np.abs(x).max(1),
           lambda torch, x: torch.linalg.vector_norm(x, np.inf, 1),
           {"abs.x": N, "max.x": N, "max.y": 3}),
    OpInfo("cumsum", lambda x: th.cumsum(x, 1), uniform((2, 3, 2)),
           lambda x: np.cumsum(x, 1), lambda torch, x: x.cumsum(1),
           edges=(uniform((2, 0)), uniform((0, 2)))),
    OpInfo("cumsum flat", th.cumsum, uniform((3, 4)), np.cumsum,
           lambda torch, x: x.flatten().cumsum(0), edges=(uniform(()),)),
    OpInfo("cumprod", lambda x: th.cumprod(x, -2), uniform((2, 3, 2)),
           lambda x: np.cumprod(x, -2), lambda torch, x: x.cumprod(-2),
           {"cumprod.x": N, "cumprod.y": N}, (uniform((0, 3)), uniform((3, 0)))),
    OpInfo("cumprod flat", th.cumprod, uniform((3, 2)), np.cumprod,
           lambda torch, x: x.flatten().cumprod(0),
           {"cumprod.x": 6, "cumprod.y": 6}, (uniform(()),)),
    OpInfo("argmin", th.argmin, uniform((3, 4)), np.argmin, lambda torch, x: x.argmin(),
           gradient=False),
    OpInfo("argmin 0", lambda x: th.argmin(x, axis=0), uniform((3, 4)),
           lambda x: np.argmin(x, axis=0), lambda torch, x: x.argmin(0), gradient=False),
]  # fmt: skip


def layer(x: Any, gain: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * gain + bias


def losses(
    x: Any, target: Any, ignored: int = -100, smoothing: float = 0.0, how: str = "mean"
) -> Any:
    counted = target != ignored
    place = np.where(counted, target, 0)[..., None]
    log_p = special.log_softmax(x, axis=-1)
    right = np.take_along_axis(log_p, place, -1)[..., 0]
    rows = np.where(counted, -(1 - smoothing) * right - smoothing * log_p.mean(-1), 0.0)
    if how == "none":
        return rows
    return rows.sum() / (counted.sum() if how == "mean" else 1)


def torch_losses(torch: Any, x: Any, target: Any, **options: Any) -> Any:
    y = functional(torch).cross_entropy(
        x.reshape(-1, x.shape[-1]), target.reshape(-1), **options
    )
    return y if y.ndim == 0 else y.reshape(target.shape)


LABELS = np.array([[2, 0, 4], [1, 9, 3]])  # 9 is no class
LOSS = {"cross_entropy.logits": 30, "cross_entropy.target": Bytes(48)}
NORMS = [
    OpInfo("layer_norm", th.layer_norm, uniform((3, 4)), layer,
           lambda torch, x: functional(torch).layer_norm(x, x.shape[-1:], eps=1e-5),
           {"layer_norm.x": N}, (uniform((0, 4)),), half=4e-3),
    OpInfo("layer_norm gain bias", th.layer_norm, uniform((2, 3, 4), (4,), (4,)), layer,
           lambda torch, x, g, b: functional(torch).layer_norm(x, x.shape[-1:], g, b),
           {"layer_norm.x": 24, "mul.a": 24, "mul.b": 4},
           (uniform((0, 4), (4,), (4,)),), half=8e-3),
    OpInfo("layer_norm bias", lambda x, b: th.layer_norm(x, bias=b), uniform((3, 4), (4,)),
           lambda x, b: layer(x, 1.0, b),
           lambda torch, x, b: functional(torch).layer_norm(x, x.shape[-1:], None, b),
           {"layer_norm.x": N}, half=4e-3),
    OpInfo("cross_entropy ignoring",
           lambda x, t: th.cross_entropy(x, t, ignore_index=9),
           also(uniform((2, 3, 5)), LABELS), lambda x, t: losses(x, t, 9),
           lambda torch, x, t: torch_losses(torch, x, t, ignore_index=9), LOSS),
    OpInfo("cross_entropy summed",
           lambda x, t: th.cross_entropy(x, t, reduction="sum", label_smoothing=0.25),
           also(uniform((2, 3, 5)), LABELS % 5), lambda x, t: losses(x, t, -1, 0.25, "sum"),
           lambda torch, x, t: torch_losses(
               torch, x, t, reduction="sum", label_smoothing=0.25),
           LOSS, (also(uniform((0, 5)), np.zeros((0,), int)),), half=4e-3),
    OpInfo("cross_entropy of rows",
           lambda x, t: th.cross_entropy(
               x, t, ignore_index=9, reduction="none", label_smoothing=0.25),
           also(uniform((2, 3, 5)), LABELS), lambda x, t: losses(x, t, 9, 0.25, "none"),
           lambda torch, x, t: torch_losses(
               torch, x, t, ignore_index=9, reduction="none", label_smoothing=0.25),
           LOSS, (also(uniform((0, 5)), np.zeros((0,), int)),
                  also(uniform((5,)), np.array(2)))),
]  # fmt: skip


def view(
    name: str, fn: Any, reference: Any, torch: Any, *edges: Make, shape: Any = (2, 3, 4)
) -> OpInfo:
    return OpInfo(name, fn, uniform(shape), reference, torch, edges=edges, view=True)


SHAPES = [
    view("permute", lambda x: th.permute(x, -1, 0, 1), lambda x: x.transpose(2, 0, 1),
         lambda torch, x: x.permute(-1, 0, 1), uniform((2, 0, 3))),
    view("swapaxes", lambda x: th.swapaxes(x, 0, -1), lambda x: x.swapaxes(0, -1),
         lambda torch, x: x.swapaxes(0, -1), uniform((0, 2))),
    view("squeeze", th.squeeze, np.squeeze, lambda torch, x: x.squeeze(), uniform(()),
         uniform((1, 0)), shape=(1, 3, 1, 2)),
    view("squeeze axis", lambda x: th.squeeze(x, (0, -2)),
         lambda x: np.squeeze(x, (0, -2)), lambda torch, x: x.squeeze((0, -2)),
         shape=(1, 3, 1, 2)),
    view("unsqueeze", lambda x: th.unsqueeze(x, -1), lambda x: x[..., None],
         lambda torch, x: x.unsqueeze(-1), uniform(()), uniform((0,))),
    view("flip", th.flip, np.flip, lambda torch, x: x.flip(tuple(range(x.ndim))),
         uniform(()), uniform((0, 2))),
    view("flip axes", lambda x: th.flip(x, (0, -1)), lambda x: np.flip(x, (0, -1)),
         lambda torch, x: x.flip((0, -1))),
    view("expand", lambda x: th.expand(x, 2, -1, 4),
         lambda x: np.broadcast_to(x, (2, *x.shape[:1], 4)),
         lambda torch, x: x.expand(2, -1, 4), uniform((0, 1)), shape=(3, 1)),
    view("chunk", lambda x: th.chunk(x, 3, axis=1), lambda x: (x[:, :2], x[:, 2:4]),
         lambda torch, x: x.chunk(3, 1), shape=(3, 4)),
    view("chunk uneven", lambda x: th.chunk(x, 2), lambda x: (x[:3], x[3:]),
         lambda torch, x: x.chunk(2), shape=(5, 2)),
    OpInfo("pad", lambda x: th.pad(x, ((1, 0), (2, 3)), 0.5), uniform((2, 3)),
           lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=0.5),
           lambda torch, x: functional(torch).pad(x, (2, 3, 1, 0), value=0.5),
           edges=(uniform((0, 2)),)),
    OpInfo("pad all round", lambda x: th.pad(x, 1), uniform((2, 3)),
           lambda x: np.pad(x, 1), lambda torch, x: functional(torch).pad(x, (1, 1, 1, 1)),
           edges=(uniform((0, 0)),)),
    OpInfo("tril", th.tril, uniform((2, 3, 4)), np.tril, lambda torch, x: x.tril(),
           edges=(uniform((0, 2)),)),
    OpInfo("tril above", lambda x: th.tril(x, 1), uniform((3, 4)),
           lambda x: np.tril(x, 1), lambda torch, x: x.tril(1)),
    OpInfo("triu below", lambda x: th.triu(x, -1), uniform((3, 4)),
           lambda x: np.triu(x, -1), lambda torch, x: x.triu(-1)),
    OpInfo("triu", th.triu, uniform((2, 3, 4)), np.triu, lambda torch, x: x.triu()),
]  # fmt: skip

ROWS = np.array([[3, 0, 3], [1, -1, 1]])
PLACES = np.array([[2, 0, 2, 1], [2, 2, 1, 0]])
NARROW = np.array([[1, 0], [3, 3]])
INDEXING = [
    OpInfo("take", lambda x, i: th.take(x, i, axis=1), also(uniform((2, 4, 2)), ROWS),
           lambda x, i: x.take(i, axis=1), lambda torch, x, i: x[:, i],
           {"getitem.index0": Bytes(48)}, (also(uniform((0, 4)), ROWS),)),
    OpInfo("take flat", th.take, also(uniform((2, 4)), ROWS), np.take,
           lambda torch, x, i: x.take(i % x.numel()), {"getitem.index0": Bytes(48)}),
    OpInfo("gather", lambda x, i: th.gather(x, i, 0), also(uniform((3, 4)), PLACES),
           lambda x, i: np.take_along_axis(x, i, 0), lambda torch, x, i: x.gather(0, i),
           {"gather.index": Bytes(64)},
           (also(uniform((3, 0)), np.zeros((2, 0), int)),
            also(uniform((3, 2)), np.zeros((0, 2), int)))),
    OpInfo("gather of a part", lambda x, i: th.gather(x, i, 1),
           also(uniform((3, 4)), NARROW), lambda x, i: np.take_along_axis(x[:2], i, 1),
           lambda torch, x, i: x.gather(1, i), {"gather.index": Bytes(32)}),
    OpInfo("scatter_add", lambda x, i, s: th.scatter_add(x, i, s, 0),
           lambda rng: [rng.uniform(-2, 2, (3, 4)), PLACES, rng.uniform(-2, 2, (2, 4))],
           lambda x, i, s: x + scattered(x, i, s, 0),
           lambda torch, x, i, s: x.scatter_add(0, i, s),
           {"scatter_add.index": Bytes(64)}, half=4e-3),
    OpInfo("scatter_add of a part", lambda x, i, s: th.scatter_add(x, i, s, 1),
           lambda rng: [rng.uniform(-2, 2, (3, 4)), NARROW, rng.uniform(-2, 2, (2, 2))],
           lambda x, i, s: x + scattered(x, i, s, 1),
           lambda torch, x, i, s: x.scatter_add(1, i, s),
           {"scatter_add.index": Bytes(32)}, half=4e-3),
    OpInfo("one_hot", lambda i: th.one_hot(i, 4), lambda rng: [ROWS % 4],
           lambda i: np.eye(4, dtype=np.float32)[i],
           lambda torch, i: functional(torch).one_hot(i, 4), gradient=False),
    OpInfo("sort", lambda x: th.sort(x, axis=0)[0], uniform((3, 4)),
           lambda x: np.sort(x, axis=0), lambda torch, x: x.sort(0).values,
           {"gather.index": Bytes(96)}, (uniform((0,)), uniform((2, 0)))),
    OpInfo("sort falling", lambda x: th.sort(x, descending=True)[0], uniform((3, 4)),
           lambda x: -np.sort(-x), lambda torch, x: x.sort(descending=True).values,
           {"gather.index": Bytes(96)}),
    OpInfo("sort index", th.sort, uniform((3, 4)),
           lambda x: (np.sort(x), np.argsort(x)), lambda torch, x: x.sort(),
           gradient=False),
    OpInfo("topk", lambda x: th.topk(x, 2)[0], uniform((3, 4)),
           lambda x: -np.sort(-x)[:, :2], lambda torch, x: x.topk(2).values,
           {"gather.index": Bytes(48)}, ()),
    OpInfo("topk smallest", lambda x: th.topk(x, 2, axis=0, largest=False)[0],
           uniform((3, 4)), lambda x: np.sort(x, 0)[:2],
           lambda torch, x: x.topk(2, 0, largest=False).values,
           {"gather.index": Bytes(64)}, (uniform((2, 0)),)),
    OpInfo("topk index", lambda x: th.topk(x, 3), uniform((3, 4)),
           lambda x: (-np.sort(-x)[:, :3], np.argsort(-x)[:, :3]),
           lambda torch, x: x.topk(3), gradient=False),
]  # fmt: skip


def scattered(x: Any, index: Any, source: Any, axis: int) -> Any:
    y = np.zeros(x.shape)
    for place in np.ndindex(index.shape):
        to = list(place)
        to[axis] = index[place]
        y[tuple(to)] += source[place]
    return y


def summed(spec: str, *shapes: tuple[int, ...], **options: Any) -> OpInfo:
    sizes = [int(np.prod(shape)) for shape in shapes]
    kept = {f"einsum.x{i}": n for i, n in enumerate(sizes)} if len(shapes) > 1 else {}
    return OpInfo(
        f"einsum {spec}",
        lambda *xs: th.einsum(spec, *xs),
        uniform(*shapes),
        lambda *xs: np.asarray(np.einsum(spec, *xs)),
        lambda torch, *xs: torch.einsum(spec, *xs),
        **({"saved": kept, "half": 8e-3} | options),
    )


EINSUM = [
    summed("ij,jk->ik", (2, 3), (3, 4), edges=(
        uniform((0, 3), (3, 2)), uniform((2, 0), (0, 2)))),
    summed("bij, bkj -> bik", (2, 2, 3), (2, 2, 3)),
    summed("ij,kl->ik", (2, 3), (2, 2)),  # labels that only one operand has
    summed("i,j", (2,), (3,)),
    summed("ij->ji", (2, 3), view=True),
    summed("ij->", (2, 3), view=False),
    summed("...ij,jk->...ik", (2, 2, 3), (3, 2)),
    summed("...i,...i->...", (1, 3), (2, 3), saved={"einsum.x0": 3, "einsum.x1": 6}),
    summed("ij,i,jk->k", (2, 3), (2,), (3, 2)),
    summed("i,->i", (3,), (), saved={"einsum.x0": 3, "einsum.x1": 1}),
    summed("ii->i", (3, 3), saved={"getitem.index0": Bytes(24)}),
    summed("jii,k->ik", (2, 3, 3), (2,), saved={
        "getitem.index0": Bytes(24), "einsum.x0": 6, "einsum.x1": 2}),
    summed("ba", (2, 3), view=True),
]  # fmt: skip


def causal(x: Any, w: Any, bias: Any = 0.0, state: Any = None) -> tuple[Any, Any]:
    batch, steps, width = *x.shape[:2], w.shape[1]
    before = np.zeros((batch, width - 1, x.shape[2])) if state is None else state
    window = np.concatenate([before, x], axis=1)
    y = np.zeros(x.shape)
    for t in range(steps):
        y[:, t] = (window[:, t : t + width] * w.T).sum(1) + bias
    return y, window[:, steps:]


def torch_causal(torch: Any, x: Any, w: Any, bias: Any = None, state: Any = None) -> Any:
    if state is None:
        state = torch.zeros(x.shape[0], w.shape[1] - 1, x.shape[2], dtype=x.dtype)
    window = torch.cat([state, x], 1)
    y = functional(torch).conv1d(
        window.transpose(1, 2), w[:, None], bias, groups=w.shape[0]
    )
    return y.transpose(1, 2), window[:, x.shape[1] :]


def image(
    x: Any, w: Any, bias: Any = None, stride: Any = (1, 1), padding: Any = (0, 0)
) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    y = np.stack(
        [
            np.stack([signal.correlate(xs, ws, "valid", "direct")[0] for ws in w])
            for xs in padded
        ]
    )[:, :, :: stride[0], :: stride[1]]
    return y if bias is None else y + bias[:, None, None]


def pooled(x: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    sides = ((0, 0), (0, 0), *((p, p) for p in padding))
    padded = np.pad(x, sides, constant_values=-np.inf)
    # A filter of SciPy's has its centre at size // 2.
    y = ndimage.maximum_filter(padded, (1, 1, *kernel), mode="nearest")
    (h, w), (kh, kw), (sh, sw) = padded.shape[2:], kernel, stride
    return y[:, :, kh // 2 : h - (kh - 1) // 2 : sh, kw // 2 : w - (kw - 1) // 2 : sw]


CONVOLUTIONS = [
    OpInfo("causal_conv1d", th.causal_conv1d, uniform((2, 5, 3), (3, 4)), causal,
           torch_causal, {"causal_conv1d.x": 30, "causal_conv1d.weight": 12},
           (uniform((0, 5, 3), (3, 2)), uniform((1, 2, 3), (3, 4)),
            uniform((1, 2, 3), (3, 1))), half=8e-3),
    OpInfo("causal_conv1d bias state", th.causal_conv1d,
           uniform((2, 4, 2), (2, 3), (2,), (2, 2, 2)), causal, torch_causal,
           {"causal_conv1d.x": 16, "causal_conv1d.weight": 6, "causal_conv1d.state": 8},
           (uniform((1, 1, 2), (2, 3), (2,), (1, 2, 2)),), half=8e-3),
    OpInfo("conv2d", th.conv2d, uniform((2, 2, 4, 3), (2, 2, 2, 2)), image,
           lambda torch, x, w: functional(torch).conv2d(x, w),
           {"conv2d.x": 48, "conv2d.weight": 16}, half=8e-3),
    OpInfo("conv2d stride padding",
           lambda x, w, b: th.conv2d(x, w, b, stride=(2, 1), padding=(1, 0)),
           uniform((1, 2, 4, 3), (2, 2, 3, 2), (2,)),
           lambda x, w, b: image(x, w, b, (2, 1), (1, 0)),
           lambda torch, x, w, b: functional(torch).conv2d(x, w, b, (2, 1), (1, 0)),
           {"conv2d.x": 24, "conv2d.weight": 24}, half=8e-3),
    OpInfo("max_pool2d", lambda x: th.max_pool2d(x, 2), uniform((2, 1, 4, 5)),
           lambda x: pooled(x, (2, 2), (2, 2), (0, 0)),
           lambda torch, x: functional(torch).max_pool2d(x, 2),
           {"max_pool2d.x": 40, "max_pool2d.y": 8}),
    OpInfo("max_pool2d overlapping",
           lambda x: th.max_pool2d(x, (3, 2), stride=1, padding=(1, 0)),
           uniform((1, 2, 3, 3)), lambda x: pooled(x, (3, 2), (1, 1), (1, 0)),
           lambda torch, x: functional(torch).max_pool2d(x, (3, 2), 1, (1, 0)),
           {"max_pool2d.x": 18, "max_pool2d.y": 12}),
]  # fmt: skip

MORE = [
    *FUNCTIONS, *REDUCTIONS, *NORMS, *SHAPES, *INDEXING, *EINSUM, *CONVOLUTIONS,
]  # fmt: skip
