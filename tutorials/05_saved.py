# %% [markdown]
# # 05 What is saved: labels, storages, views, bytes
#
# Between the forward and the backward pass the tape holds arrays. They can take more memory
# than the parameters do, as they will here, so it pays to know each of them: which node
# keeps it, why, and whether it really costs something. This tutorial takes one small
# expression apart until nothing in it is a mystery:
#
#     u = x W1        v = x W3        g = silu(u) · v        silu(u) = u · sigmoid(u)

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.nn import Parameter
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import AMBER, SKY, Sketch

N, D, F = 6, 4, 8
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.standard_normal(shape).astype("float32")


x = th.Tensor(normal(N, D), requires_grad=True)
w1, w3 = Parameter(normal(D, F)), Parameter(normal(D, F))
u, v = x @ w1, x @ w3  # [N, F]
g = th.silu(u) * v
print(th.memory.table(g))

# %% [markdown]
# ## A node keeps what its derivative reads
#
# Each line of that table is a *saved tensor*: the operation and its label, the shape, the
# bytes, and the line of your program that made the node. You can predict every line. Write
# the derivative down and see what is in it besides the cotangent:
#
# | operation | derivative | keeps |
# |---|---|---|
# | y = a + b | da = dy, db = dy | nothing |
# | y = a · b | da = dy · b, db = dy · a | a and b |
# | y = a @ b | da = dy bᵀ, db = aᵀ dy | a and b |
# | y = eˣ | dx = dy · y | its result |
# | y = silu(x) | dx = dy · silu'(x) | x |
# | sum, reshape, transpose, slice | the same values elsewhere | nothing |

# %%
rows = th.memory.saved(g)
assert [f"{s.op}.{s.label}" for s in rows] == [
    *("matmul.a", "matmul.b"),  # x and w1
    *("matmul.a", "matmul.b"),  # x and w3
    "silu.x",  # u
    *("mul.a", "mul.b"),  # silu(u) and v
]
assert th.saved_bytes((x + x).sum()) == 0
assert th.saved_bytes(x.reshape(D, N).transpose(1, 0)[0].sum()) == 0
assert [s.label for s in th.memory.saved(x.exp())] == ["y"]

# %% [markdown]
# ## A buffer is counted once
#
# Seven saved tensors are not seven arrays. Both products keep the same x. What takes memory
# is the buffer behind an array, its *storage*, however many nodes hold it.
#
# And a parameter is there anyway, whether or not a tape holds it. So the sum of saved bytes
# leaves parameters out. For g there remain x, u, silu(u) and v: D + 3F numbers a row. (In
# each row of `th.memory.saved`, `first` says whether its storage has not come before.)

# %%
assert rows[0].storage_id == rows[2].storage_id and not rows[2].first
assert [s.parameter for s in rows] == [False, True, False, True, False, False, False]
assert th.saved_bytes(g) == (D + 3 * F) * N * 4
assert th.saved_bytes(g) > w1.nbytes + w3.nbytes

# %% [markdown]
# ## A view holds the whole buffer
#
# `big[0]` looks like one row. It is a view: 1 row, but the buffer of all 1000. If a node
# saves it, the whole buffer stays alive. Each row of the table has both numbers, and this
# is a leak that real programs have.

# %%
big = th.Tensor(normal(1000, D))
w = Parameter(normal(D))
leak = big[0] * w
print(th.memory.table(leak))
saved = [s for s in th.memory.saved(leak) if not s.parameter]
assert (saved[0].view_nbytes, saved[0].nbytes) == (D * 4, 1000 * D * 4)

mended = th.tensor(big.data[0]) * w  # `tensor` copies
assert th.saved_bytes(mended) == D * 4

# %% [markdown]
# ## Nothing is kept that nobody wants
#
# Only what leads to a leaf with `requires_grad` is recorded. So freezing a weight drops
# what its gradient would have read, and under `no_grad` there is no tape at all. If x wants
# no gradient and w3 is frozen, the second product has nothing to keep.

# %%
w3.requires_grad = False
x_data = x.detach()
g2 = th.silu(x_data @ w1) * (x_data @ w3)
assert [f"{s.op}.{s.label}" for s in th.memory.saved(g2)] == ["matmul.a", "silu.x", "mul.b"]
assert th.saved_bytes(g2) == (D + 2 * F) * N * 4  # silu(u) is not kept: v needs no gradient
with th.no_grad():
    assert th.saved_bytes(th.silu(x @ w1) * (x @ w3)) == 0
w3.requires_grad = True

# %% [markdown]
# ## Who holds it?
#
# If an array is alive and you cannot see why, ask. Here the variable u is gone, but silu
# still reads its array.

# %%
array = u.data
del u
reasons = th.why_alive(array)
print(*reasons, sep="\n")
assert any("saved as 'x' by silu" in reason for reason in reasons)
del array

# %% [markdown]
# ## And when does it go?
#
# In the backward pass, node by node: as soon as a node's vjp has run, what it kept is
# dropped. So memory falls while the gradients grow. A recording shows the bytes that the
# tape still holds after each event.

# %%
with th.memory.record() as ledger:
    g = th.silu(x @ w1) * (x @ w3)
    g.sum().backward()
held = [(e.phase, e.op, sum(e.bands.values()) // (N * 4)) for e in ledger.events]
assert held == [  # numbers a row
    ("forward", "matmul", D),  # x
    ("forward", "silu", D + F),  # and u
    ("forward", "matmul", D + F),  # x again
    ("forward", "mul", D + 3 * F),  # and both factors
    ("forward", "sum", D + 3 * F),
    ("backward", "sum", D + 3 * F),
    ("backward", "mul", D + F),
    ("backward", "matmul", D + F),  # the other product still holds x
    ("backward", "silu", D),
    ("backward", "matmul", 0),
]

# %% [markdown]
# ## Three numbers that must agree
#
# We *predicted* (D + 3F)·N·4 bytes by a formula. The tape *counted* the same. And NumPy
# itself can be asked: drop the graph, and *measure* how many bytes come back. If the three
# agree, nothing is hidden. The package checks itself so, for every block that it has.


# %%
def gated(x, w1, w3):
    return th.silu(x @ w1) * (x @ w3)


inputs = {"x": x, "w1": w1, "w3": w3}
predicted = (D + 3 * F) * N * 4
assert th.saved_bytes(gated(**inputs)) == predicted
assert th.accounting.measure_saved(gated, inputs, ("w1", "w3")) == predicted

# %% [markdown]
# ## The picture
#
# What each node keeps, and the storage behind it. Sky blue: parameters.

# %%
sheet = Sketch(640, 270, "seven saved tensors of g, and the storages behind them")
storages = {n: 45 + 40 * i for i, n in enumerate(("x", "w1", "w3", "u", "silu(u)", "v"))}
sheet.text(110, 18, "node.label", bold=True).text(480, 18, "storage", bold=True)
for name, top in storages.items():
    fill = SKY if name in ("w1", "w3") else AMBER
    size = f"N·{'D' if name == 'x' else 'F'}·4 bytes"
    words = "parameter" if fill == SKY else size
    sheet.box(430, top, name, width=80, height=26, fill=fill)
    sheet.text(480, top, words, anchor="start", size=12)
holders = ("matmul.a:x", "matmul.b:w1", "matmul.a:x", "matmul.b:w3", "silu.x:u")
for i, held in enumerate((*holders, "mul.a:silu(u)", "mul.b:v")):
    node, name = held.split(":")
    sheet.box(110, 45 + 34 * i, node, width=110, height=26).join(node, name)
sheet.save("figures/05_saved.svg")

# %% [markdown]
# ## Exercises
#
# **1.** How many bytes does the tape keep for `((x @ w).exp() + x @ w).sum()`, with float32
# x [n, d] that wants a gradient and a parameter w [d, f]? Careful: x @ w is written twice.


# %%
def predict(n, d, f):
    ### BEGIN SOLUTION
    return (n * d + n * f) * 4  # x, once, and the result of exp
    ### END SOLUTION


with exercise(1):
    for n, d, f in ((2, 3, 4), (5, 1, 7)):
        a, w = th.Tensor(normal(n, d), requires_grad=True), Parameter(normal(d, f))
        due, got = th.saved_bytes(((a @ w).exp() + a @ w).sum()), predict(n, d, f)
        assert got == due, f"for n={n}, d={d}, f={f} the tape has {due} bytes, not {got}"

# %% [markdown]
# **2.** `(x @ w)[0] * k` keeps a view of one row of the product, and so all of it. Write
# the same function so that, besides x, it keeps no more than a row of f numbers.


# %%
def first_row(x, w, k):
    """The first row of x w, times k."""
    ### BEGIN SOLUTION
    return (x[0] @ w) * k
    ### END SOLUTION


with exercise(2):
    x = th.Tensor(normal(50, D), requires_grad=True)
    w, k = Parameter(normal(D, F)), Parameter(normal(F))
    y = first_row(x, w, k)
    assert np.allclose(y.data, (x.data @ w.data)[0] * k.data, atol=1e-6), "another value"
    most, got = x.nbytes + F * 4, th.saved_bytes(y)
    assert got <= most, f"it keeps {got} bytes; {most} are enough"
