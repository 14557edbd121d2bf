"""The commands, one module each: SUMMARY, ABOUT, EXAMPLES, arguments(parser), run(args).

`run` returns the exit status: 0 is well, 1 a check that failed.
"""

from types import ModuleType

from . import bench, check, compare, explain, graph, info, kernels, tutorial, walk

__all__ = ["COMMANDS"]

# In the order of `--help`.
COMMANDS: dict[str, ModuleType] = {
    "compare": compare,
    "check": check,
    "bench": bench,
    "graph": graph,
    "walk": walk,
    "kernels": kernels,
    "explain": explain,
    "tutorial": tutorial,
    "info": info,
}
