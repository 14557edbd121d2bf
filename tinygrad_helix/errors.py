"""Every error that the package raises on purpose, as one tree.

A message says what happened, where, with which values, and how to mend it; a note below it
in a traceback, which page of `tinygrad-helix explain` tells more.
"""

__all__ = [
    "HelixError",
    "ShapeError",
    "DTypeError",
    "DeviceError",
    "BackendUnavailableError",
    "KernelError",
    "CaptureError",
    "GraphError",
    "SavedTensorsFreedError",
    "InPlaceModificationError",
    "DoubleBackwardError",
    "NonScalarBackwardError",
    "GradcheckError",
]


class HelixError(Exception):
    """The root: `except HelixError` catches every error of this package."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        page = next(c for c in type(self).__mro__ if c.__module__ == __name__)
        if page is not HelixError:
            self.add_note(f"See: tinygrad-helix explain {page.__name__}")


class ShapeError(HelixError, ValueError):
    """An array has a shape (or a size, or an axis) that the operation cannot take."""


class DTypeError(HelixError, TypeError):
    """An array has a dtype, or an argument a type, that the operation cannot take."""


class DeviceError(HelixError, RuntimeError):
    """Operands live on different devices, or on the wrong one."""


class BackendUnavailableError(HelixError, RuntimeError):
    """A device was asked for that this machine or this installation does not have."""


class KernelError(HelixError, RuntimeError):
    """A kernel was launched with arguments that it cannot take, or did not compile."""


class CaptureError(HelixError, RuntimeError):
    """Something was done during the capture of a graph that a capture cannot hold."""


class GraphError(HelixError, RuntimeError):
    """The tape cannot do what was asked, or an op broke its contract with the tape."""


class SavedTensorsFreedError(GraphError):
    """A sweep reached a node whose saved tensors an earlier sweep has dropped."""


class InPlaceModificationError(GraphError):
    """A saved tensor was written to between the forward pass and the sweep."""


class DoubleBackwardError(GraphError):
    """A second derivative was asked of a node that cannot give one."""


class NonScalarBackwardError(GraphError):
    """A sweep from an output of more than one element got no cotangent to start with."""


class GradcheckError(GraphError):
    """A gradient that the tape computed and a finite difference do not agree."""
