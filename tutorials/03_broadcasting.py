# %% [markdown]
# # 03 Broadcasting and un-broadcasting
#
# NumPy adds a row of 3 numbers to a table of 2×3 without complaint: it stretches the row.
# Everyone uses this, for biases, gains, means. What is its derivative?
#
# You know the answer already. A stretched number is a number that is used several times,
# and by tutorial 02 the cotangents of all uses add up. So **un-broadcasting is a sum**:
# over the axes that were stretched.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import AMBER, SKY, WHITE, Sketch

x = th.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)  # [2, 3]
b = th.tensor([10.0, 20.0, 30.0], requires_grad=True)  # [3]
dy = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])  # [2, 3]
(x + b).backward(dy)
assert np.array_equal(x.grad.numpy(), dy)  # used once
assert np.array_equal(b.grad.numpy(), [11, 22, 33])  # used in both rows

# %% [markdown]
# ## The rule
#
# NumPy lines shapes up at their right ends. A missing axis is added in front, and an axis
# of size 1 is stretched. So there are two kinds of axes to sum over, and those of the
# second kind must stay, with size 1.


# %%
def unbroadcast(dy, shape):
    """The cotangent of an array of `shape` that was broadcast to the shape of dy."""
    added = dy.ndim - len(shape)
    stretched = [
        added + i for i, n in enumerate(shape) if n == 1 and dy.shape[added + i] != 1
    ]
    return dy.sum(axis=(*range(added), *stretched)).reshape(shape)


rng = np.random.default_rng(0)
for p_shape, q_shape in (
    ((2, 3), (3,)),
    ((2, 3), (2, 1)),
    ((4, 1, 5), (3, 1)),
    ((), (2, 2)),
    ((1,), (1, 1)),
):
    p = th.Tensor(rng.standard_normal(p_shape), requires_grad=True)
    q = th.Tensor(rng.standard_normal(q_shape), requires_grad=True)
    y = p * q
    d = rng.standard_normal(y.shape)
    dp, dq = th.grad(y, [p, q], d)
    assert np.allclose(dp.numpy(), unbroadcast(d * q.data, p_shape))
    assert np.allclose(dq.numpy(), unbroadcast(d * p.data, q_shape))

# %% [markdown]
# No op of this package contains that function. An op says `broadcasts = True` and returns
# cotangents of the *result's* shape; the tape sums them. So it is written once.
#
# ## Why you must check the numbers, not the shapes
#
# If you forget the sum, the shapes do not fit, and you get an error. If you sum over the
# wrong axis, they may fit. For a square table they always do.

# %%
x = th.Tensor(rng.standard_normal((3, 3)))
b = th.tensor(np.zeros(3), requires_grad=True)
d = rng.standard_normal((3, 3))
(right,) = th.grad(x + b, b, d)
wrong = d.sum(axis=1)  # over columns; a [3] is stretched over rows
assert wrong.shape == right.shape
assert not np.allclose(wrong, right.numpy())

# %% [markdown]
# Nothing stops a program with this bug: no error tells of it. So tests of gradients use
# shapes whose sizes all differ, and compare with differences of the function itself.
# Tutorial 04 does so, with a table of 2×3.
#
# ## Stretch and sum are one pair
#
# Stretching is linear. So is summing. They are each other's *transpose*: for any b and d,
# the product of (b stretched) with d is the product of b with (d summed).

# %%
b, d = rng.standard_normal(3), rng.standard_normal((2, 3))
stretched = np.broadcast_to(b, (2, 3))
assert np.isclose((stretched * d).sum(), (b * unbroadcast(d, (3,))).sum())

# %% [markdown]
# A vjp is always a product with the transpose. So the same pair works the other way round:
# the cotangent of a *sum* is a stretch.

# %%
x = th.tensor(np.zeros((2, 3)), requires_grad=True)
x.sum(axis=0).backward(np.array([1.0, 2.0, 3.0]))
assert np.array_equal(x.grad.numpy(), [[1, 2, 3], [1, 2, 3]])

# %% [markdown]
# ## What it costs
#
# A stretched array is not larger. An array's *strides* say how many bytes it is from one
# element to the next, along each axis; NumPy walks over the same row again, by a stride of
# 0. So a gain of D numbers that multiplies N rows is kept as D numbers.

# %%
N, D = 1000, 8
assert np.broadcast_to(np.zeros(D), (N, D)).strides == (0, 8)
x = th.tensor(np.ones((N, D)), requires_grad=True)
g = th.tensor(np.ones(D), requires_grad=True)
y = x * g
assert {s.label: s.nbytes for s in th.memory.saved(y)} == {"a": N * D * 8, "b": D * 8}

# %% [markdown]
# The way back is not free: dg is Σ dy·x over the rows, and `dy * x` is a full table of N·D
# numbers that lives until it is summed. It is a *transient*: it is not kept between the
# passes, but the machine must have room for it. The fused block of tutorial 08 avoids
# exactly such tables.

# %% [markdown]
# ## The picture
#
# A row is stretched on the way forward, and summed on the way back.

# %%
sheet = Sketch(640, 190, "b is stretched over two rows; its gradient is the sum over them")
for top, left, row, fill in (
    (95, 60, (10, 20, 30), SKY),
    (70, 260, (10, 20, 30), SKY),
    (120, 260, (10, 20, 30), SKY),
    (70, 420, (1, 2, 3), WHITE),
    (120, 420, (10, 20, 30), WHITE),
    (95, 580, (11, 22, 33), AMBER),
):
    for i, number in enumerate(row):
        box = {"width": 34, "height": 30, "round": False}
        sheet.box(left + 34 * (i - 1), top, f"{number}", fill=fill, size=13, **box)
for left, words in (
    (60, "b [3]"),
    (260, "as used [2, 3]"),
    (420, "dy [2, 3]"),
    (580, "db [3]"),
):
    sheet.text(left, 30, words)
sheet.line([(120, 95), (196, 95)], arrow=True).text(158, 82, "stretch", size=12)
sheet.line([(477, 95), (523, 95)], arrow=True).text(500, 82, "sum", size=12)
sheet.text(500, 109, "over rows", size=12)
sheet.save("figures/03_broadcasting.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Write the vjp of the mean over one axis. The result of `x.mean(axis)` lacks that
# axis; the cotangent of x must have it again.


# %%
def mean_vjp(dy, shape, axis):
    """The cotangent of x of `shape`, for y = x.mean(axis)."""
    ### BEGIN SOLUTION
    return np.broadcast_to(np.expand_dims(dy, axis) / shape[axis], shape)
    ### END SOLUTION


with exercise(1):
    x = th.Tensor(rng.standard_normal((2, 3, 4)), requires_grad=True)
    for axis in (0, 1, 2):
        y = x.mean(axis=axis)
        d = rng.standard_normal(y.shape)
        due, got = th.grad(y, x, d)[0].numpy(), mean_vjp(d, x.shape, axis)
        assert got.shape == due.shape, f"axis {axis}: {due.shape} is due, not {got.shape}"
        assert np.allclose(got, due), (
            f"axis {axis}: the shape is right, the numbers are not"
        )

# %% [markdown]
# **2.** The outer product y = u[:, None] · v[None, :] is a broadcast product. Write its two
# cotangents, each as one matrix product and without a table of the size of dy·v.


# %%
def outer_vjp(dy, u, v):
    """(du, dv) for y[i, j] = u[i]·v[j]."""
    ### BEGIN SOLUTION
    return dy @ v, u @ dy
    ### END SOLUTION


with exercise(2):
    u = th.Tensor(rng.standard_normal(4), requires_grad=True)
    v = th.Tensor(rng.standard_normal(5), requires_grad=True)
    d = rng.standard_normal((4, 5))
    due = th.grad(u[:, None] * v[None, :], [u, v], d)
    for name, a, r in zip("uv", outer_vjp(d, u.data, v.data), due, strict=True):
        assert np.allclose(a, r.data), f"d{name} is {r.data.round(2)}, you have {a}"

# %% [markdown]
# **3.** p of shape (4, 1, 5) and q of shape (3, 1) make a product of shape (4, 3, 5). Over
# which axes of the product does the tape sum for dp, and over which for dq?


# %%
def summed_axes():
    """(axes for dp, axes for dq), each a set of numbers."""
    ### BEGIN SOLUTION
    return {1}, {0, 2}
    ### END SOLUTION


with exercise(3):
    d = rng.standard_normal((4, 3, 5))
    for name, shape, axes in zip("pq", ((4, 1, 5), (3, 1)), summed_axes(), strict=True):
        got = d.sum(axis=tuple(axes), keepdims=True)
        due = unbroadcast(d, shape)
        assert got.size == due.size, f"d{name} has {due.size} numbers, yours {got.size}"
        assert np.allclose(got.ravel(), due.ravel()), f"other axes for d{name}"
