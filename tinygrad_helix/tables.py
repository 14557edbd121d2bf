"""Tables of text as a terminal, Markdown, LaTeX, CSV and a notebook show them.

A table is a list of lines of cells, the first of which is its head. The first column is
flush left, the others flush right.
"""

import csv
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "UNPREDICTED",
    "aligned",
    "csv_text",
    "flat",
    "html_table",
    "latex",
    "markdown",
    "spread",
    "unpredicted",
]

Lines = Sequence[Sequence[str]]

UNPREDICTED = (
    "predicted -: an op of the variant states no bytes beforehand; Op.predict does."
)
# The median of a quiet machine's steps is within a few per cent of the least.
_QUIET = 1.5

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def unpredicted(saved: Iterable[Mapping[str, int | None]]) -> bool:
    """Whether a variant's saved bytes are without a prediction."""
    return any(s["predicted"] is None for s in saved)


def spread(times: Mapping[str, Mapping[str, float]]) -> str | None:
    """What is to be said of {variant: {"median": ms, "min": ms}} whose medians lie far
    above the least, if any do."""
    ratios = {name: t["median"] / t["min"] for name, t in times.items() if t["min"]}
    worst = max(ratios, key=lambda name: ratios[name], default="")
    if ratios.get(worst, 0) <= _QUIET:
        return None
    return (
        f"The machine was busy: the median step of {worst} is {ratios[worst]:.1f} times "
        "its least. Compare the least."
    )


def aligned(lines: Lines, left: int = 1) -> str:
    """A table as text: the first `left` columns flush left, the others flush right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(title: str, lines: Lines, notes: Sequence[str] = ()) -> str:
    """A pipe table, as GitHub and Pandoc read it, below its title in bold."""

    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    def shown(cell: str) -> str:
        for sign in "\\`*_<>|[]":
            cell = cell.replace(sign, f"\\{sign}")
        return " ".join(cell.split())

    head, *body = [[shown(cell) for cell in line] for line in lines]
    rule = row([":---", *("---:" for _ in head[1:])])
    after = [line for note in notes for line in ("", shown(note))]
    return "\n".join([f"**{shown(title)}**", "", row(head), rule, *map(row, body), *after])


def latex(title: str, lines: Lines, notes: Sequence[str] = ()) -> str:
    """A table environment with the rules of the package booktabs."""

    def shown(cell: str) -> str:
        return "".join(_LATEX.get(sign, sign) for sign in cell)

    head, *body = [" & ".join(map(shown, line)) + r" \\" for line in lines]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{shown(title)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par {shown(note)}" for note in notes),
            r"\end{table}",
        ]
    )


def html_table(title: str, lines: Lines, notes: Sequence[str] = ()) -> str:
    """A table element, for a notebook."""
    head, *body = lines
    cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    rows = "".join(
        "<tr>"
        + "".join(f"<td style='text-align:right'>{html.escape(c)}</td>" for c in line)
        + "</tr>"
        for line in body
    )
    after = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<tr>{cells}</tr>{rows}</table>{after}"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of plain values as CSV, with all columns that one of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().rstrip("\n")


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}, at every depth."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
