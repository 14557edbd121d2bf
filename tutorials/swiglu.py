# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A block of your own: SwiGLU, composed and fused
#
# I take a block that is not in the package, write it twice, and let the package count what
# each version keeps for its backward pass. SwiGLU is the feed-forward layer of many
# language models (Shazeer, "GLU variants improve transformer", 2020):
#
#     u = x W1        v = x W3        y = (silu(u) · v) W2        silu(u) = u · sigmoid(u)
#
# x is [B, T, D], W1 and W3 are [D, F], W2 is [F, D]. The whole comparison is one command:
#
#     python -m tinygrad_helix compare tutorials/swiglu.py
#
# It finds `composed`, `fused`, `inputs` and `parameters` in this file by their names.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.nn import Parameter

# %% [markdown]
# ## Composed
#
# First I write what the formula says. Every operation becomes a node on the tape, and each
# node keeps what its own derivative needs. I know the rules, so I can count before I run:
#
# | node | keeps | numbers a token |
# |---|---|---|
# | `x @ w1`, `x @ w3` | x, once: both share it | D |
# | `silu(u)` | u | F |
# | `silu(u) * v` | both factors | 2F |
# | `... @ w2` | the product | F |
#
# D + 4F numbers a token, and the weights, which I do not count: they are there anyway.


# %%
def composed(x, w1, w3, w2):
    return (th.silu(x @ w1) * (x @ w3)) @ w2


# %% [markdown]
# ## Fused
#
# Now the same as one node. I may keep what I like, as long as I can write the derivative
# from it. silu(u) and silu(u)·v are cheap to make again from u and v, so I keep x, u and v
# alone: D + 2F. For the backward pass I read the formula from its end, with p = silu(u)·v:
#
#     dW2 = pᵀ dy       dp = dy W2ᵀ       dv = dp · silu(u)       du = dp · v · silu'(u)
#     dW1 = xᵀ du       dW3 = xᵀ dv       dx = du W1ᵀ + dv W3ᵀ
#     silu'(u) = s + silu(u) · (1 - s)    with s = sigmoid(u)
#
# An `Op` has both directions side by side. They get arrays and return arrays. `saves` says
# what each kept value is: an `Input` costs nothing new as long as somebody else holds it,
# an `Intermediate` is mine alone. `needs` says which inputs want a gradient: under
# `no_grad` none does, and with frozen weights only some do. So I write down, once, which
# value is read for which gradient, and neither keep nor compute the rest.
#
# The peak counts too. What I made myself in the vjp I may overwrite: silu(u) becomes dv. My
# first version made an array for each name instead, and peaked above the composed one.


# %%
def read_for(needs):
    """Which values the vjp reads, for the gradients that are wanted."""
    x, w1, w3, w2 = needs
    return {
        "x": w1 or w3,
        "w1": x,
        "w3": x,
        "w2": x or w1 or w3,
        "u": x or w1 or w3 or w2,
        "v": x or w1 or w2,
    }


class SwiGLU(th.Op):
    """y = (silu(x W1) · (x W3)) W2      keeps x, u = x W1, v = x W3: D + 2F a token."""

    name = "swiglu"
    saves = {
        "x": th.Input(0),
        "w1": th.Input(1),
        "w3": th.Input(2),
        "w2": th.Input(3),
        "u": th.Intermediate(),
        "v": th.Intermediate(),
    }

    @staticmethod
    def forward(xp, x, w1, w3, w2, *, needs):
        rows = x.reshape(-1, x.shape[-1])  # [N, D], N = B·T
        u, v = rows @ w1, rows @ w3  # [N, F]
        y = (th.silu(u) * v) @ w2  # [N, D]
        values = {"x": x, "w1": w1, "w3": w3, "w2": w2, "u": u, "v": v}
        kept = {name: values[name] for name, read in read_for(needs).items() if read}
        return y.reshape(*x.shape[:-1], w2.shape[1]), kept

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x, w1, w3, w2, u, v = (saved[k] for k in ("x", "w1", "w3", "w2", "u", "v"))
        need_x, need_w1, need_w3, need_w2 = needs
        dx = dw1 = dw3 = dw2 = None
        dy = dy.reshape(-1, dy.shape[-1])  # [N, D]
        s = th.sigmoid(u)
        silu = u * s
        if need_w2:
            dw2 = (silu * v).T @ dy
        if need_x or need_w1:
            du = s + silu * (1 - s)  # silu'(u) first
            du *= v
        del s
        if need_x or need_w1 or need_w3:
            dp = dy @ w2.T  # [N, F]
        if need_x or need_w1:
            du *= dp
        if need_x or need_w3:
            dv = silu
            dv *= dp
        if need_x:
            dx = (du @ w1.T + dv @ w3.T).reshape(inputs[0][0])
        if need_w1:
            dw1 = x.reshape(-1, x.shape[-1]).T @ du
        if need_w3:
            dw3 = x.reshape(-1, x.shape[-1]).T @ dv
        return dx, dw1, dw3, dw2

    @staticmethod
    def predict(inputs, needs):
        """{label: bytes} beforehand, from (shape, dtype) of each input."""
        (x_shape, dtype), (w1_shape, _), *_ = inputs
        tokens = int(np.prod(x_shape[:-1]))
        D, F = w1_shape
        read = read_for(needs)
        widths = {"x": D, "u": F, "v": F}
        return {k: n * tokens * dtype.itemsize for k, n in widths.items() if read[k]}


def fused(x, w1, w3, w2):
    return th.apply(SwiGLU, x, w1, w3, w2)


# %% [markdown]
# ## Inputs
#
# `inputs` makes one set of arguments; its own arguments are the settings that
# `--set D=512` changes on the command line. `parameters` names those that are weights, so
# that their bytes are not counted as activations.


# %%
parameters = ("w1", "w3", "w2")


def inputs(B=4, T=64, D=64, F=128, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return (rng.standard_normal(shape) * scale).astype(dtype)

    return {
        "x": th.Tensor(normal(B, T, D), requires_grad=True),
        "w1": Parameter(normal(D, F, scale=D**-0.5)),
        "w3": Parameter(normal(D, F, scale=D**-0.5)),
        "w2": Parameter(normal(F, D, scale=F**-0.5)),
    }


# %% [markdown]
# ## What each keeps
#
# I run both and ask the tape. Every row of the table is a saved tensor, with the line of
# code that made its node; `shared` and `parameter` rows are not counted again.

# %%
if __name__ == "__main__":
    B, T, D, F = 4, 64, 64, 128
    arguments = inputs(B, T, D, F)
    for variant, width in ((composed, D + 4 * F), (fused, D + 2 * F)):
        y = variant(**arguments)
        print(f"\n{variant.__name__}, {width} numbers a token:")
        print(th.memory.table(y))
        assert th.saved_bytes(y) == width * B * T * 4
        y.sum().backward()
        assert th.saved_bytes(y) == 0  # and the sweep has let go of all of it

# %% [markdown]
# ## Is it right?
#
# Three checks, none of which trusts the others. The gradients of both versions must agree.
# `gradcheck` compares mine with differences of the function itself, in float64. `audit`
# looks at what I keep: is all of it read, is nothing written, is nothing kept in secret,
# does `predict` tell the truth?

# %%
if __name__ == "__main__":
    arguments = inputs(B, T, D, F, dtype="float64")
    dy = np.random.default_rng(1).standard_normal((B, T, D))
    reference = th.grad(composed(**arguments), list(arguments.values()), dy)
    gradients = th.grad(fused(**arguments), list(arguments.values()), dy)
    for name, g, r in zip(arguments, gradients, reference, strict=True):
        error = np.abs(g.data - r.data).max() / np.abs(r.data).max()
        print(f"d{name}: differs by {error:.1e}")
        assert error < 1e-13

    small = inputs(B=2, T=3, D=4, F=5, dtype="float64")
    assert th.gradcheck(fused, list(small.values()))
    report = th.audit(SwiGLU, *small.values())
    print(report)
    assert report.ok

# %% [markdown]
# ## What to try
#
# - Keep less: drop u and v and make them again from x, which costs two products more. What
#   do `saves`, `forward`, `vjp` and `predict` look like then? Does `audit` still pass?
# - Keep too much: add silu(u) to what forward returns, and read what `audit` says.
# - Freeze w1 and w3 (`requires_grad = False`). Which bytes go away, and which stay?
# - Break `read_for`: let it keep v always. Whom does that cost, and does `audit` notice?
