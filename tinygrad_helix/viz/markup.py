"""Pieces of HTML. All text is escaped unless it is Html already."""

import html
import json
from collections.abc import Sequence
from typing import Any

from .text import printable

__all__ = ["Html", "escape", "join", "note", "script_json", "table"]


class Html(str):
    """Text that is HTML and goes into a page as it is."""

    __slots__ = ()


def escape(text: Any) -> Html:
    """`text` as HTML shows it; Html stays what it is."""
    return text if isinstance(text, Html) else Html(html.escape(_shown(str(text))))


def _shown(value: Any) -> Any:
    """`value` with all text in it printable, line by line."""
    if isinstance(value, str):
        return "\n".join(map(printable, value.split("\n")))
    if isinstance(value, dict):
        return {_shown(k): _shown(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(v) for v in value]
    return value


def join(*parts: Any) -> Html:
    """The parts one after the other."""
    return Html("".join(escape(part) for part in parts))


def note(text: Any) -> Html:
    """A paragraph of small print."""
    return Html(f'<p class="note">{escape(text)}</p>')


def table(
    caption: str,
    head: Sequence[Any],
    rows: Sequence[Sequence[Any]],
    words: Sequence[int] = (),
    stack: bool = False,
) -> Html:
    """A table in a box of its own that scrolls sideways where the page is narrow.

    The first column heads its row; the others hold numbers and are flush right, except
    those that `words` numbers. With `stack` a narrow page shows each row as a block, every
    cell below the other behind the name of its column.
    """

    def cell(i: int, value: Any, tag: str) -> str:
        kind = "" if i == 0 or i in words else ' class="n"'
        if tag == "th":
            kind += ' scope="col"'
        elif i == 0:
            tag, kind = "th", ' scope="row"'
        elif stack:
            kind += f' data-of="{escape(head[i])}"'
        return f"<{tag}{kind}>{escape(value)}</{tag}>"

    kind = ' class="stack"' if stack else ""
    lines = [f"<tr>{''.join(cell(i, h, 'th') for i, h in enumerate(head))}</tr>"]
    body = [f"<tr>{''.join(cell(i, v, 'td') for i, v in enumerate(r))}</tr>" for r in rows]
    return Html(
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{kind}><caption>{escape(caption)}</caption><thead>{lines[0]}</thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def script_json(value: Any) -> Html:
    """`value` as JSON that can stand inside a script element: nothing in it ends the
    element or begins a comment."""
    text = json.dumps(
        _shown(value), allow_nan=False, ensure_ascii=True, separators=(",", ":")
    )
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Html(text)
