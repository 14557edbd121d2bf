"""Modes: whether operations are recorded, and whether their values are checked.

A mode is a context variable, so neither threads nor asyncio tasks leak it into one
another, and it is put back whatever way a block or a decorated function ends.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from .errors import DTypeError

__all__ = [
    "detect_anomaly",
    "enable_grad",
    "is_anomaly_detected",
    "is_grad_enabled",
    "no_grad",
]

_F = TypeVar("_F", bound=Callable[..., Any])
_recording: ContextVar[bool] = ContextVar("recording", default=True)
_checking: ContextVar[bool] = ContextVar("checking", default=False)

# The blocks that are open, the innermost last, each with what was before it.
_entered: ContextVar[tuple[tuple["_Mode", bool], ...]] = ContextVar("entered", default=())

is_grad_enabled: Callable[[], bool] = _recording.get
is_anomaly_detected: Callable[[], bool] = _checking.get


class _Mode:
    """A mode as a context manager (`with no_grad():`) and as a decorator."""

    variable: ContextVar[bool]
    value: bool

    def __init__(self, *args: Any) -> None:
        if args:
            name = type(self).__name__
            raise DTypeError(f"{name} takes no argument. Write @{name}() in brackets.")

    def __enter__(self) -> None:
        _entered.set((*_entered.get(), (self, self.variable.get())))
        self.variable.set(self.value)

    def __exit__(self, *exc_info: object) -> None:
        entries = list(_entered.get())
        own = [i for i, (mode, _) in enumerate(entries) if mode is self]
        if not own:  # entered in another context, and that alone it changed
            return
        _, before = entries.pop(own[-1])
        for i in range(own[-1], len(entries)):
            if entries[i][0].variable is self.variable:
                # A block that was entered later is still open, as when a generator is
                # closed from within one: it goes back to what was before both.
                entries[i] = (entries[i][0], before)
                break
        else:
            self.variable.set(before)
        _entered.set(tuple(entries))

    def __call__(self, fn: _F) -> _F:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise DTypeError(
                f"@{type(self).__name__}() on a generator function would not cover its "
                "body. Write `with` inside it, around what it computes between yields."
            )
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with type(self)():
                    return await fn(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_Mode):
    """Record nothing: no nodes, nothing saved, results that require no gradient.

    >>> import tinygrad_helix as th
    >>> w = th.ones(2, requires_grad=True)
    >>> with th.no_grad():
    ...     w -= 0.5
    >>> w.requires_grad, (w * 2).requires_grad
    (True, True)
    """

    variable, value = _recording, False


class enable_grad(_Mode):
    """Record again inside a `no_grad` block."""

    variable, value = _recording, True


class detect_anomaly(_Mode):
    """Check every output and every cotangent, and name the first that went wrong.

    NaN is an error wherever it is seen. An infinity is one where an op or a vjp makes it
    of finite values, as 1/0 and e^1000 do: one that was given (the -inf of a mask, a
    number like `math.inf`) may pass from op to op. The error says which op (or which
    input, where a NaN came in so) and where it was made. Every op reads its arrays once
    more, so it is for finding a fault, not for training.

    >>> import tinygrad_helix as th
    >>> with th.detect_anomaly():
    ...     th.tensor([1.0, float("nan")]).exp()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tinygrad_helix.errors.GraphError: input 0 of exp at ..., not made by an op, is not ...
    """

    variable, value = _checking, True
