"""Moving a Tensor to another device; its cotangent comes back the same way."""

from typing import Any

from ..backend import backend_of, get_backend
from ..op import Op, apply
from ..tape import plain

__all__ = ["to"]


class To(Op):
    """y = x on another device      dx = dy on x's own.      Keeps nothing."""

    @staticmethod
    def forward(xp, x, *, needs, device, source):
        return get_backend(device).asarray(x), {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, device, source):
        return (to(dy, source),)


def to(x: Any, device: str) -> Any:
    """x on `device` ("cpu" or "cuda"): x itself if it is there already, else a copy.

    The copy is on the tape: dx is dy, moved back. Errors: DeviceError for an unknown
    device, BackendUnavailableError for one that this machine does not have.

    >>> import tinygrad_helix as th
    >>> x = th.ones(2)
    >>> x.to("cpu") is x
    True
    """
    get_backend(device)
    source = backend_of(plain(x)).name
    return x if source == device else apply(To, x, device=device, source=source)
