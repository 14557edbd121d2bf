"""Ops, hooks and kernels of your own: the explanations."""

from ..errors import (
    GradcheckError,
    GraphError,
    KernelError,
)
from .page import Explanation

__all__ = ["PAGES"]

PAGES: dict[str, Explanation] = {
    "hook-result": Explanation(
        error=GraphError,
        cause=(
            "What a hook returns takes the place of the cotangent that it was given, "
            "so it must be a Tensor of that shape and dtype, or None to change "
            "nothing."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
x.register_hook(lambda dx: dx.sum())
(x * x).sum().backward()""",
        fix="Return a cotangent of the same shape and dtype; to look only, return None.",
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 2.0], requires_grad=True)
x.register_hook(lambda dx: dx.clip(-1, 1))
(x * x).sum().backward()""",
    ),
    "not-finite": Explanation(
        error=GraphError,
        cause=(
            "Inside detect_anomaly() every output and every cotangent is checked, and "
            "this is the first that holds NaN, or an infinity made of finite values. "
            "The message names the op and the line where it was made, or the input "
            "that brought a NaN in."
        ),
        lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, float("nan")], requires_grad=True)
with th.detect_anomaly():
    x.exp()""",
        fix=(
            "Look at what goes into the op that is named: a missing value in the "
            "data, a log or a root of 0, a division by 0, an overflow in a 16-bit "
            "type."
        ),
        fixed_lines="""\
import tinygrad_helix as th
x = th.tensor([1.0, 0.5], requires_grad=True)
with th.detect_anomaly():
    x.exp()""",
    ),
    "op-result": Explanation(
        error=GraphError,
        cause=(
            "An op broke its contract with the tape: vjp returns a tuple with one "
            "cotangent for each array input, of that input's shape, and None where "
            "none is needed."
        ),
        lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
    vjp = staticmethod(lambda dy, saved, *, needs, inputs: 2 * dy)
th.apply(Double, th.ones(3, requires_grad=True)).sum().backward()""",
        fix=(
            "Return a tuple, also for a single input. Only `broadcasts = True` un- "
            "broadcasts."
        ),
        fixed_lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
    vjp = staticmethod(lambda dy, saved, *, needs, inputs: (2 * dy,))
th.apply(Double, th.ones(3, requires_grad=True)).sum().backward()""",
    ),
    "op-saves": Explanation(
        error=GraphError,
        cause=(
            "An op keeps a value that its `saves` does not declare, or declares "
            "otherwise. The tape must know whether a value is an input, an output or "
            "the op's own, to count its bytes once and to refuse second derivatives "
            "that would be wrong."
        ),
        lines="""\
import tinygrad_helix as th
class Square(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x * x, {"x": x}))
    vjp = staticmethod(lambda dy, saved, **_: (2 * dy * saved["x"],))
th.apply(Square, th.ones(3, requires_grad=True))""",
        fix="Declare every label as Input(i), Output(i), Constant() or Intermediate().",
        fixed_lines="""\
import tinygrad_helix as th
class Square(th.Op):
    saves = {"x": th.Input(0)}
    forward = staticmethod(lambda xp, x, *, needs: (x * x, {"x": x}))
    vjp = staticmethod(lambda dy, saved, **_: (2 * dy * saved["x"],))
th.apply(Square, th.ones(3, requires_grad=True))""",
    ),
    "gradcheck": Explanation(
        error=GradcheckError,
        cause=(
            "The gradient by the tape and the difference quotient (f(x+ε) - f(x-ε)) / "
            "2ε do not agree: the vjp is wrong, or the function has a kink or a jump "
            "at this x."
        ),
        lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
    vjp = staticmethod(lambda dy, saved, *, needs, inputs: (dy,))
th.gradcheck(lambda x: th.apply(Double, x), th.ones(3, requires_grad=True))""",
        fix=(
            "Derive the vjp again; the message names the input and the element that "
            "is off. Check in float64, at points away from kinks (not at 0 for relu)."
        ),
        fixed_lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
    vjp = staticmethod(lambda dy, saved, *, needs, inputs: (2 * dy,))
th.gradcheck(lambda x: th.apply(Double, x), th.ones(3, requires_grad=True))""",
    ),
    "kernel": Explanation(
        error=KernelError,
        cause=(
            "A kernel cannot do what it was made or called for: it lacks the "
            "functions that it stands in for, it did not compile, or a launch got "
            "arguments of a wrong number, dtype, shape or device."
        ),
        lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
class Kernel: ...
th.register_kernel(Double, "cpu", "float32")(Kernel)""",
        fix=(
            "Give it what the message names: the op's own signatures for "
            "register_kernel, the parameters that the source declares for a launch."
        ),
        fixed_lines="""\
import tinygrad_helix as th
class Double(th.Op):
    forward = staticmethod(lambda xp, x, *, needs: (x + x, {}))
class Kernel:
    forward = staticmethod(lambda xp, x, *, needs: (x * 2, {}))
th.register_kernel(Double, "cpu", "float32")(Kernel)""",
    ),
}
