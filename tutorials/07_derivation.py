# %% [markdown]
# # 07 Deriving the block's backward on paper
#
# The composed block differentiates itself. For a fused block we need the derivatives
# ourselves, all ten of them. That sounds worse than it is: we go through the forward
# formulas from the last to the first, and each line is one rule that you know. After each
# line we ask the tape for the same cotangent and compare. No line is believed.
#
#     xn = rms(x)·g1        a = sigmoid(xn wa' + bias)        h_t = a_t·h_{t-1} + (xn wb)_t
#     s2 = silu(h·g2)       out1 = x + s2 wo
#     xn2 = rms(out1)·g3    f1 = xn2 wf1      f2 = silu(f1) wf2      y = out1 + f2·g4
#
# All arrays are [N, D] here, N = B·T (f1 is [N, 2D]), except in the scan.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import BLUE, ORANGE, Sketch

B, T, D, eps = 2, 5, 4, 1e-5
N = B * T
rng = np.random.default_rng(0)
block = th.nn.HelixBlock(D, mode="composed", dtype="float64", generator=rng)
wa, wb, wo, wf1, wf2, g1, g2, g3, g4 = block.parameters()
for gain in (g1, g2, g3, g4):
    gain.data[...] = rng.uniform(0.5, 1.5, D)  # gains of 1 would hide mistakes
x = th.Tensor(rng.standard_normal((B, T, D)), requires_grad=True)

# every value by a name, so that the tape can be asked about it
n1 = th.rms_norm(x, eps=eps)
xn = n1 * g1
ua = xn @ wa[:-1] + wa[-1]
a, ub = th.sigmoid(ua), xn @ wb
h, _ = th.gated_scan(a, ub)
hg = h * g2
s2 = th.silu(hg)
out1 = x + s2 @ wo
n2 = th.rms_norm(out1, eps=eps)
xn2 = n2 * g3
f1 = xn2 @ wf1
sf = th.silu(f1)
f2 = sf @ wf2
y = out1 + f2 * g4
assert np.array_equal(y.data, block(x).data)

gy = rng.standard_normal(y.shape)


def check(**pairs):
    """Compare cotangents, each a pair (ours, of what), with the tape's."""
    for name, (ours, of) in pairs.items():
        (tape,) = th.grad(y, of, gy, retain_graph=True)
        error = np.abs(ours.reshape(tape.shape) - tape.data).max()
        print(f"{name:<5} differs by {error / np.abs(tape.data).max():.0e}")
        assert error < 1e-12 * np.abs(tape.data).max(), name


def rows(t):
    return t.data.reshape(N, -1)


# %% [markdown]
# ## The feed-forward half
#
# **y = out1 + f2·g4.** A sum passes dy to both. The product gives each factor dy
# times the other; g4 was stretched over the rows, so its cotangent is summed over them.

# %%
dy = gy.reshape(N, D)
df2, gg4 = dy * g4.data, (dy * rows(f2)).sum(axis=0)
check(gg4=(gg4, g4))

# %% [markdown]
# **f2 = silu(f1) wf2.** A matrix product: dA = dC Bᵀ, dB = Aᵀ dC.
#
# **silu(z) = z·s(z)**, s the sigmoid, with s' = s·(1 - s). The product rule gives
# silu' = s + z·s·(1 - s).


# %%
def dsilu(z):
    s = 1 / (1 + np.exp(-z))
    return s + z * s * (1 - s)


gwf2 = rows(sf).T @ df2
df1 = df2 @ wf2.data.T * dsilu(rows(f1))
check(gwf2=(gwf2, wf2), df1=(df1, f1))

# %% [markdown]
# **f1 = xn2 wf1, xn2 = n2·g3**, with n2 = rms(out1). The same two rules again.

# %%
gwf1 = rows(xn2).T @ df1
dxn2 = df1 @ wf1.data.T
gg3, dn2 = (dxn2 * rows(n2)).sum(axis=0), dxn2 * g3.data
check(gwf1=(gwf1, wf1), gg3=(gg3, g3), dn2=(dn2, n2))

# %% [markdown]
# **n = rms(z) = z·r, r = (mean z² + eps)^(-1/2).** The one line that needs paper. Take one
# row. Every z_j changes n_i twice: directly if i = j, and through r. Since
# ∂r/∂z_j = -½ r³ · 2 z_j / D = -r³ z_j / D, a cotangent u of n becomes
#
#     dz_j = Σ_i u_i ∂n_i/∂z_j = u_j·r + Σ_i u_i z_i · (-r³ z_j / D)
#          = r · (u_j - r² · z_j · mean(u·z))
#          = r · (u_j - n_j · mean(u·n))
#
# Call it R(z, u). In words: take from u its share along n, then scale.


# %%
def R(z, u):
    r = 1 / np.sqrt((z * z).mean(axis=1, keepdims=True) + eps)
    n = z * r
    return r * (u - n * (u * n).mean(axis=1, keepdims=True))


dout1 = R(rows(out1), dn2) + dy  # out1 is used twice: in the norm, and in y
check(dout1=(dout1, out1))

# %% [markdown]
# ## The recurrent half
#
# **out1 = x + s2 wo, s2 = silu(h·g2).** Nothing new.

# %%
gwo = rows(s2).T @ dout1
ds2 = dout1 @ wo.data.T
dhg = ds2 * dsilu(rows(hg))
gg2, dh = (dhg * rows(h)).sum(axis=0), dhg * g2.data
check(gwo=(gwo, wo), gg2=(gg2, g2))

# %% [markdown]
# **h_t = a_t·h_{t-1} + ub_t.** h_t is used above, and by the next step, which multiplies
# it by a_{t+1}. Both uses add up (tutorial 02), so the full cotangent G runs backwards in
# time: a scan like the forward one, from the end, where nothing comes after. ub_t enters by
# 1, and a_t times h_{t-1}. Before the first step the state is 0.
#
#     G_t = dh_t + a_{t+1}·G_{t+1}        dub_t = G_t        da_t = G_t·h_{t-1}

# %%
A, H, dH = a.data, h.data, dh.reshape(B, T, D)
G, da = np.zeros_like(H), np.zeros_like(H)
carry = np.zeros((B, D))  # a_{t+1}·G_{t+1}
for t in reversed(range(T)):
    G[:, t] = dH[:, t] + carry
    carry = A[:, t] * G[:, t]
    if t > 0:
        da[:, t] = G[:, t] * H[:, t - 1]
dub = G.reshape(N, D)
check(dub=(dub, ub), da=(da, a))

# %% [markdown]
# **a = sigmoid(ua), ua = xn wa' + bias, ub = xn wb, xn = n1·g1, n1 = rms(x).** xn feeds two
# products, so two terms; x feeds the norm and the residual sum, so two again.

# %%
dua = da.reshape(N, D) * rows(a) * (1 - rows(a))
gwa = np.vstack([rows(xn).T @ dua, dua.sum(axis=0)])  # the last row is the bias
gwb = rows(xn).T @ dub
dxn = dua @ wa.data[:-1].T + dub @ wb.data.T
gg1 = (dxn * rows(n1)).sum(axis=0)
dx = dout1 + R(rows(x), dxn * g1.data)
check(gwa=(gwa, wa), gwb=(gwb, wb), gg1=(gg1, g1), dx=(dx, x))

# %% [markdown]
# That is the whole derivation: ten gradients, four rules, one line with paper. Now read
# `FusedHelix.vjp` in `tinygrad_helix/fused/helix.py`: these lines, with the tricks of 08.

# %%
sheet = Sketch(
    640, 210, "the block: forward from left to right, cotangents from right to left"
)
names = (
    ("x", "dx"),
    ("xn", "dxn"),
    ("h", "G"),
    ("out1", "dout1"),
    ("f1", "df1"),
    ("y", "dy"),
)
steps = ("rms, g1", "gate, scan", "silu, wo", "rms, wf1", "silu, wf2")
for i, (value, cotangent) in enumerate(names):
    left = 48 + 108 * i
    sheet.box(left, 60, value, colour=BLUE, width=58).box(
        left, 140, cotangent, colour=ORANGE
    )
    if i:
        sheet.join(names[i - 1][0], value, colour=BLUE)
        sheet.join(cotangent, names[i - 1][1], colour=ORANGE)
        sheet.text(left - 54, 32, steps[i - 1], size=12)
for top, colour in ((76, BLUE), (156, ORANGE)):
    for x1, x2 in ((48, 362), (382, 588)):
        over = [(x1, top), (x1, top + 18), (x2, top + 18), (x2, top)]
        sheet.line(over, colour=colour, dashed=True)
sheet.text(320, 198, "dashed: the residual sums", size=12)
sheet.save("figures/07_derivation.svg")

# %% [markdown]
# ## Exercises
#
# **1.** With a state h0 before the first step, h_0 = a_0·h0 + ub_0. Which two lines of the
# scan's backward change, and what is the cotangent of h0? A program in the wild got this
# wrong: its gate gradient was off by a fifth, and training still worked.


# %%
def scan_backward(a, h, h0, dh):
    """(da, dub, dh0); h0 and dh0 are [B, D], everything else [B, T, D]."""
    ### BEGIN SOLUTION
    G, da, carry = np.zeros_like(h), np.zeros_like(h), np.zeros_like(h0)
    for t in reversed(range(h.shape[1])):
        G[:, t] = dh[:, t] + carry
        carry = a[:, t] * G[:, t]
        da[:, t] = G[:, t] * (h[:, t - 1] if t > 0 else h0)
    return da, G, carry
    ### END SOLUTION


with exercise(1):
    h0 = th.Tensor(rng.standard_normal((B, D)), requires_grad=True)
    states, _ = th.gated_scan(a, ub, h0)
    due = th.grad(states, [a, ub, h0], gy, retain_graph=True)
    got = scan_backward(a.data, states.data, h0.data, gy)
    for name, ours, tape in zip(("da", "dub", "dh0"), got, due, strict=True):
        assert np.allclose(ours, tape.data), f"{name} differs from the tape's"

# %% [markdown]
# **2.** Layer norm without gain and bias is n = (z - mean z)·r with
# r = (var z + eps)^(-1/2). Derive its backward. The paper of R helps: what else must be
# taken from u?


# %%
def layer_norm_backward(z, u):
    """The cotangent of z [N, D], for the cotangent u of layer_norm(z)."""
    ### BEGIN SOLUTION
    centred = z - z.mean(axis=1, keepdims=True)
    out = R(centred, u)
    return out - out.mean(axis=1, keepdims=True)
    ### END SOLUTION


with exercise(2):
    z = th.Tensor(rng.standard_normal((N, D)), requires_grad=True)
    (due,) = th.grad(th.layer_norm(z, eps=eps), z, dy)
    assert np.allclose(layer_norm_backward(z.data, dy), due.data), "differs from the tape"
