# %% [markdown]
# # 10 The scan three ways
#
# At the heart of the HELIX block is the scan h_t = a_t·h_{t-1} + b_t, in every channel by
# itself. Each step waits for the one before, which a processor with thousands of lanes
# would rather not do. Here are three ways through the same recurrence, what each costs, and
# two short cuts that look like a fourth way and are wrong.

# %%
from functools import reduce

import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import BLUE, GREY, ORANGE, Sketch

T, D = 1000, 16
rng = np.random.default_rng(0)
a, b = rng.uniform(0.8, 1.0, (T, D)), rng.standard_normal((T, D))
work = {"products": 0, "turns": 0}  # a turn cannot begin before the last one ends

# %% [markdown]
# ## One: step by step
#
# T products and T turns, one after the other. A GPU gives each channel a thread and lets it
# walk. With 65,536 channels all lanes are busy and this is the best there is: a and b are
# read once and h written once.


# %%
def sequential(a, b, h0=0.0):
    h, carry = np.empty_like(b), h0
    for t in range(len(a)):
        carry = a[t] * carry + b[t]
        h[t] = carry
        work["products"] += 1
        work["turns"] += 1
    return h


h = sequential(a, b)
assert work == {"products": T, "turns": T}
assert np.allclose(h, th.gated_scan(a[None], b[None])[0][0], rtol=1e-14, atol=1e-14)

# %% [markdown]
# ## What a run of steps does
#
# One step turns a state x into a_t·x + b_t. Two steps in a row are a map of the same form:
#
#     a₂·(a₁·x + b₁) + b₂  =  (a₂·a₁)·x + (a₂·b₁ + b₂)
#
# So any run of steps is two numbers, and two runs combine to one, whichever neighbours are
# combined first. That is all that the other two ways use.


# %%
def combine(first, then):
    (a1, b1), (a2, b2) = first, then
    return a2 * a1, a2 * b1 + b2


one, two, three = zip(a[:3], b[:3], strict=True)
run = combine(combine(one, two), three)
assert np.allclose(run, combine(one, combine(two, three)), rtol=1e-14)
assert np.allclose(run[1], h[2], rtol=1e-14)  # from the state 0: b of the run

# %% [markdown]
# ## Two: in chunks
#
# Cut time into chunks. (a) All chunks at once: each finds its two numbers. (b) One walk
# over the chunks finds the state that comes into each. (c) All chunks at once: each walks
# again, from its own state. With chunks of 32, T = 1000 takes 3·32 turns. The price: a and
# b are read twice, 20 bytes a number where the first way moves 12 (float32). So it is for
# few channels only: `cuda/kernels/scan.cu` calls the first way R and this one C.


# %%
def chunked(a, b, length):
    cut = np.arange(length, len(a), length)
    pieces = [*zip(np.split(a, cut), np.split(b, cut), strict=True)]
    runs = [reduce(combine, zip(*piece, strict=True)) for piece in pieces]  # (a)
    carries = [np.zeros_like(b[0])]
    for A, H in runs[:-1]:  # (b)
        carries.append(A * carries[-1] + H)
    parts = [sequential(*p, c) for p, c in zip(pieces, carries, strict=True)]  # (c)
    return np.concatenate(parts)


for length in (1, 7, 32, T):
    assert np.allclose(chunked(a, b, length), h, rtol=1e-12, atol=1e-12)

# %% [markdown]
# ## Three: in rounds
#
# Let every step t hold a run: at first the step itself. In round r combine it with the run
# that ends 2ʳ steps before it, so that its own doubles. After log₂ T rounds, ten for 1000
# steps, every run begins at the start of time, and its b is h_t.
# `jax.lax.associative_scan` and its like do this (a tree saves some of the work). The
# price: two products a round for every step, 18 times the first way's work.


# %%
def rounds(a, b):
    A, H, by = a.copy(), b.copy(), 1
    while by < len(a):
        A[by:], H[by:] = combine((A[:-by], H[:-by]), (A[by:], H[by:]))
        work["products"] += 2 * (len(a) - by)
        work["turns"] += 1
        by *= 2
    return H


work.update(products=0, turns=0)
assert np.allclose(rounds(a, b), h, rtol=1e-12, atol=1e-12)
assert work == {"products": 17_954, "turns": 10}
assert not np.array_equal(rounds(a, b), h) and not np.array_equal(chunked(a, b, 32), h)

# %% [markdown]
# All three are right, and differ in the last bits: another order, another rounding.
#
# ## A short cut that fails: products of gates
#
# Divide by P_t = a_0·…·a_t, and the recurrence is a sum: h_t / P_t = h_{t-1} / P_{t-1} +
# b_t / P_t. So h = P · cumsum(b / P), two library calls and no loop. On paper it is right.
# In floats P becomes tiny and b / P huge while their product is harmless. Take a = 1/2 and
# b = 1, where h_t = 2 - 2^-t: the sum exceeds the largest float32 at step 126, the largest
# float64 at step 1022. Before that every digit is right, then none is.


# %%
def short_cut(a, b):
    with np.errstate(all="ignore"):
        P = np.cumprod(a, axis=0)
        return P * np.cumsum(b / P, axis=0)


for dtype, good in (("f4", 126), ("f8", 1022)):
    wrong = short_cut(np.full(4096, 0.5, dtype), np.ones(4096, dtype))
    due = sequential(np.full(good, 0.5, dtype), np.ones(good, dtype))
    assert np.array_equal(wrong[:good], due)
    assert not np.isfinite(wrong[good:]).any()

# %% [markdown]
# And with gates as they are: of sigmoids of normal numbers, over 4096 steps, 21 % of the
# states are finite in float64 and 3 % in float32. One gate of exactly 0, a mere reset,
# loses everything after it.

# %%
normal = rng.standard_normal((2, 4096, 64))
for dtype, percent in (("f4", 3), ("f8", 21)):
    gates = (1 / (1 + np.exp(-normal[0]))).astype(dtype)
    wrong = short_cut(gates, normal[1].astype(dtype))
    assert round(100 * np.isfinite(wrong).mean()) == percent
    assert np.isfinite(sequential(gates, normal[1].astype(dtype))).all()

gates = np.where(np.arange(100) == 40, 0, 0.9)
assert np.isfinite(short_cut(gates, np.ones(100))).sum() == 40
assert np.isfinite(rounds(gates, np.ones(100))).all()  # it divides by nothing

# %% [markdown]
# ## Another: logarithms
#
# In logarithms nothing overflows: with S = cumsum(log a), h = exp(S + logcumsumexp(log b -
# S)). But log b wants b > 0 and log a wants a > 0. And S grows: after 4096 gentle gates (on
# average 0.95) it is beyond -200, where float32 has steps of 1.5e-5, and exp makes of an
# absolute error a relative one: a hundred times that of walking.


# %%
def logarithms(a, b):
    S = np.cumsum(np.log(a), axis=0)
    return np.exp(S + np.logaddexp.accumulate(np.log(b) - S, axis=0))


gates = 1 / (1 + np.exp(-3 - normal[0] / 2)).astype("f4")
inputs = rng.uniform(0.5, 1.5, gates.shape).astype("f4")
exact = sequential(gates.astype("f8"), inputs.astype("f8"))
walked, by_logs = (
    np.abs(way(gates, inputs) / exact - 1).max() for way in (sequential, logarithms)
)
print(f"walking is off by {walked:.1e}, logarithms by {by_logs:.1e}")
assert walked < 1e-6 < 3e-5 < by_logs

# %%
sheet = Sketch(640, 250, "which results wait for which: three ways through eight steps")
walk = [[(t - 1, t), (t + 3, t + 4)] for t in (1, 2, 3)]
for left, title, turns in (
    (20, "step by step: 7 turns", [[(t - 1, t)] for t in range(1, 8)]),
    (230, "in chunks: 3 + 1 + 3", [*walk, [(3, 4)], *walk]),
    (440, "in rounds: 3", [[(t - by, t) for t in range(by, 8)] for by in (1, 2, 4)]),
):
    sheet.text(left + 90, 18, title, bold=True)
    for i, pairs in enumerate([[], *turns]):
        top = 40 + i * 28
        for t in range(8):
            sheet.dot(left + 8 + 23 * t, top, GREY, radius=2.5)
        for start, end in pairs:
            colour = ORANGE if turns[i - 1] == [(3, 4)] else BLUE
            ends = [(left + 8 + 23 * start, top - 26), (left + 8 + 23 * end, top - 4)]
            sheet.line(ends, colour=colour, arrow=True, width=1.2)
sheet.save("figures/10_scan_three_ways.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Repeat one step (a, b) n times on the state 0. A loop takes n turns; combined with
# itself, a run doubles, so about 2·log₂ n do.


# %%
def repeat(a, b, n):
    """The state after n ≥ 1 such steps, by at most 2·log₂ n calls of `combine`."""
    ### BEGIN SOLUTION
    run, double = None, (a, b)
    while n:
        if n % 2:
            run = double if run is None else combine(run, double)
        n //= 2
        double = combine(double, double) if n else double
    return run[1]
    ### END SOLUTION


with exercise(1):
    for n in (1, 2, 5, 64, 2**50):
        assert repeat(1.0, 1.0, n) == n, f"after {n} steps {n} is due"
        assert repeat(0.5, 1.0, n) == 2 - 0.5 ** (n - 1), "wrong with gates of 1/2"

# %% [markdown]
# **2.** Tutorial 07 found the cotangent G_t = dh_t + a_{t+1}·G_{t+1}, a scan from the end
# of time. Find it with `rounds`, which only runs forwards.


# %%
def backward(a, dh):
    """G [T, D]."""
    ### BEGIN SOLUTION
    gates = np.concatenate([np.zeros_like(a[:1]), a[:0:-1]])  # G_T = dh_T: no gate
    return rounds(gates, dh[::-1])[::-1]
    ### END SOLUTION


with exercise(2):
    x = th.Tensor(b[None], requires_grad=True)
    dh = rng.standard_normal((T, D))
    (due,) = th.grad(th.gated_scan(th.Tensor(a[None]), x)[0], x, dh[None])
    assert np.allclose(backward(a, dh), due.data[0]), "differs from the tape's gradient"
