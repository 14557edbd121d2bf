# %% [markdown]
# # 06 The HELIX block, composed, drawn and measured
#
# Now a block of real size. HELIX is a layer for sequences: a gated linear recurrence, then
# a feed-forward network, both with a residual sum. One formula a line:
#
#     xn   = rms(x)·g1                    each token scaled to length √D, times a gain
#     a    = sigmoid(xn wa' + bias)       a gate between 0 and 1 for each channel
#     h_t  = a_t·h_{t-1} + (xn wb)_t      a state that fades by the gate and takes in x
#     out1 = x + silu(h·g2) wo            back to the stream, beside x
#     f1   = rms(out1)·g3 wf1             up to 2D
#     y    = out1 + silu(f1) wf2·g4       and down again
#
# rms(z) = z / √(mean z² + eps) over the D numbers of a token, silu(z) = z·sigmoid(z).

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import bars

B, T, D = 2, 16, 32
N = B * T  # tokens
block = th.nn.HelixBlock(D, mode="composed", generator=np.random.default_rng(0))
weights = dict(block.named_parameters())
x = th.randn(B, T, D, requires_grad=True, generator=np.random.default_rng(1))

# %% [markdown]
# ## Composed
#
# In the program each formula is a line. Everything on the right is an op of the package.


# %%
def composed(x, wa, wb, wo, wf1, wf2, g1, g2, g3, g4):
    xn = th.rms_norm(x) * g1  # [B, T, D]
    a = th.sigmoid(xn @ wa[:-1] + wa[-1])  # the last row of wa is the bias
    h, _ = th.gated_scan(a, xn @ wb)
    out1 = x + th.silu(h * g2) @ wo
    f1 = th.rms_norm(out1) * g3 @ wf1  # [B, T, 2D]
    return out1 + th.silu(f1) @ wf2 * g4


y = composed(x, **weights)
assert np.array_equal(y.data, block(x).data)  # it is the package's own composed block
order = [node.op.name for node in th.memory.nodes(y) if node.op.name != "getitem"]
assert len(order) == 18  # and two slices of wa
assert order[:6] == ["rms", "mul", "matmul", "add", "sigmoid", "matmul"]

# %% [markdown]
# ## Drawn
#
# A node a line, from the first to the last; the strands at the left are values on their
# way, with the two residual sums among them. In a notebook a drawing shows itself as a
# graph; `drawing.save("block.svg")` writes that picture.

# %%
drawing = th.draw(y, names={"x": x, "y": y, **weights})
print(drawing)
assert drawing.graph.tape_nodes == 18 + 2
assert drawing.graph.saved_bytes == th.saved_bytes(y)

# %% [markdown]
# ## What each node keeps, and why
#
# You have the rules from tutorial 05. Go down the table and give a reason for every line
# before you read the next cell. `parameter` and `shared` lines cost nothing.

# %%
print(th.memory.table(y))

# %% [markdown]
# Leaving the weights out, 16 saved tensors remain, on 13 storages: a is the result that
# sigmoid's derivative reads *and* the gate that the scan reads; xn feeds two products; h is
# kept by the scan and by the product with g2.

# %%
kept = (  # op.label, what it is, D numbers a token, why
    ("rms.x", "x", 1, "the norm's derivative"),
    ("mul.a", "rms(x)", 1, "g1's gradient"),
    ("matmul.a", "xn", 1, "wa's and wb's gradients"),
    ("sigmoid.y", "a", 1, "sigmoid' = a·(1 - a), and the scan"),
    ("gated_scan.h", "h", 1, "the gate's cotangent, and g2's gradient"),
    ("silu.x", "h·g2", 1, "silu'"),
    ("matmul.a", "s2 = silu(h·g2)", 1, "wo's gradient"),
    ("rms.x", "out1", 1, "the norm's derivative"),
    ("mul.a", "rms(out1)", 1, "g3's gradient"),
    ("matmul.a", "xn2", 1, "wf1's gradient"),
    ("silu.x", "f1", 2, "silu'"),
    ("matmul.a", "silu(f1)", 2, "wf2's gradient"),
    ("mul.a", "f2", 1, "g4's gradient"),
)
saved = [s for s in th.memory.saved(y) if not s.parameter]
distinct = [s for s in saved if s.first]
assert (len(saved), len(distinct)) == (16, 13)
for s, (name, _, width, _) in zip(distinct, kept, strict=True):
    assert (f"{s.op}.{s.label}", s.nbytes) == (name, width * N * D * 4)
assert sum(width for _, _, width, _ in kept) == 15
assert th.saved_bytes(y) == 15 * N * D * 4

sheet = bars(
    "the composed block keeps 15·D numbers a token (dark: operands of products)",
    {what: width for _, what, width, _ in kept},
    "·D",
    notes={what: f"for {why}" for _, what, _, why in kept},
    marked=[what for name, what, _, _ in kept if name == "matmul.a"],
)
sheet.save("figures/06_helix_composed.svg")

# %% [markdown]
# Look at that list as an accountant. rms(x), xn and x differ by cheap operations. So do
# h, h·g2 and s2. Each node is right to keep what it reads, and together they keep the same
# information three times. No node can know. That is what fusing is for.
#
# ## Measured
#
# The same number by three ways: by formula, on the tape, and as the bytes that NumPy gives
# back when the graph goes. And if even silu, rms and sigmoid are spelled out in plain
# arithmetic, as in many first versions, it is half as much again.

# %%
predicted = sum(block.predict_saved((B, T, D), "float32").values())
measured = th.accounting.measure_saved(composed, {"x": x, **weights}, weights)
assert predicted == th.saved_bytes(y) == measured == 61_440

primitive = th.helix_block(x, **weights, mode="primitive")
nodes = [n for n in th.memory.nodes(primitive) if n.op.name != "getitem"]
assert len(nodes) == 40
assert th.saved_bytes(primitive) == N * ((22 * D + 2) * 4 + 4 * D)
assert np.allclose(primitive.data, y.data, atol=1e-5)

# %% [markdown]
# The saved bytes are not all that a step needs. During the backward pass there are
# cotangents, too. `profile` measures the highest point, and names the node that was running
# and the largest array on the tape then.

# %%
whole = th.accounting.profile(composed, {"x": x, **weights}, parameters=weights)
print(f"saved {whole.counted:,}, peak {whole.peak_bytes:,} bytes in {whole.peak_at}")
assert whole.peak_bytes > whole.counted

# %% [markdown]
# ## Exercises
#
# **1.** Freeze all weights, so that only x wants a gradient. What does the tape keep now?
# Go through `kept` and strike out what only a gradient of a weight reads.


# %%
def kept_for_x_alone():
    """The names (as in the second column of `kept`) of what stays."""
    ### BEGIN SOLUTION
    return {"x", "a", "h", "h·g2", "out1", "f1"}
    ### END SOLUTION


with exercise(1):
    names = kept_for_x_alone()
    frozen = composed(x, *(p.detach() for p in block.parameters()))
    left = [s for s in th.memory.saved(frozen) if s.first and not s.parameter]
    due = sorted(f"{s.op}.{s.label}" for s in left)
    got = sorted(name for name, what, _, _ in kept if what in names)
    assert got == due, f"the tape keeps {len(due)} arrays, you have {len(got)}: {got}"

# %% [markdown]
# **2.** f2 is kept for g4's gradient alone. But (silu(f1) wf2)·g4 = silu(f1) (wf2·g4): the
# gain may be multiplied into the weight, which is small. The same goes for g3 and the rows
# of wf1. Write the last two lines of the block so that 2·D numbers a token go away.


# %%
def second_half(out1, wf1, wf2, g3, g4):
    """out1 + silu(rms(out1)·g3 wf1) wf2·g4."""
    ### BEGIN SOLUTION
    f1 = th.rms_norm(out1) @ (g3[:, None] * wf1)
    return out1 + th.silu(f1) @ (wf2 * g4)
    ### END SOLUTION


with exercise(2):
    z = th.randn(64, 32, D, requires_grad=True)
    half = [block.wf1, block.wf2, block.g3, block.g4]
    y2 = second_half(z, *half)
    due = z + th.silu(th.rms_norm(z) * block.g3 @ block.wf1) @ block.wf2 * block.g4
    assert np.allclose(y2.data, due.data, atol=1e-4), "the values differ"
    most = (6 * z.size + 4 * D * D) * 4
    got = th.saved_bytes(y2)
    assert got <= most, f"it keeps {got:,} bytes; {most:,} are enough"
