# %% [markdown]
# # 04 Write an op, gradcheck it, audit it, break it
#
# The package has dozens of functions, and one day you need another. So you write an *op*:
# one class with both directions side by side. This tutorial writes the length of the long
# side of a right-angled triangle,
#
#     y = √(a² + b²)        da = dy · a / y        db = dy · b / y
#
# then checks it in two independent ways, and then breaks it to see the checks fail. A check
# that you have never seen fail tells you nothing.

# %%
import numpy as np

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import BLUE, GREY, ORANGE, Sketch

# %% [markdown]
# ## The class
#
# `forward` gets arrays and returns an array and what to keep, by name. `vjp` gets the
# cotangent of the result and what was kept, and returns one cotangent an input. `xp` is the
# array module: NumPy, or CuPy on a GPU, so one body serves both. `inputs` is (shape, dtype)
# of each input, for a vjp that needs no more of it. `th.apply` calls an op: it runs
# `forward`, and puts a node on the tape if some input wants a gradient.
#
# `saves` says what each kept value *is*. An `Input` or `Output` is somebody else's array:
# as long as they hold it anyway, keeping it costs nothing new. An `Intermediate` is an
# array of the op's own, which nobody else has, and a `Constant` one that no derivative goes
# through. `needs` says which inputs want a gradient, so that we keep only what will be
# read: da reads a and y, db reads b and y. (Where no gradient is wanted, nothing is kept.)


# %%
class Hypot(th.Op):
    """y = √(a² + b²)      da = dy · a / y,   db = dy · b / y      keeps a, b and y."""

    broadcasts = True
    saves = {"a": th.Input(0), "b": th.Input(1), "y": th.Output()}

    @staticmethod
    def forward(xp, a, b, *, needs):
        y = xp.sqrt(a * a + b * b)
        return y, {"a": a if needs[0] else None, "b": b if needs[1] else None, "y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        per_y = dy / saved["y"]
        da = per_y * saved["a"] if needs[0] else None
        db = per_y * saved["b"] if needs[1] else None
        return da, db


def hypot(a, b):
    return th.apply(Hypot, a, b)


a = th.tensor([[3.0, 5.0, 8.0], [7.0, 9.0, 6.0]], dtype="float64", requires_grad=True)
b = th.tensor([4.0, 12.0, 15.0], dtype="float64", requires_grad=True)  # for two rows
y = hypot(a, b)
assert np.allclose(y.data, np.hypot(a.data, b.data))
assert [s.label for s in th.memory.saved(y)] == ["a", "b", "y"]
frozen = hypot(a, b.detach())  # b wants no gradient, so it is not kept
assert [s.label for s in th.memory.saved(frozen)] == ["a", "y"]

# %% [markdown]
# ## Is the derivative right? gradcheck
#
# The mathematics is checked against the function itself: nudge an input by h, both ways,
# and compare the slope with the vjp. How large should h be? A large h measures a curve as
# if it were straight: an error that falls as h². A small h drowns in rounding: float64 has
# 16 digits, and an error of 10⁻¹⁶ is divided by 2h. In between lies the best one.


# %%
def cube(z):
    return z * z * z


steps = np.array([float(f"1e-{i}") for i in range(13)])
errors = abs((cube(1 + steps) - cube(1 - steps)) / (2 * steps) - 3)  # of z³ at 1, due is 3
assert 1e-8 < steps[errors.argmin()] < 1e-3
assert errors[0] > 0.1 and errors[-1] > 1e-6  # both ends are far worse

# %% [markdown]
# `gradcheck` does that for every input and output, in float64, with a step of that size.
# It returns True or raises.

# %%
assert th.gradcheck(hypot, (a, b))


# %% [markdown]
# Now break the formula: a wrong sign in db.


# %%
class WrongSign(Hypot):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        da, db = Hypot.vjp(dy, saved, needs=needs, inputs=inputs)
        return da, -db


try:
    th.gradcheck(lambda a, b: th.apply(WrongSign, a, b), (a, b))
    raise AssertionError("a wrong sign went through")
except th.errors.GradcheckError as error:
    print(error)
    assert "input 1" in str(error)  # it says where

# %% [markdown]
# ## Is the keeping right? audit
#
# A correct derivative can still be a bad citizen. It may keep arrays that it never reads,
# or scribble on arrays that belong to others. `audit` tries an op out with poisoned copies
# of what it keeps and compares checksums before and after.

# %%
assert th.audit(Hypot, a, b).ok


class Hoarder(Hypot):
    """Keeps a² + b² as well, just in case."""

    saves = {**Hypot.saves, "square": th.Intermediate()}

    @staticmethod
    def forward(xp, a, b, *, needs):
        y, saved = Hypot.forward(xp, a, b, needs=needs)
        return y, saved | {"square": y * y}


class Scribbler(Hypot):
    """Divides dy in place, to save an array."""

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dy /= saved["y"]
        da = dy * saved["a"] if needs[0] else None
        return da, dy * saved["b"] if needs[1] else None


# %% [markdown]
# Both have right derivatives. gradcheck sees nothing.

# %%
for broken, word in ((Hoarder, "not read"), (Scribbler, "written by the vjp")):
    assert th.gradcheck(lambda a, b, op=broken: th.apply(op, a, b), (a, b))
    report = th.audit(broken, a, b)
    print(report)
    assert not report.ok
    assert word in str(report)

# %% [markdown]
# The hoarder costs an array a call, under `no_grad` too. (Hypot's y is there in any case.)
# The scribbler is worse: dy may be another branch's cotangent too, whose gradient is then
# wrong, sometimes. So take both: gradcheck for the mathematics, audit for the keeping.

# %%
sheet = Sketch(640, 300, "error of a difference quotient over its step, in float64")
at = [(70 + 40 * i, 40 - 16 * np.log10(max(e, 1e-14))) for i, e in enumerate(errors)]
sheet.line([(70, 20), (70, 265), (600, 265)], colour=GREY)
sheet.line(at, colour=BLUE, width=2)
for i, (left, top) in enumerate(at):
    sheet.dot(left, top, BLUE)
    sheet.text(left, 280, f"1e-{i}" if i else "1", size=12)
for power, label in ((0, "1"), (-5, "1e-5"), (-10, "1e-10")):
    sheet.text(60, 40 - 16 * power, label, size=12, anchor="end")
sheet.text(180, 75, "curvature:\nthe error falls as h²", anchor="start")
sheet.text(600, 200, "rounding: it grows as 1/h", anchor="end", colour=ORANGE)
sheet.text(330, 20, "the error of (f(z+h) - f(z-h)) / 2h, over h", bold=True)
sheet.save("figures/04_write_an_op.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Write `Softplus`, y = ln(1 + eˣ). Its derivative is sigmoid(x), which is also
# 1 - e⁻ʸ. So one array is enough: keep the result and nothing else. `xp.logaddexp(0, x)` is
# a forward pass that does not overflow.
#
# For second derivatives the sweep itself is recorded, and the vjp gets Tensors, which
# NumPy's functions refuse. So in a vjp use the operators, and the functions of this
# package, which take both: `th.expm1(z)` is eᶻ - 1.


# %%
class Softplus(th.Op):
    """y = ln(1 + eˣ)      dx = dy · (1 - e⁻ʸ)      keeps y."""

    saves = {"y": th.Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        ### BEGIN SOLUTION
        y = xp.logaddexp(0, x)
        return y, {"y": y}
        ### END SOLUTION

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        ### BEGIN SOLUTION
        return (-dy * th.expm1(-saved["y"]),)
        ### END SOLUTION


with exercise(1):
    x = th.linspace(-3, 3, 7, dtype="float64")
    x.requires_grad = True
    assert np.allclose(th.apply(Softplus, x).data, np.logaddexp(0, x.data)), "forward"
    th.gradcheck(lambda x: th.apply(Softplus, x), (x,), order=2)  # with Tensors in the vjp
    report = th.audit(Softplus, x)
    assert report.ok, str(report)

# %% [markdown]
# **2.** Write `Leaky`: y = x where x > 0, else x / 10. Its vjp needs to know *where* x was
# positive, and no more. A mask of bools takes one byte an element where x takes eight: keep
# the mask, as a `Constant`, since no derivative goes through it. In the vjp, `th.where`
# takes arrays and Tensors.


# %%
class Leaky(th.Op):
    saves = {"positive": th.Constant()}

    @staticmethod
    def forward(xp, x, *, needs):
        ### BEGIN SOLUTION
        positive = x > 0
        return xp.where(positive, x, x / 10), {"positive": positive if needs[0] else None}
        ### END SOLUTION

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        ### BEGIN SOLUTION
        return (th.where(saved["positive"], dy, dy / 10),)
        ### END SOLUTION


with exercise(2):
    x = th.tensor([-2.0, -1.0, 1.0, 3.0], dtype="float64", requires_grad=True)
    y = th.apply(Leaky, x)
    assert np.allclose(y.data, [-0.2, -0.1, 1, 3]), f"forward gives {y.data}"
    assert th.saved_bytes(y) == 4, f"4 bytes would do, you keep {th.saved_bytes(y)}"
    th.gradcheck(lambda x: th.apply(Leaky, x) ** 2, (x,), order=2)
    report = th.audit(Leaky, x)
    assert report.ok, str(report)
