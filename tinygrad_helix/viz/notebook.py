"""What a Tensor shows of itself in a notebook: its values, then its graph, small.

A picture in a notebook never raises and never grows large: with more than LARGEST boxes
modules are closed and repeats drawn once, and what is still too much is left out from the
beginning. Of more than MOST_NODES nodes, which take seconds to draw, it says how to draw
them.
"""

from html import escape
from typing import Any

from .. import memory
from ..tensor import Tensor
from .drawing import draw

__all__ = ["LARGEST", "MOST_NODES"]

LARGEST = 40
MOST_NODES = 2000


def _repr_html_(x: Tensor) -> str | None:
    """Values, then the graph; None (so that the text is shown) for a leaf."""
    if x.node is None:
        return None
    values = f"<pre>{escape(repr(x))}</pre>"
    try:
        count = len(memory.nodes(x))
        if count > MOST_NODES:
            return values + (
                f"<p>{count:,} nodes are on its tape: tinygrad_helix.draw(y, depth=0) "
                "draws them, with calls of modules closed.</p>"
            )
        small = draw(x).fitted(LARGEST)
        svg = small.svg_or_none()
        return values + (svg or f"<pre>{escape(small.text())}</pre>")
    except Exception:
        return values


def _repr_svg_(x: Tensor) -> str | None:
    """The graph alone; None for a leaf, a large graph, and where nothing can draw it."""
    try:
        if x.node is None or len(memory.nodes(x)) > MOST_NODES:
            return None
        return draw(x).fitted(LARGEST).svg_or_none()
    except Exception:
        return None


def attach() -> None:
    """Give Tensor its notebook representations."""
    tensor: Any = Tensor
    tensor._repr_html_ = _repr_html_
    tensor._repr_svg_ = _repr_svg_


attach()
