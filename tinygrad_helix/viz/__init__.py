"""Pictures: a graph, two graphs side by side, live memory over the events of a step."""

from . import notebook
from .difference import Difference, difference
from .drawing import Drawing, draw
from .timeline import Timeline, draw_timeline, text_timeline, timeline

__all__ = [
    "Difference",
    "Drawing",
    "Timeline",
    "difference",
    "draw",
    "draw_timeline",
    "notebook",
    "text_timeline",
    "timeline",
]
