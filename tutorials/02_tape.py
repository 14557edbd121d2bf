# %% [markdown]
# # 02 The tape, and why order matters
#
# In tutorial 01 every value was used once. Real programs use values again and again: a
# weight at every time step, an input in two branches. Then several cotangents arrive at one
# place, and it matters who waits for whom. Here is the smallest example:
#
#     b = 2a        c = 3b        y = b + c
#
# y is 8a, so dy/da is 8. Remember that number.

# %%
import contextlib
import sys
import weakref

import tinygrad_helix as th
from tinygrad_helix.tutorial import exercise
from tinygrad_helix.viz.sketch import ORANGE, Sketch

# %% [markdown]
# ## A toy engine
#
# A `Value` knows which earlier values it was made from, and the local derivative for each.
# It also takes a number when it is made, its place: 0, 1, 2, ... That is the *tape*.


# %%
class Value:
    made = 0

    def __init__(self, *made_from):
        self.made_from = made_from  # (earlier value, local derivative), ...
        self.cotangent = 0.0
        self.place = Value.made
        Value.made += 1


def example():
    a = Value()
    b = Value((a, 2.0))  # b = 2a
    c = Value((b, 3.0))  # c = 3b
    y = Value((b, 1.0), (c, 1.0))  # y = b + c
    return a, b, c, y


# %% [markdown]
# ## The eager way, which is wrong
#
# The obvious program adds what arrives, passes it on at once, and visits no value twice.
# From y it goes to b with 1, and b sends 2·1 to a. Then c brings b its 3: too late.


# %%
def eager(value, arriving, visited):
    value.cotangent += arriving
    if value in visited:
        return
    visited.add(value)
    for earlier, slope in value.made_from:
        eager(earlier, value.cotangent * slope, visited)


a, b, c, y = example()
eager(y, 1.0, set())
assert a.cotangent == 2  # not 8
assert b.cotangent == 4  # b got everything in the end, and passed on a quarter of it

# %% [markdown]
# **A value may speak only when all its users have spoken.** Their cotangents add up: y
# depends on b directly, 1, and through c, 3. Together 4, and 4·2 is 8.
#
# ## Path by path, which is slow
#
# One could pass on each arriving piece by itself. That walks every path from y to a, and is
# right. But paths multiply: where every value is used twice, each step doubles them.


# %%
def by_paths(value, arriving):
    value.cotangent += arriving
    return 1 + sum(
        by_paths(earlier, arriving * slope) for earlier, slope in value.made_from
    )


a, b, c, y = example()
by_paths(y, 1.0)
assert a.cotangent == 8

x = start = Value()
for _ in range(12):
    x = Value((x, 1.0), (x, 1.0))  # x + x
assert by_paths(x, 1.0) == 2**13 - 1  # visits, for 13 values
assert start.cotangent == 2**12

# %% [markdown]
# ## The tape, backwards
#
# The places solve it. A value is made from earlier values only, so all users of b have
# higher places than b. Visit the values in falling order of place, and when b's turn comes,
# everything that can arrive has arrived. Each value is visited once.


# %%
def below(y):
    """y and everything that it was made from, in any order, without recursion."""
    found, todo = {y}, [y]
    while todo:
        for earlier, _ in todo.pop().made_from:
            if earlier not in found:
                found.add(earlier)
                todo.append(earlier)
    return found


def sweep(y):
    """The cotangent of everything below y; returns the visited values in order."""
    order = sorted(below(y), key=lambda value: -value.place)
    y.cotangent = 1.0
    for value in order:
        for earlier, slope in value.made_from:
            earlier.cotangent += value.cotangent * slope
    return order


a, b, c, y = example()
assert sweep(y) == [y, c, b, a]
assert a.cotangent == 8

# %% [markdown]
# The engine's heart, `tinygrad_helix/sweep.py`, is this too. Nothing in it calls itself: a
# recursive visit needs a Python frame for every step, and long chains have more.

# %%
chain = Value()
for _ in range(sys.getrecursionlimit()):
    chain = Value((chain, 1.0))
assert len(sweep(chain)) == sys.getrecursionlimit() + 1
with contextlib.suppress(RecursionError):
    eager(chain, 1.0, set())
    raise AssertionError("Python has become generous: the recursion went through")

# %% [markdown]
# ## The engine
#
# In the engine it is an operation, not a value, that takes a place on the tape: a *node*.
# Its `counter` is the place, its `edges` lead to the nodes that made its inputs, or to the
# leaf where a gradient lands: `b.edge` is (the node that made b, which of its results b
# is). `y.node.reachable()` is our `order`.

# %%
a = th.tensor(1.0, requires_grad=True)
b = 2 * a
c = 3 * b
y = b + c
order = y.node.reachable()
assert [node.op.name for node in order] == ["add", "mul", "mul"]
assert y.node.edges == (b.edge, c.edge)
assert [step.node for step in th.tape.steps(y, retain_graph=True)] == order
a.grad = None

# %% [markdown]
# No node holds a Tensor: b may go, and the graph of y is whole. (A `weakref.ref` points at
# b without keeping it alive, and gives None once b is gone.)

# %%
gone = weakref.ref(b)
del b
assert gone() is None
y.backward()
assert a.grad.item() == 8

# %% [markdown]
# Gradients *add up* on a leaf, over all paths and all sweeps. That is why training loops
# clear them: `a.grad = None`, or `zero_grad()` of an optimizer.

# %%
(5 * a).backward()
assert a.grad.item() == 13

# %%
sheet = Sketch(640, 145, "b = 2a, c = 3b, y = b + c: cotangents in two orders of visit")
for i, (name, sent) in enumerate(zip("abcy", ("2, not 8", "1, then 4", 1, 1), strict=True)):
    left, top = 70 + 165 * i, 45 + 35 * (name == "c")
    sheet.box(left, top, f"{i}: {name}")
    sheet.text(left, top + 30, f"eager: {sent}", size=13)
    sheet.text(left, top + 50, f"tape: {[8, 4, 1, 1][i]}", colour=ORANGE, bold=True)
for step in ("3: y > 2: c", "3: y > 1: b", "2: c > 1: b", "1: b > 0: a"):
    sheet.join(*step.split(" > "))
for left, top, n in ((152, 32, 2), (400, 32, 1), (330, 78, 3), (490, 78, 1)):
    sheet.text(left, top, f"·{n}", size=12)
sheet.save("figures/02_tape.svg")

# %% [markdown]
# ## Exercises
#
# **1.** There is another good order. Count for every value how many uses below y it has;
# visit a value when all its uses have been seen. Write it without looking at `place`.


# %%
def sweep_by_uses(y):
    """Like `sweep`: cotangents set, the visited values returned in order."""
    ### BEGIN SOLUTION
    uses = dict.fromkeys(below(y), 0)
    for value in below(y):
        for earlier, _ in value.made_from:
            uses[earlier] += 1
    y.cotangent, ready, order = 1.0, [y], []
    while ready:
        value = ready.pop()
        order.append(value)
        for earlier, slope in value.made_from:
            earlier.cotangent += value.cotangent * slope
            uses[earlier] -= 1
            if uses[earlier] == 0:
                ready.append(earlier)
    return order
    ### END SOLUTION


with exercise(1):
    a, b, c, y = example()
    order = sweep_by_uses(y)
    assert a.cotangent == 8, f"the cotangent of a is 8, you have {a.cotangent}"
    assert order == [y, c, b, a], "every value once, and b after c"

# %% [markdown]
# **2.** What is the gradient of y = (a·a)·(a·a), and how many nodes are on its tape if the
# program writes `s = a * a` and then `s * s`? Answer before you let the engine do it.


# %%
def fourth_power(a):
    """(dy/da, number of nodes)."""
    ### BEGIN SOLUTION
    return 4 * a**3, 2
    ### END SOLUTION


with exercise(2):
    a = th.tensor(3.0, requires_grad=True)
    s = a * a
    y = s * s
    y.backward()
    slope, count = fourth_power(3.0)
    assert slope == a.grad.item(), f"the gradient is not {slope}: mind both uses"
    assert count == len(y.node.reachable()), f"not {count} nodes: s is made once"
