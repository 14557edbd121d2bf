# %% [markdown]
# # 09 Walking backward, and causing every error on purpose
#
# `backward()` does its work in one go and leaves only gradients. To see it happen, walk:
# `th.tape.steps(y)` is the same sweep as an iterator, one node a step. Then we break things
# on purpose, all of them, because an error that you have met once is no riddle later.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.explanations import EXPLANATIONS
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import BLUE, GREY, ORANGE, Sketch

B, T, D = 2, 8, 16
block = th.nn.HelixBlock(D, mode="composed", generator=np.random.default_rng(0))
x = th.randn(B, T, D, requires_grad=True, generator=np.random.default_rng(1))
y = block(x).sum()
held = th.saved_bytes(y)

# %% [markdown]
# ## One node at a time
#
# Each step tells which node was visited, what cotangents came in and were sent on, which
# saved tensors were dropped, and how many bytes the tape still holds.

# %%
walk, live = [], [held]
for step in th.tape.steps(y):
    freed = ", ".join(f.label for f in step.freed if f.nbytes)
    print(f"{step.number:>2} {step.node.op.name:<10} frees {step.freed_bytes:>5}  {freed}")
    walk.append((step.node.op.name, step.freed_bytes, len(step.landed)))
    live.append(step.live_bytes)
gradients = [p.grad.data.copy() for p in block.parameters()]

# %% [markdown]
# The tape is played from its end: `sum` first, the norm of x last. The memory only falls,
# and what is freed adds up to what was saved.

# %%
assert [name for name, _, _ in walk[:3]] == ["sum", "add", "mul"]
assert walk[-1][0] == "rms"
assert live == sorted(live, reverse=True)
assert sum(freed for _, freed, _ in walk) == held
assert live[-1] == 0 == th.saved_bytes(y)

# %% [markdown]
# Some steps free nothing. An addition has kept nothing. And a buffer with two holders goes
# with the second of them: the product with g2 lets go of h, but the scan still holds it.

# %%
names = [name for name, _, _ in walk]
assert walk[names.index("add")][1] == 0
scan = names.index("gated_scan")
assert walk[scan - 1] == ("mul", 0, 1)  # h stays, and g2's gradient lands here
assert walk[scan][1] > 0

# %% [markdown]
# Walking is not another algorithm. A sweep in one go gives the same gradients, to the bit.

# %%
for p in block.parameters():
    p.grad = None
block(x).sum().backward()
assert all(
    np.array_equal(p.grad.data, g)
    for p, g in zip(block.parameters(), gradients, strict=True)
)

# %% [markdown]
# Two rules come with the freedom to stop. Stop half way, and *no* gradient has changed:
# they land together at the end. But the nodes that were visited have dropped their saved
# tensors, so this graph cannot be swept again.

# %%
x = th.tensor([1.0, 2.0], requires_grad=True)
y = (x * x).exp().sum()
steps = th.tape.steps(y)
next(steps), next(steps)  # sum, exp
assert x.grad is None


def message(run, error):
    """What `run` raises, which must be this error."""
    try:
        run()
    except error as raised:
        print(f"{error.__name__}: {raised}\n")
        return str(raised)
    raise AssertionError(f"{error.__name__} was due")


said = message(y.backward, th.errors.SavedTensorsFreedError)

# %% [markdown]
# ## Reading an error
#
# Every message has four parts: what happened, where (the operation, and the line of *your*
# file that made the node), with which values, and how to mend it. The one above names exp,
# this file, and the way out.

# %%
assert "exp (node" in said and "retain_graph=True" in said


# %% [markdown]
# The three that everybody meets: a second sweep, as above. A write to an array that a node
# relies on. A sweep from something that is not one number.


# %%
def write_in_place():
    y = th.tensor([0.0, 1.0], requires_grad=True).exp()  # keeps its result
    y.data *= 2
    y.sum().backward()


said = message(write_in_place, th.errors.InPlaceModificationError)
assert "saved 'y'" in said
said = message((x * x).backward, th.errors.NonScalarBackwardError)
assert "(2,)" in said

# %% [markdown]
# ## All of them
#
# `python -m tinygrad_helix explain` lists every kind of error. `explain in-place`, say,
# shows one: its cause, at most five lines that raise it, the fix, and the lines mended.
# Here we run them all: the lines must raise exactly their error, the mended ones nothing.

# %%
caused = 0
for kind, page in EXPLANATIONS.items():
    if page.needs:
        continue  # depends on whether there is a GPU
    assert len(page.lines.splitlines()) <= 5
    try:
        exec(page.lines, {})
    except th.errors.HelixError as raised:
        assert type(raised) is page.error
        print(f"{kind:<17} {type(raised).__name__}")
        caused += 1
    exec(page.fixed_lines, {})
assert caused == sum(not page.needs for page in EXPLANATIONS.values())

# %% [markdown]
# ## The picture
#
# The bytes that the tape holds after each step of the walk.

# %%
sheet = Sketch(640, 280, "bytes that the tape holds, after each step of the sweep")
sheet.text(330, 18, "bytes that the tape holds, step by step", bold=True)
sheet.line([(60, 30), (60, 240), (625, 240)], colour=GREY)
width, high = 560 / len(live), 190 / held
points = []
for i, n in enumerate(live):
    points += [(60 + i * width, 240 - n * high), (60 + (i + 1) * width, 240 - n * high)]
sheet.line(points, colour=BLUE, width=2.5)
sheet.text(54, 50, f"{held:,}", size=12, anchor="end").text(
    54, 240, "0", size=12, anchor="end"
)
for i in (1, scan + 1, len(walk)):
    left = 60 + (i + 0.5) * width
    sheet.dot(left, 240 - live[i] * high, ORANGE)
    sheet.text(left, 258, f"{i}: {names[i - 1]}", size=12, colour=ORANGE)
sheet.save("figures/09_walk_and_errors.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Which operation lets go of most bytes in one step? Walk and find out.


# %%
def frees_most(y):
    """The name of its op."""
    ### BEGIN SOLUTION
    return max((step.freed_bytes, step.node.op.name) for step in th.tape.steps(y))[1]
    ### END SOLUTION


with exercise(1):
    big, small = th.ones(100, requires_grad=True), th.ones(3, requires_grad=True)
    assert frees_most(big.exp().sum() + small.tanh().sum()) == "exp", "not the largest"
    assert frees_most(small.exp().sum() + big.tanh().sum()) == "tanh", "not the largest"

# %% [markdown]
# **2.** Two losses share a part of their graph, and this raises:
#
#     shared = x.exp()
#     first, second = shared.sum(), (shared * shared).sum()
#     first.backward()
#     second.backward()
#
# Mend it: x.grad becomes the sum of both gradients, by one sweep.


# %%
def both(x):
    ### BEGIN SOLUTION
    shared = x.exp()
    th.backward([shared.sum(), (shared * shared).sum()])
    ### END SOLUTION


with exercise(2):
    x = th.tensor([0.0, 1.0], requires_grad=True)
    both(x)
    due = np.exp(x.data) + 2 * np.exp(2 * x.data)
    assert x.grad is not None and np.allclose(x.grad.data, due), f"{due} is due"

# %% [markdown]
# **3.** Write one step of gradient descent on f(w) = Σ w². A plain `w -= ...` raises, for
# a good reason: `explain write-to-tracked` tells where it may stand.


# %%
def descend(w, rate):
    """w becomes w - rate · gradient, in place."""
    ### BEGIN SOLUTION
    (w * w).sum().backward()
    with th.no_grad():
        w -= rate * w.grad
    ### END SOLUTION


with exercise(3):
    w = th.tensor([1.0, -2.0], requires_grad=True)
    descend(w, 0.25)
    assert w.tolist() == [0.5, -1.0], f"[0.5, -1.0] is due, w is {w.tolist()}"
