"""What CuPy has: names, parameters and ufunc loops, read from an installed CuPy.

`python tests/cupy_names.py FILE` writes them (no GPU is needed for it); the copy in
tests/golden/cupy14.json lets the conformance tests run where CuPy is not installed.
"""

import inspect
import json
import re
import sys
import types


def parameters(function):
    """The names that a function takes, "*" and "**" for open ends; None if unknown."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        text = (getattr(function, "__doc__", None) or "").split("\n")[0]
        match = re.fullmatch(r"[\w.]+\((.*)\)(?: -> .*)?", text.strip())
        if match is None:
            return None
        names = []
        for part in filter(None, re.split(r",\s*", match[1])):
            name = part.split("=")[0].split()[-1].lstrip("\\")
            names += [name if name in ("*", "/") else re.sub(r"^\*\w*", "*", name)]
        return [n for n in names if n not in ("self", "/", "*")] + ["*"] * ("*" in match[1])
    ends = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [ends.get(p.kind, p.name) for p in found if p.name != "self"]


def described(module):
    """{name: parameters | {"loops": [...]} | "type" | "value"} of a module or class."""
    names = {}
    for name in dir(module):
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            continue
        if isinstance(value, type):
            names[name] = "type"
        elif hasattr(value, "types") and hasattr(value, "nin"):
            names[name] = {"loops": list(value.types)}
        elif callable(value):
            names[name] = parameters(value)
        else:
            names[name] = "value"
    return names


def read():
    """The tables of the installed CuPy."""
    import cupy
    from cupy._core.flags import Flags

    return {
        "version": cupy.__version__,
        "functions": described(cupy),
        "methods": described(cupy.ndarray),
        "special": sorted(n for n in dir(cupy.ndarray) if n.startswith("__")),
        "flags": [n for n in dir(Flags) if not n.startswith("_")],
        "cuda": described(cupy.cuda),
        "stride_tricks": described(cupy.lib.stride_tricks),
        "stream": described(cupy.cuda.Stream),
        "pool": described(cupy.cuda.MemoryPool),
        "hook": described(cupy.cuda.MemoryHook),
        "pointer": described(cupy.cuda.MemoryPointer),
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(read(), file, indent=0, sort_keys=True)
        file.write("\n")
