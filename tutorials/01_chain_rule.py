# %% [markdown]
# # 01 One chain rule, by hand and by the engine
#
# You know the chain rule from calculus. A program that trains a network applies it to every
# step of a long computation, and the only clever thing about that is the order. Here you
# apply it once, by hand, and then watch the engine do the same.
#
# The function is small enough for a pencil:
#
#     y = (a·b + c)²        at a = 3, b = 2, c = -4

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import ORANGE, Sketch

# %% [markdown]
# ## Forward
#
# A computer cannot evaluate that formula at once. It takes one step after another, and
# gives each result a name. There are three steps, and the last gives 4.

# %%
a, b, c = 3.0, 2.0, -4.0
p = a * b
s = p + c
y = s**2
assert (p, s, y) == (6, 2, 4)

# %% [markdown]
# ## Backward
#
# How much does y change when a changes a little? Nobody knows directly: there are steps in
# between. But each *step* is easy. So we ask one question of every name, from the last to
# the first: **how much does y change for each unit that this value changes?** The answer is
# ∂y/∂(value). It is called the *cotangent* of the value, and written `dp` for p.
#
# y changes by 1 for each unit of y. From there on the rule is always the same: the
# cotangent of a step's input is the cotangent of its result times the step's own
# derivative.
#
#     y = s²         ∂y/∂s = 2s              ds = dy · 2s
#     s = p + c      ∂s/∂p = 1, ∂s/∂c = 1    dp = ds,        dc = ds
#     p = a·b        ∂p/∂a = b, ∂p/∂b = a    da = dp · b,    db = dp · a

# %%
dy = 1.0
ds = dy * 2 * s
dp, dc = ds, ds
da, db = dp * b, dp * a
assert (da, db, dc) == (8, 12, 4)

# %% [markdown]
# That was the chain rule: each line multiplies what has arrived by one local derivative.
# Do not take it on trust. Nudge each input by a little, both ways, and see how y moves.


# %%
def f(a, b, c):
    return (a * b + c) ** 2


def nudge(i, step=1e-5):
    """The slope of f in its input i, by two evaluations."""
    up, down = [a, b, c], [a, b, c]
    up[i] += step
    down[i] -= step
    return (f(*up) - f(*down)) / (2 * step)


assert np.allclose([nudge(0), nudge(1), nudge(2)], [da, db, dc], atol=1e-8)

# %% [markdown]
# Nudging needs two runs of f for every input, and a network has millions of inputs. Going
# backward needs one pass for all of them. That is the whole reason for reverse mode.
#
# There is a price. Look at which values of the *forward* pass the backward lines read: s
# for the square, a and b for the product. Addition reads nothing at all. What is read must
# still be there, so it must be kept. On a real network this is where the memory goes, and
# it is what the rest of these tutorials is about.

# %% [markdown]
# ## By the engine
#
# A `Tensor` is an array that remembers how it was computed. Mark the inputs with
# `requires_grad=True`, compute as usual, and call `backward()` on the result. What lands on
# an input is called its *gradient*, and `.grad` holds it.

# %%
A, B, C = (th.tensor(v, requires_grad=True) for v in (a, b, c))
Y = (A * B + C) ** 2
print(th.draw(Y, names={"a": A, "b": B, "c": C}))
kept = [f"{s.op}.{s.label}" for s in th.memory.saved(Y)]
before = th.saved_bytes(Y)
Y.backward()
assert (A.grad.item(), B.grad.item(), C.grad.item()) == (da, db, dc)

# %% [markdown]
# The drawing has a line a step. At the left the lines lead each value, from the ● where it
# is made, down to the ● where it is used. An n and a number name a step, which is called a
# *node*, and what a node `keeps` stands behind it, by name and in bytes.
#
# It kept what we said must be kept: both factors of the product, and s for the square (the
# operation is `pow`, and s is its `a`). Three float32 numbers are 12 bytes. After the
# backward pass nobody will read them again, so they are gone.

# %%
assert kept == ["mul.a", "mul.b", "pow.a"]
assert before == 3 * 4
assert th.saved_bytes(Y) == 0

# %% [markdown]
# ## From numbers to arrays
#
# Nothing changes when a value is an array, except that its cotangent is an array too, of
# the same shape: one "how much" for each element. Where y is a single number the engine
# starts with dy = 1. Where y is an array you say what dy is, one weight for each element,
# and get the derivatives of the weighted sum Σ dy·y.

# %%
x = th.tensor([1.0, 2.0, 3.0], requires_grad=True)
(x**2).backward(np.array([1.0, 10.0, 100.0]))
assert x.grad.tolist() == [2 * 1, 2 * 2 * 10, 2 * 3 * 100]

# %% [markdown]
# A function from n numbers to m has n·m partial derivatives, the Jacobian. We never write
# it down. Each step knows how to turn the cotangent of its result into the cotangents of
# its inputs, which is a product of a vector and the Jacobian: a *vjp*.
#
# Take the matrix product, `X @ W` in Python: its element in row i and column j is the sum
# over k of X[i, k]·W[k, j]. Its vjp is two matrix products, with `.T`, the transpose, which
# swaps rows and columns. The shapes say which two can be meant; the numbers decide.

# %%
X = th.tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)  # [2, 3]
W = th.tensor(np.ones((3, 4)), requires_grad=True)  # [3, 4]
dY = np.arange(8.0).reshape(2, 4)
(X @ W).backward(dY)
assert np.array_equal(X.grad.numpy(), dY @ W.data.T)  # [2, 4] [4, 3] = [2, 3]
assert np.array_equal(W.grad.numpy(), X.data.T @ dY)  # [3, 2] [2, 4] = [3, 4]

# %% [markdown]
# ## The picture
#
# The three steps: values above, cotangents below. `Sketch` draws boxes, words and arrows.

# %%
sheet = Sketch(640, 270, "y = (a·b + c)²: values forward, cotangents backward")
at = {"a": (50, 45), "b": (50, 155), "c": (210, 205), "p = a·b": (210, 95)}
at |= {"s = p + c": (390, 130), "y = s²": (560, 130)}
values = (a, b, c, p, s, y)
cotangents = (da, db, dc, dp, ds, dy)
# (strict: zip raises if one of them is longer than the others)
for (name, (left, top)), v, dv in zip(at.items(), values, cotangents, strict=True):
    sheet.box(left, top, name)
    sheet.text(left, top - 27, f"{v:g}", bold=True)
    sheet.text(left, top + 28, f"{dv:g}", colour=ORANGE, bold=True)
for step in ("a > p = a·b", "b > p = a·b", "p = a·b > s = p + c", "c > s = p + c"):
    sheet.join(*step.split(" > "))
sheet.join("s = p + c", "y = s²")
sheet.text(630, 255, "black: value, orange: cotangent", anchor="end", size=12)
sheet.save("figures/01_chain_rule.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Write the derivatives of y = (a + b)·c² by hand: forward in three steps, backward
# in three lines. The check compares you with the engine.


# %%
def by_hand(a, b, c):
    """(da, db, dc) of y = (a + b)·c²."""
    ### BEGIN SOLUTION
    s = a + b
    q = c * c
    ds, dq = q, s
    dc = dq * 2 * c
    return ds, ds, dc
    ### END SOLUTION


with exercise(1):
    for at in ((3.0, 2.0, -4.0), (1.0, 0.0, 0.5)):
        A, B, C = (th.tensor(v, requires_grad=True) for v in at)
        due = [g.item() for g in th.grad((A + B) * C**2, [A, B, C])]
        got = by_hand(*at)
        assert np.allclose(got, due), f"at {at} the engine has {due}, you have {got}"

# %% [markdown]
# **2.** The derivative of tanh x is 1 - tanh² x. So the vjp can be written from the
# *result* alone, without x. Write it.


# %%
def tanh_vjp(dy, y):
    """The cotangent of x, where y = tanh x."""
    ### BEGIN SOLUTION
    return dy * (1 - y * y)
    ### END SOLUTION


with exercise(2):
    z = th.linspace(-2, 2, 9, dtype="float64")
    z.requires_grad = True
    dz = np.arange(9.0)
    due = th.grad(z.tanh(), z, dz)[0].numpy()
    got = tanh_vjp(dz, np.tanh(z.data))
    assert np.allclose(got, due), f"the engine has {due.round(3)}, you have {got}"

# %% [markdown]
# **3.** Before you run it: which values does the tape keep for ((a + b)·c).exp()? Name them
# as `op.label`; a product's factors are `a` and `b`, and exp keeps its result, `y`.


# %%
def kept_by_exp_of_product():
    """A set of names."""
    ### BEGIN SOLUTION
    return {"mul.a", "mul.b", "exp.y"}  # an addition reads nothing
    ### END SOLUTION


with exercise(3):
    A, B, C = (th.tensor(v, requires_grad=True) for v in (1.0, 2.0, 3.0))
    tape = {f"{s.op}.{s.label}" for s in th.memory.saved(((A + B) * C).exp())}
    got = kept_by_exp_of_product()
    assert got == tape, f"you have {sorted(got)}, of {len(tape)} on the tape"
