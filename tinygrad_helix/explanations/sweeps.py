"""Sweeps and graphs: the explanations."""

from ..errors import (
    DoubleBackwardError,
    GraphError,
    InPlaceModificationError,
    NonScalarBackwardError,
    SavedTensorsFreedError,
)
from .page import Explanation

__all__ = ["PAGES"]

PAGES: dict[str, Explanation] = {
    "backward-twice": Explanation(
        error=SavedTensorsFreedError,
        cause=(
            "A sweep drops each node's saved tensors as soon as it has used them: "
            "that is what brings the memory down during the backward pass. A second "
            "sweep over the same nodes finds nothing to compute with."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([3.0], requires_grad=True)
y = x * x
y.backward()
y.backward()  # the values that x * x had saved are gone""",
        fix=(
            "Run the forward pass again before the second sweep. Or pass "
            "retain_graph=True to the first, which keeps the saved bytes alive in "
            "between. Two losses of one graph need one sweep only: "
            "th.backward([loss1, loss2])."
        ),
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([3.0], requires_grad=True)
y = x * x
y.backward(retain_graph=True)
y.backward()
assert x.grad.item() == 12  # 6 from each""",
    ),
    "in-place": Explanation(
        error=InPlaceModificationError,
        cause=(
            "A node saved this very array for its vjp, and something wrote to it "
            "before the sweep came by. The derivative would be of other numbers than "
            "the forward pass had, so the sweep stops. Views share the version of "
            "their storage: a write to a slice counts too."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([0.0, 1.0], requires_grad=True)
y = x.exp()  # saves y: dx = dy · y
y.data *= 2
y.sum().backward()""",
        fix="Write to a new Tensor, or after the sweep.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([0.0, 1.0], requires_grad=True)
y = x.exp()
z = y * 2
z.sum().backward()""",
    ),
    "write-to-tracked": Explanation(
        error=GraphError,
        cause=(
            "`+=` and its like would write to a Tensor that requires a gradient. The "
            "tape records new values, not changes of old ones."
        ),
        lines="""\
import tinygrad_helix as th
w = th.tensor([1.0, 2.0], requires_grad=True)
w -= 0.1""",
        fix=(
            "Inside a function use the operation that returns a new Tensor. For an "
            "update of a weight, which is not to be differentiated, write inside "
            "no_grad()."
        ),
        fixed_lines="""\
import tinygrad_helix as th
w = th.tensor([1.0, 2.0], requires_grad=True)
v = w - 0.1
with th.no_grad():
    w -= 0.1""",
    ),
    "double-backward": Explanation(
        error=DoubleBackwardError,
        cause=(
            "create_graph=True asks for gradients that can be differentiated again. A "
            "fused node has values inside that are not on the tape (that is what it "
            "saves), and a second derivative through it would be wrong without a "
            "word."
        ),
        lines="""\
import tinygrad_helix as th
x = th.randn(1, 4, 8, requires_grad=True)
block = th.nn.HelixBlock(8)  # mode="fused"
y = block(x).sum()
th.grad(y, x, create_graph=True)""",
        fix=(
            "Use the composed form where second derivatives are wanted; an op of your "
            "own may declare Input and Output in `saves` in the place of "
            "Intermediate. Without second derivatives, leave create_graph out."
        ),
        fixed_lines="""\
import tinygrad_helix as th
x = th.randn(1, 4, 8, requires_grad=True)
block = th.nn.HelixBlock(8, mode="composed")
y = block(x).sum()
(g,) = th.grad(y, x, create_graph=True)
th.grad((g * g).sum(), x)""",
    ),
    "non-scalar": Explanation(
        error=NonScalarBackwardError,
        cause=(
            "A sweep starts with a cotangent dy of the output's shape. For a single "
            "number that is 1; for more elements nobody but you can say what it is to "
            "be."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
y = x * x
y.backward()""",
        fix="Reduce to one number, or pass the cotangent (a Tensor or an array).",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
y = x * x
y.backward(th.ones(2), retain_graph=True)
y.sum().backward()  # the same again""",
    ),
    "no-graph": Explanation(
        error=GraphError,
        cause=(
            "There is nothing to go back through: no Tensor that went into this one "
            "requires a gradient, or it was computed inside no_grad(), or from a "
            "detach()ed Tensor."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0])
(x * x).sum().backward()""",
        fix="Set requires_grad=True on what is to get a gradient, before the forward pass.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
(x * x).sum().backward()""",
    ),
    "unused-input": Explanation(
        error=GraphError,
        cause=(
            "grad() was asked for a gradient by a Tensor that the output was not "
            "computed from. Often it was computed from a copy, or from a Tensor of an "
            "earlier step."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0], requires_grad=True)
w = th.tensor([2.0], requires_grad=True)
th.grad(x * x, [x, w])""",
        fix="Leave it out, or pass allow_unused=True, which gives None for it.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0], requires_grad=True)
w = th.tensor([2.0], requires_grad=True)
dx, dw = th.grad(x * x, [x, w], allow_unused=True)
assert dw is None""",
    ),
    "numpy-of-tracked": Explanation(
        error=GraphError,
        cause=(
            "numpy() shares memory with the Tensor. NumPy could write there what the "
            "tape relies on, and would drop out of the graph silently."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
(x * x).numpy()""",
        fix="Say that the values leave the graph: detach().numpy().",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
(x * x).detach().numpy()""",
    ),
    "not-a-leaf": Explanation(
        error=GraphError,
        cause=(
            "An optimizer steps leaves, the Tensors that own a gradient. This one was "
            "computed from another, `* 0.1` at its making being enough."
        ),
        lines="""\
import tinygrad_helix as th
w = th.randn(3, requires_grad=True) * 0.1
th.optim.SGD([w], lr=0.1)""",
        fix="Compute the values first, then make the leaf of them.",
        fixed_lines="""\
import tinygrad_helix as th
w = th.nn.Parameter(th.randn(3) * 0.1)
th.optim.SGD([w], lr=0.1)""",
    ),
}
