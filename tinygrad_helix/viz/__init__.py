"""Pictures: live memory over the events of a step."""

from .timeline import draw_timeline, text_timeline

__all__ = ["draw_timeline", "text_timeline"]
