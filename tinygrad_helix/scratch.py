"""What a node's vjp has alive while it runs, by the line that made it.

A peak inside one vjp is made of arrays that no tape holds. So the vjp is run once more,
twice, away from all other measuring: first every line says how high it rises, then NumPy's
allocations are read off just before the highest one.
"""

import linecache
import sys
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from .backend import backend_of
from .sweep import Sweep
from .tape import Node
from .tensor import Tensor

__all__ = ["scratch"]

_NUMPY = str(Path(np.__file__).parent)
_FRAMES = 16  # of an allocation: deep enough to come to the vjp itself

Line = tuple[str, int]


def scratch(y: Tensor, number: int, cotangent: Any = None) -> list[dict[str, Any]]:
    """The arrays alive at the highest point of the `number`-th vjp of the sweep from `y`
    (with `cotangent`; ones if left out), of those that it makes itself, by line, the
    largest first. A line is one of the file of the vjp, if it calls from there what makes
    the array.

    An entry has `place` (file:line), `source` (that line's text), `nbytes`, and `kept`: as
    many of them as are alive when the vjp has ended, as gradients or cotangents. What an
    expression holds between two calls counts at its line. No gradient lands, and the graph
    stays. Empty on other devices than the CPU, and where tracemalloc is in use already.
    """
    if backend_of(y.data).name != "cpu" or tracemalloc.is_tracing():
        return []
    seed = np.ones(y.shape, y.dtype) if cotangent is None else cotangent
    tracemalloc.start(_FRAMES)
    try:
        again = _until(y, seed, number), _until(y, seed, number)
        if again[0] is None or again[1] is None:
            return []
        vjp = again[0][1].op.vjp
        file = getattr(getattr(vjp, "__code__", None), "co_filename", "")
        first = _Lines(file)
        first.follow(*again[0])
        second = _Lines(file, first.at)
        second.follow(*again[1])
    finally:
        tracemalloc.stop()
    peak = second.before
    if second.line is not None:
        peak[second.line] += max(0, first.most - first.live)
    return [
        {
            "place": f"{line[0]}:{line[1]}",
            "source": linecache.getline(*line).strip(),
            "nbytes": size,
            "kept": min(size, second.after[line]),
        }
        for line, size in peak.most_common()
        if size
    ]


def _until(y: Tensor, seed: Any, number: int) -> tuple[Sweep, Node] | None:
    """A sweep that has come as far as its `number`-th node, and that node, if there is."""
    sweep = Sweep([y.edge], [seed], Tensor._of_edge, retain_graph=True)
    for node in sweep.nodes:
        if node in sweep.pending:
            if number == 0:
                return sweep, node
            sweep.play([node])
            number -= 1
    return None


class _Lines:
    """Follows one node's vjp line by line: `most` are the most bytes that it had alive,
    reached after step `at`, at the beginning of which there were `live`. At step `stop`
    `before` is what was alive by line, and `line` the one about to run. Lines are those of
    `file` where it has called what runs."""

    def __init__(self, file: str, stop: int = -1) -> None:
        self.file = file
        self.stop = stop
        self.step = self.most = self.live = self.at = self._live = 0
        self.line: Line | None = None
        self.before: Counter[Line] = Counter()
        self.after: Counter[Line] = Counter()

    def follow(self, sweep: Sweep, node: Node) -> None:
        """Run the node's vjp."""
        outer = sys.gettrace()
        tracemalloc.clear_traces()
        tracemalloc.reset_peak()
        sys.settrace(self._trace)
        try:
            sweep.play([node])
        finally:
            sys.settrace(outer)
        self.after = self._by_line()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        live, peak = tracemalloc.get_traced_memory()
        if peak > self.most:
            self.most, self.at, self.live = peak, self.step - 1, self._live
        if self.step == self.stop:
            self.before = self._by_line()
            calls = traceback.walk_stack(frame.f_back if event == "return" else frame)
            self.line = self._line((f.f_code.co_filename, line) for f, line in calls)
        self.step += 1
        self._live = live
        tracemalloc.reset_peak()
        return self._trace

    def _line(self, calls: Iterable[Line]) -> Line | None:
        """The line that is to answer for what the innermost of these has made."""
        outer = [(f, n) for f, n in calls if not f.startswith((_NUMPY, "<"))]
        own = [line for line in outer if line[0] == self.file]
        return next(iter(own or outer), None)

    def _by_line(self) -> Counter[Line]:
        """The bytes in NumPy's arrays by line."""
        found: Counter[Line] = Counter()
        domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        for made in tracemalloc.take_snapshot().filter_traces([domain]).traces:
            line = self._line((f.filename, f.lineno) for f in reversed(made.traceback))
            if line is not None:
                found[line] += made.size
        return found
