"""What a Tensor shows of itself in a notebook: its values, then its graph, small.

A picture in a notebook never raises and never grows large: with more than LARGEST boxes
modules are closed and repeats drawn once, and what is still too much is left out from the
beginning.
"""

from html import escape
from typing import Any

from ..tensor import Tensor
from .drawing import draw

__all__ = ["LARGEST"]

LARGEST = 40


def _repr_html_(x: Tensor) -> str | None:
    """Values, then the graph; None (so that the text is shown) for a leaf."""
    if x.node is None:
        return None
    values = f"<pre>{escape(repr(x))}</pre>"
    try:
        small = draw(x).fitted(LARGEST)
        svg = small.svg_or_none()
        return values + (svg or f"<pre>{escape(small.text())}</pre>")
    except Exception:
        return values


def _repr_svg_(x: Tensor) -> str | None:
    """The graph alone; None for a leaf, and where nothing can draw it."""
    try:
        return None if x.node is None else draw(x).fitted(LARGEST).svg_or_none()
    except Exception:
        return None


def attach() -> None:
    """Give Tensor its notebook representations."""
    tensor: Any = Tensor
    tensor._repr_html_ = _repr_html_
    tensor._repr_svg_ = _repr_svg_


attach()
