"""The tutorials: found, cut into cells, checked, and turned into other formats.

A tutorial is a Python file in the percent format: `# %%` begins a cell of code,
`# %% [markdown]` one of prose. The solutions of its exercises lie between the lines
`### BEGIN SOLUTION` and `### END SOLUTION`, as in nbgrader; the student edition has
`raise NotImplementedError` in their place.
"""

import importlib
import re
import runpy
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template
from types import TracebackType
from typing import Any
from unittest import SkipTest

from .errors import HelixError

__all__ = [
    "Tutorial",
    "exercise",
    "find",
    "html",
    "notebook",
    "run",
    "skip_if",
    "student",
    "tutorials",
]

_PACKAGE = Path(__file__).parent
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_HOLE = "raise NotImplementedError  # your code here"


@dataclass(frozen=True)
class Tutorial:
    """One tutorial: `name` is its file's, without `.py`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def title(self) -> str:
        """Its first heading."""
        found = re.search(r"^# # (?:\d+\s+)?(.+)$", self.text, re.MULTILINE)
        return found[1] if found else self.name

    @property
    def exercises(self) -> list[int]:
        """The numbers of its exercises."""
        return [int(n) for n in re.findall(r"^with exercise\((\d+)\)", self.text, re.M)]


def folder() -> Path:
    """Where the tutorials are: in an installed package inside it, in a copy of the
    repository beside it."""
    for place in (_PACKAGE / "tutorials", _PACKAGE.parent / "tutorials"):
        if place.is_dir():
            return place
    raise HelixError(
        f"there is no folder `tutorials` in {_PACKAGE} or beside it. Install the package "
        "again: its wheel carries the tutorials."
    )


def tutorials() -> list[Tutorial]:
    """All of them, in the order of their numbers; those without one at the end."""
    return [Tutorial(path) for path in sorted(folder().glob("*.py"))]


def find(name: str) -> Tutorial:
    """The tutorial of this number (`1`, `01`) or name."""
    for t in tutorials():
        number = t.name.split("_")[0]
        if name in (t.name, number) or (name.isdigit() and name.zfill(2) == number):
            return t
    raise HelixError(
        f"there is no tutorial {name!r}. There are "
        f"{', '.join(t.name for t in tutorials())}; the number alone will do."
    )


def student(text: str) -> str:
    """`text` with every solution taken out."""
    kept, hidden = [], False
    for line in text.splitlines():
        mark = line.strip()
        if mark == _BEGIN:
            kept.append(line.replace(_BEGIN, _HOLE))
            hidden = True
        elif mark == _END:
            hidden = False
        elif not hidden:
            kept.append(line)
    return "\n".join(kept) + "\n"


# --- exercises

# Of the exercises that this process has checked; None: skipped.
outcomes: dict[int, bool | None] = {}


@contextmanager
def exercise(number: int) -> Iterator[None]:
    """Run the checks in the block and print how exercise `number` stands: right, still to
    do, skipped, or what is wrong. Nothing is raised, so that those after it are checked as
    well.

    >>> from tinygrad_helix.tutorial import exercise
    >>> with exercise(3):
    ...     assert 1 + 1 == 3, "two and one make three"
    exercise 3: not right yet: two and one make three
    """
    right: bool | None = False
    try:
        yield
        said = "right"
        right = True
    except SkipTest as error:
        said = f"skipped: {error}"
        right = None
    except NotImplementedError as error:
        said = f"still to do{_place(error)}: replace `raise NotImplementedError`"
    except AssertionError as error:
        said = f"not right yet: {error}" if str(error) else f"not right yet{_place(error)}"
    except Exception as error:
        what = " ".join(str(error).split())
        said = f"your code raised {type(error).__name__}{_place(error)}: {what}"
    outcomes[number] = right
    print(f"exercise {number}: {said}")


def skip_if(reason: str | None) -> None:
    """In the block of an exercise: skip it, if there is a reason why it cannot be checked
    on this machine.

    >>> from tinygrad_helix.tutorial import exercise, skip_if
    >>> with exercise(1):
    ...     skip_if("it needs a GPU")
    exercise 1: skipped: it needs a GPU
    """
    if reason is not None:
        raise SkipTest(reason)


def _place(error: BaseException) -> str:
    """The innermost line of the exercise's own file, in words."""
    at: TracebackType | None = error.__traceback__
    lines = []
    while at is not None:
        code = at.tb_frame.f_code
        lines.append((code.co_filename, at.tb_lineno, code.co_name))
        at = at.tb_next
    own = lines[1][0]  # after this module's own frame
    _, line, where = [entry for entry in lines if entry[0] == own][-1]
    return f" (line {line})" if where == "<module>" else f" (line {line}, in {where})"


def run(tutorial: Tutorial, text: str | None = None) -> dict[int, bool | None]:
    """Run it as a script; {number: whether it is right, None if skipped} of its exercises.

    `text` is run in its place, its student edition say.
    """
    outcomes.clear()
    if text is None:
        runpy.run_path(str(tutorial.path), run_name="__main__")
    else:
        with tempfile.TemporaryDirectory() as made:
            path = Path(made) / tutorial.path.name
            path.write_text(text, encoding="utf-8")
            runpy.run_path(str(path), run_name="__main__")
    return dict(outcomes)


# --- other formats


def _needed(module: str) -> Any:
    """A package of the extra `tutorials`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise HelixError(
            f"{module} is not installed, which notebooks and pages need. Install it by "
            'python -m pip install "tinygrad_helix[tutorials]"'
        ) from None


def notebook(text: str) -> Any:
    """The tutorial as a notebook that has not been run, by jupytext."""
    made = _needed("jupytext").reads(text, fmt="py:percent")
    made.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same text, the same file
    return made


def notebook_text(text: str) -> str:
    """The file of that notebook."""
    made = notebook(text)
    return _needed("nbformat").writes(made) + "\n"


def executed(made: Any) -> Any:
    """A notebook with the outputs of its cells, run by nbclient in a folder of its own."""
    client = _needed("nbclient")
    _needed("ipykernel")
    path = f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r})"
    made.cells.insert(0, _needed("nbformat").v4.new_code_cell(path))
    with tempfile.TemporaryDirectory() as place:
        client.NotebookClient(
            made,
            timeout=600,
            kernel_name="python3",
            resources={"metadata": {"path": place}},
        ).execute(stderr=subprocess.DEVNULL)  # what a cell raises comes another way
    del made.cells[0]
    _name_cells(made)
    return made


def _name_cells(made: Any) -> None:
    """Say in outputs `cell 3, line 5` where the kernel has a file of its own making."""
    file_name = _needed("ipykernel.compiler").get_file_name
    sources = [cell.source for cell in made.cells if cell.cell_type == "code"]
    numbers = {Path(file_name(source)).name: n for n, source in enumerate(sources, 1)}

    def named(found: re.Match[str]) -> str:
        number = numbers.get(found[1])
        return found[0] if number is None else f"cell {number}, line {found[2]}"

    place = re.compile(r"\S*ipykernel_\d+\S(\d+\.py):(\d+)")
    for output in [o for cell in made.cells for o in cell.get("outputs", ())]:
        if "text" in output:
            output["text"] = place.sub(named, output["text"])


def html(text: str) -> str:
    """The tutorial with its outputs and pictures as one page, by nbconvert."""
    exporter = _needed("nbconvert").HTMLExporter(template_name="basic")
    formatter = _needed("pygments.formatters").HtmlFormatter
    made = executed(notebook(text))
    for output in [o for cell in made.cells for o in cell.get("outputs", ())]:
        data = output.get("data", {})
        if "image/svg+xml" in data:  # inline: an <img> would lose its title
            data["text/html"] = data.pop("image/svg+xml")
    body, _ = exporter.from_notebook_node(made)
    title = re.search(r"^# # (.+)$", text, re.MULTILINE)
    return _PAGE.substitute(
        title=escape(title[1] if title else "Tutorial"),
        light=formatter(style="default").get_style_defs(".highlight"),
        dark=formatter(style="github-dark").get_style_defs(".highlight"),
        body=body,
    )


_PAGE = Template("""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$light
:root { --ink: #1a1a1a; --paper: #fff; --soft: #f4f4f2; }
@media (prefers-color-scheme: dark) {
$dark
:root { --ink: #e4e4e4; --paper: #16181c; --soft: #22252b; }
}
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 1.05rem/1.55 system-ui, sans-serif; }
pre { overflow-x: auto; padding: .7rem .9rem; border-radius: 6px; font-size: .85rem;
  line-height: 1.4; background: var(--soft); color: var(--ink); }
code { font-size: .9em; }
.highlight, .highlight pre { background: var(--soft); }
.output_area pre { white-space: pre-wrap; overflow-wrap: anywhere; background: none;
  border-left: 3px solid #0072B2; border-radius: 0; }
.prompt, .anchor-link { display: none; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { border-bottom: 1px solid #8888; padding: .25rem .8rem .25rem 0; text-align: left; }
svg { max-width: 100%; height: auto; border-radius: 6px; }
</style>
$body
</html>
""")
