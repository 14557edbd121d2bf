# %% [markdown]
# # 08 The fused node, its policies, and a block of your own
#
# The composed block keeps 15·D numbers a token because each of its nodes looks after
# itself. A node that does the whole block at once can do better: it knows all the formulas,
# so it may keep some arrays and make the others again. This tutorial looks at what it
# keeps, finds out why 6·D is enough, and then fuses another block.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.fused.policy import INPUTS, POLICIES, Call, extra_flops
from tinygrad_helix.nn import Parameter
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import bars

B, T, D = 2, 32, 16
N = B * T
rng = np.random.default_rng(0)
block = th.nn.HelixBlock(D, dtype="float64", generator=rng)
weights = list(block.parameters())
x = th.Tensor(rng.standard_normal((B, T, D)), requires_grad=True)
gy = rng.standard_normal((B, T, D))


def run(mode, policy=None):
    """(values kept a token, in D; all gradients) of the block."""
    y = th.helix_block(x, *weights, mode=mode, policy=policy)
    kept = th.saved_bytes(y) / (N * D * 8)
    return kept, th.grad(y, [x, *weights], gy)


fifteen, reference = run("composed")
assert fifteen == 15

# %% [markdown]
# ## Nine, without thinking
#
# The backward pass of tutorial 07 reads x, a, h, s2, out1, xn2, f1 and f2, and what one
# pass over these gives. f1 has 2D numbers a token, so that is 9·D. Everything else was
# between two formulas and is gone.
#
# ## Six, for next to nothing
#
# Three of them need not be kept. s2 = silu(h·g2) and xn2 = rms(out1)·g3 are made again by
# a pass over arrays that are there. f2 = silu(f1) wf2 is another matter: to make it again
# costs a matrix product. But who reads f2? Only one line:
#
#     gg4 = Σ_rows dy·f2
#
# And here is the trick. Put in what f2 is, and swap the two sums. For column j:
#
#     gg4_j = Σ_n dy_nj · Σ_k silu(f1)_nk · wf2_kj = Σ_k wf2_kj · M_kj,     M = silu(f1)ᵀ dy
#
# M is a product that the backward pass makes anyway, for gwf2 = M·g4. So gg4 is a sum over
# the small matrix wf2·M, and **f2 is needed nowhere**.

# %%
silu_f1 = rng.standard_normal((N, 2 * D))
wf2, g4 = rng.standard_normal((2 * D, D)), rng.standard_normal(D)
g4[0] = 0.0  # no division anywhere, so a gain of 0 does no harm
dy = gy.reshape(N, D)
f2 = silu_f1 @ wf2
M = silu_f1.T @ dy
assert np.allclose((wf2 * M).sum(axis=0), (dy * f2).sum(axis=0))  # gg4
assert np.allclose(M * g4, silu_f1.T @ (dy * g4))  # gwf2

# %% [markdown]
# ## The dial
#
# From there on it is a trade: each array that is dropped costs work in the backward pass. A
# *policy* says what is kept. All of them give the gradients of the composed block.

# %%
call = Call((B, T, D), 8, frozenset(INPUTS[:10]))
step = 42 * N * D * D  # FLOPs of the block's matrix products, forward and backward
rows, notes = {"composed": 15.0}, {}
for name in ("keep9", "keep6", "keep4", "keep3", "keep2", "keep1"):
    rows[name], gradients = run("fused", name)
    flops = extra_flops(call, POLICIES[name].names)
    notes[name] = f"{100 * flops / step:.1f} % more work" if flops else ""
    for g, r in zip(gradients, reference, strict=True):
        assert np.allclose(g.data, r.data, rtol=1e-10, atol=1e-12)
assert list(rows.values()) == [15, 9, 6, 4, 3, 2, 1]

title = f"numbers kept a token, in D, and what that costs at D = {D}"
bars(title, rows, notes=notes, marked=["keep6"]).save("figures/08_fused.svg")

# %% [markdown]
# The name is the number. keep6 is the default: it repeats elementwise work alone. keep1
# keeps only the block's input and makes everything again, which is called checkpointing.
# You may also name the arrays, or give a budget in bytes and let the package find the set
# with the least extra work.

# %%
assert run("fused", th.Keep("x", "a", "h", "out1"))[0] == 4
assert run("fused", th.Budget(5 * N * D * 8))[0] <= 5
try:
    run("fused", th.Budget(100))
    raise AssertionError("100 bytes cannot be enough")
except th.errors.HelixError as error:
    print(error)

# %% [markdown]
# ## Saved is not peak
#
# What is kept decides how memory adds up over many blocks. How high it goes *inside* one
# backward pass is another number: keep1 must have room for everything that it makes again.
# Here it keeps half as much as keep2 and still peaks higher. So look at both.

# %%
large = th.nn.HelixBlock(64, policy="keep1")
inputs = {"x": th.randn(8, 128, 64, requires_grad=True)}
kept, peak = {}, {}
for policy in ("keep2", "keep1"):
    large.policy = policy
    measured = th.accounting.profile(large, inputs)
    kept[policy], peak[policy] = measured.counted, measured.peak_bytes
    assert measured.counted == measured.measured == measured.predicted
assert kept["keep1"] * 2 == kept["keep2"]
assert peak["keep1"] > peak["keep2"]

# %% [markdown]
# The fused node has a price of its own: its backward pass is not on the tape, so there is
# no second derivative. It says so, and the composed block is still there.

# %%
y = th.helix_block(x, *weights)
try:
    th.grad(y.sum(), x, create_graph=True)
    raise AssertionError("a fused node cannot be differentiated twice")
except th.errors.DoubleBackwardError as error:
    print(error)

# %% [markdown]
# ## A block of your own
#
# SwiGLU, the feed-forward layer of many language models, is y = (silu(x W1) · (x W3)) W2.
# Composed it keeps x, u, v, silu(u) and their product: D + 4F. silu(u) and the product are
# made again from u and v by elementwise work, so D + 2F will do.


# %%
def composed(x, w1, w3, w2):
    return (th.silu(x @ w1) * (x @ w3)) @ w2


class SwiGLU(th.Op):
    """y = (silu(u) · v) W2,  u = x W1,  v = x W3      keeps x, u, v."""

    saves = {name: th.Input(i) for i, name in enumerate(("x", "w1", "w3", "w2"))}
    saves |= {"u": th.Intermediate(), "v": th.Intermediate()}

    @staticmethod
    def forward(xp, x, w1, w3, w2, *, needs):
        u, v = x @ w1, x @ w3
        kept = {"x": x, "w1": w1, "w3": w3, "w2": w2, "u": u, "v": v}
        return (th.silu(u) * v) @ w2, kept if any(needs) else {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x, w1, w3, w2, u, v = saved.values()
        s = th.sigmoid(u)
        p = u * s  # silu(u)
        dp = dy @ w2.T
        du, dv = dp * v * (s + p * (1 - s)), dp * p
        return du @ w1.T + dv @ w3.T, x.T @ du, x.T @ dv, (p * v).T @ dy


def fused(x, w1, w3, w2):
    return th.apply(SwiGLU, x, w1, w3, w2)


F = 24
swiglu = {
    "x": th.Tensor(rng.standard_normal((N, D)), requires_grad=True),
    "w1": Parameter(rng.standard_normal((D, F))),
    "w3": Parameter(rng.standard_normal((D, F))),
    "w2": Parameter(rng.standard_normal((F, D))),
}
assert th.saved_bytes(composed(**swiglu)) == (D + 4 * F) * N * 8
assert th.saved_bytes(fused(**swiglu)) == (D + 2 * F) * N * 8
report = th.compare({"composed": composed, "fused": fused}, swiglu, repeats=2)
print(report)
by_composed, by_fused = report.rows
assert by_fused.max_rel_grad_diff < 1e-12
assert by_fused.peak_bytes > by_composed.peak_bytes

# %% [markdown]
# It keeps less, and peaks *higher*: this vjp gives every intermediate an array of its own,
# and all of them live until it returns. `swiglu.py`, beside this file, is the same block
# done properly: it overwrites what it made itself, computes only what is wanted, predicts
# its bytes, and is a file that `python -m tinygrad_helix compare` can read.
#
# ## Exercises
#
# **1.** The same trick gives gg3. With n2 = rms(out1), f1 = (n2·g3) wf1 and M1 = n2ᵀ df1,
# write gwf1 and gg3 from M1, g3 and wf1 alone.


# %%
def from_product(M1, g3, wf1):
    """(gwf1 [D, 2D], gg3 [D])."""
    ### BEGIN SOLUTION
    return g3[:, None] * M1, (wf1 * M1).sum(axis=1)
    ### END SOLUTION


with exercise(1):
    n2, df1 = rng.standard_normal((N, D)), rng.standard_normal((N, 2 * D))
    g3, wf1 = Parameter(rng.standard_normal(D)), Parameter(rng.standard_normal((D, 2 * D)))
    due = th.grad((th.Tensor(n2) * g3) @ wf1, [wf1, g3], df1)
    for name, ours, tape in zip(
        ("gwf1", "gg3"), from_product(n2.T @ df1, g3.data, wf1.data), due, strict=True
    ):
        assert np.allclose(ours, tape.data), f"{name} differs from the tape's"

# %% [markdown]
# **2.** Between keep6 and keep4 there is a set of 5·D numbers a token which makes only one
# small product again, [N, D] by [D, D]: 2·N·D² FLOPs. Name such a set.


# %%
def five():
    """The names, as in Keep: x and others."""
    ### BEGIN SOLUTION
    return "x", "a", "h", "f1"  # out1 = x + s2 wo is made again
    ### END SOLUTION


with exercise(2):
    kept, _ = run("fused", th.Keep(*five()))
    assert kept == 5, f"these are {kept:.0f}·D numbers a token"
    products = extra_flops(call, five()) // (2 * N * D * D)
    assert products == 1, f"it makes {products} such products again"
