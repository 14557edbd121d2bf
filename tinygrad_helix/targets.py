"""A TARGET of the command line: the user's own block, from a file or a module.

Functions are found by name: `composed`, every `fused…`, `primitive`, and `inputs`, which
returns a dict of name → Tensor. `parameters = ("w", …)` names the inputs that are
parameters.
"""

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import HelixError

__all__ = ["Target", "TargetError", "load_target", "parse_settings"]

_PREFIXES = ("composed", "primitive", "fused")
_EXAMPLE = (
    "A target has `inputs()`, which returns a dict of Tensors, and at least one of "
    "`composed`, `primitive`, `fused…`, which take them as keywords"
)


class TargetError(HelixError):
    """A TARGET that cannot be loaded, or lacks what a target must have."""


@dataclass(frozen=True, slots=True)
class Target:
    """Variants by name, their inputs, and which of these are parameters."""

    name: str
    variants: dict[str, Callable[..., Any]]
    inputs: dict[str, Any]
    parameters: tuple[str, ...]


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """["N=4096", "dtype=float64"] as {"N": 4096, "dtype": "float64"}."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise TargetError(f"--set {pair!r}: write NAME=VALUE, as in --set N=4096.")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


def _module(spec: str) -> tuple[ModuleType, str]:
    """The module that a TARGET names, and the name after its colon ("" if none)."""
    path, _, name = spec.rpartition(":") if ":" in spec[2:] else (spec, "", "")
    if path.endswith(".py"):
        file = Path(path)
        if not file.is_file():
            raise TargetError(f"the file {path!r} does not exist. Check the path.")
        found = importlib.util.spec_from_file_location(file.stem, file)
        if found is None or found.loader is None:
            raise TargetError(f"the file {path!r} cannot be loaded as Python.")
        module = importlib.util.module_from_spec(found)
        sys.modules[file.stem] = module
        _guarded(f"loading {path}", lambda: found.loader.exec_module(module))  # type: ignore[union-attr]
        return module, name
    try:
        known = importlib.util.find_spec(path) is not None
    except (ImportError, ValueError):  # no such parent package, or no name at all
        known = False
    if not known:
        raise TargetError(
            f"target {spec!r}: there is no module {path!r}. Write helix, file.py[:name] or "
            "pkg.mod[:name]."
        )
    return _guarded(f"importing {path}", lambda: importlib.import_module(path)), name


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """`call()`, with an exception of the user's code told in one sentence."""
    try:
        return call()
    except HelixError:
        raise
    except Exception as error:
        line = ""
        at = error.__traceback__
        while at is not None:
            line = f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
            at = at.tb_next
        raise TargetError(
            f"{what} raised {type(error).__name__}: {error}{line}."
        ) from error


def load_target(
    spec: str,
    settings: Mapping[str, Any],
    variants: Sequence[str] = (),
    inputs: str = "inputs",
) -> Target:
    """Load `file.py[:name]` or `pkg.mod[:name]` and call its inputs with `settings`.

    `:name` (or `variants`) picks variants by name instead of all that are found.
    """
    module, name = _module(spec)
    functions = {
        k: v
        for k, v in vars(module).items()
        if callable(v) and not isinstance(v, type) and not k.startswith("_")
    }
    make = functions.get(inputs)
    if make is None:
        raise TargetError(f"target {spec!r} has no function {inputs!r}. {_EXAMPLE}.")
    wanted = [*variants, *([name] if name else [])]
    missing = [k for k in wanted if k not in functions]
    if missing:
        raise TargetError(
            f"target {spec!r} has no function {missing[0]!r}. It has: "
            f"{', '.join(functions) or 'none'}."
        )
    found = {k: functions[k] for k in wanted} or {
        k: v for prefix in _PREFIXES for k, v in functions.items() if k.startswith(prefix)
    }
    if not found:
        raise TargetError(f"target {spec!r} has no variant to run. {_EXAMPLE}.")
    accepted = inspect.signature(make).parameters
    unknown = [k for k in settings if k not in accepted]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        raise TargetError(
            f"--set {unknown[0]}: {inputs}() of {spec!r} takes "
            f"{', '.join(accepted) or 'no settings'}."
        )
    made = _guarded(f"{inputs}() of {spec!r}", lambda: make(**settings))
    if not isinstance(made, Mapping):
        raise TargetError(
            f"{inputs}() of {spec!r} returned {type(made).__name__}; a dict of name → "
            "Tensor is due."
        )
    names = tuple(getattr(module, "parameters", ()))
    wrapped = {k: _told(f"{k}() of {spec!r}", fn) for k, fn in found.items()}
    return Target(spec, wrapped, dict(made), names)


def _told(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **inputs: _guarded(what, lambda: fn(**inputs))
