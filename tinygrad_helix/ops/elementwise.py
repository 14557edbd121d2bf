"""Elementwise ops: arithmetic, and functions of one array."""

import math
from typing import Any

from ..errors import DTypeError
from ..op import Input, Op, Output, apply
from .choice import equal, greater_equal, select
from .operands import binary, floating, zeros

__all__ = [
    "abs", "add", "cos", "div", "exp", "expm1", "log", "log1p", "mul", "neg", "pow",
    "reciprocal", "rsqrt", "sign", "sin", "sqrt", "sub",
]  # fmt: skip


# --- arithmetic


class Add(Op):
    """y = a + b      da = dy,   db = dy      keeps nothing."""

    broadcasts = True

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a + b, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy, dy


def add(a: Any, b: Any) -> Any:
    """a + b, elementwise with broadcasting. Keeps nothing."""
    return binary(Add, a, b)


class Sub(Op):
    """y = a - b      da = dy,   db = -dy      keeps nothing."""

    broadcasts = True

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a - b, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy, -dy if needs[1] else None


def sub(a: Any, b: Any) -> Any:
    """a - b, elementwise with broadcasting. Keeps nothing."""
    return binary(Sub, a, b)


class Mul(Op):
    """y = a · b
    da = dy · b,   db = dy · a
    keeps a if b needs a gradient, b if a does."""

    broadcasts = True
    saves = {"a": Input(0), "b": Input(1)}

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a * b, {"a": a if needs[1] else None, "b": b if needs[0] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy * saved["b"] if needs[0] else None, dy * saved["a"] if needs[1] else None


def mul(a: Any, b: Any) -> Any:
    """a · b, elementwise with broadcasting. Keeps a if b needs a gradient, b if a does."""
    return binary(Mul, a, b)


class Div(Op):
    """y = a / b
    da = dy / b,   db = -(dy / b) · (a / b)
    keeps b, and a if b needs a
    gradient."""

    broadcasts = True
    saves = {"a": Input(0), "b": Input(1)}

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a / b, {"a": a if needs[1] else None, "b": b}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        b = saved["b"]
        da = dy / b
        return da, -da * (saved["a"] / b) if needs[1] else None


def div(a: Any, b: Any) -> Any:
    """a / b, elementwise with broadcasting; of ints it is float32.

    Keeps b, and a if b needs a gradient.
    """
    return binary(Div, a, b, divide=True)


class Neg(Op):
    """y = -x      dx = -dy      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs):
        return -x, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (-dy,)


def _number(op: str, x: Any) -> Any:
    """x, unless it holds bools."""
    dtype = getattr(x, "dtype", None)
    if dtype is not None and dtype.kind == "b":
        raise DTypeError(f"{op} of bools. Convert them with astype('int64') first.")
    return x


def neg(x: Any) -> Any:
    """-x. Keeps nothing."""
    return apply(Neg, _number("neg", x))


class Pow(Op):
    """y = a^b
    da = dy · b · a^(b-1),   db = dy · y · ln a
    keeps a, b unless a is a number, and y if b needs a gradient.

    Where b = 0, da is 0; where a = 0 and b ≥ 0, db is 0, its limit from above. ln a is
    computed only if b needs a gradient.
    """

    broadcasts = True
    saves = {"a": Input(0), "b": Input(1), "y": Output()}

    @staticmethod
    def forward(xp, a, b, *, needs):
        y = a**b
        reads_b = needs[0] or not isinstance(a, (int, float))
        return y, {"a": a, "b": b if reads_b else None, "y": y if needs[1] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        a, b, y = saved["a"], saved["b"], saved["y"]
        da = db = None
        if needs[0]:
            if isinstance(b, (int, float)):
                # Where b is 0 this is 0, whatever a is: a * 0 would be NaN for infinite a.
                da = dy * (b * a ** (b - 1)) if b != 0 else zeros(dy.shape, dy)
            else:
                flat = equal(b, 0)
                da = select(flat, 0.0, dy * b * pow(a, select(flat, 1.0, b) - 1))
        if needs[1] and isinstance(a, (int, float)):
            db = dy * y * math.log(a) if a > 0 else dy * (0.0 if a == 0 else math.nan)
        elif needs[1]:
            at_zero = equal(a, 0) * greater_equal(b, 0)  # of bools: and
            db = select(at_zero, 0.0, dy * y * log(select(at_zero, 1.0, a)))
        return da, db


def pow(a: Any, b: Any) -> Any:
    """a^b, elementwise with broadcasting.

    Its gradient for a is 0 where b = 0; that for b is 0 where a = 0 and b ≥ 0. Keeps a,
    b unless a is a number, and the result if b needs a gradient.
    """
    return binary(Pow, a, b)


# --- functions of one array


class Exp(Op):
    """y = e^x      dx = dy · y      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.exp(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * saved["y"],)


def exp(x: Any) -> Any:
    """e^x. Keeps its result."""
    return apply(Exp, floating(x))


class Log(Op):
    """y = ln x      dx = dy / x      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.log(x), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy / saved["x"],)


def log(x: Any) -> Any:
    """ln x. Keeps x."""
    return apply(Log, floating(x))


class Expm1(Op):
    """y = e^x - 1      dx = dy · (y + 1)      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.expm1(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * (saved["y"] + 1),)


def expm1(x: Any) -> Any:
    """e^x - 1, with all digits near 0. Keeps its result."""
    return apply(Expm1, floating(x))


class Log1p(Op):
    """y = ln(1 + x)      dx = dy / (1 + x)      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.log1p(x), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy / (1 + saved["x"]),)


def log1p(x: Any) -> Any:
    """ln(1 + x), with all digits near 0. Keeps x."""
    return apply(Log1p, floating(x))


class Sqrt(Op):
    """y = √x      dx = dy / (2y)      keeps y. At x = 0 the derivative is infinite."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.sqrt(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * 0.5 / saved["y"],)


def sqrt(x: Any) -> Any:
    """√x. Keeps its result."""
    return apply(Sqrt, floating(x))


class Rsqrt(Op):
    """y = 1/√x      dx = -dy · y³ / 2      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = 1 / xp.sqrt(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        return (dy * -0.5 * (y * y * y),)


def rsqrt(x: Any) -> Any:
    """1/√x. Keeps its result."""
    return apply(Rsqrt, floating(x))


class Reciprocal(Op):
    """y = 1/x      dx = -dy · y²      keeps y."""

    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = 1 / x
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        return (-dy * (y * y),)


def reciprocal(x: Any) -> Any:
    """1/x. Keeps its result."""
    return apply(Reciprocal, floating(x))


class Sin(Op):
    """y = sin x      dx = dy · cos x      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.sin(x), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * cos(saved["x"]),)


def sin(x: Any) -> Any:
    """sin x, of radians. Keeps x."""
    return apply(Sin, floating(x))


class Cos(Op):
    """y = cos x      dx = -dy · sin x      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.cos(x), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (-dy * sin(saved["x"]),)


def cos(x: Any) -> Any:
    """cos x, of radians. Keeps x."""
    return apply(Cos, floating(x))


class Abs(Op):
    """y = |x|      dx = dy · sign(x), which is 0 at 0      keeps x."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.abs(x), {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * sign(saved["x"]),)


def abs(x: Any) -> Any:
    """|x|. At 0 its gradient is 0. Keeps x."""
    return apply(Abs, x)


class Sign(Op):
    """y = 1 where x > 0, -1 where x < 0, else 0      dx = 0      keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs):
        return xp.sign(x), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (zeros(inputs[0][0], dy),)


def sign(x: Any) -> Any:
    """The sign of x: 1, 0 or -1. Its gradient is 0 everywhere. Keeps nothing."""
    return apply(Sign, _number("sign", x))
