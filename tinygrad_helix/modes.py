"""Whether operations are recorded: `no_grad` and `enable_grad`.

The mode is a context variable, so neither threads nor asyncio tasks leak it into one
another, and it is put back whatever way a block or a decorated function ends.
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from typing import Any, TypeVar

__all__ = ["no_grad", "enable_grad", "is_grad_enabled"]

_F = TypeVar("_F", bound=Callable[..., Any])
_recording: ContextVar[bool] = ContextVar("recording", default=True)

is_grad_enabled: Callable[[], bool] = _recording.get


class _GradMode:
    """A mode as a context manager (`with no_grad():`) and as a decorator."""

    recording: bool

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []  # a stack: one object may be entered twice

    def __enter__(self) -> None:
        self._tokens.append(_recording.set(self.recording))

    def __exit__(self, *exc_info: object) -> None:
        _recording.reset(self._tokens.pop())

    def __call__(self, fn: _F) -> _F:
        @wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]


class no_grad(_GradMode):
    """Record nothing: no nodes, nothing saved, results that require no gradient.

    >>> import tinygrad_helix as th
    >>> w = th.ones(2, requires_grad=True)
    >>> with th.no_grad():
    ...     w -= 0.5
    >>> w.requires_grad, (w * 2).requires_grad
    (True, True)
    """

    recording = False


class enable_grad(_GradMode):
    """Record again inside a `no_grad` block."""

    recording = True
