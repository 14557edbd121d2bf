"""A TARGET of the command line: the user's own block, from a file or a module.

Functions are found by name: `composed`, every `fused…`, `primitive`, and `inputs`, which
returns a dict of name → Tensor. `parameters = ("w", …)` names the inputs that are
parameters. Op classes that the file defines are found too.
"""

import ast
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import HelixError
from .op import Op

__all__ = [
    "Target",
    "TargetError",
    "beside",
    "load_target",
    "located",
    "parse_settings",
    "told",
]

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PREFIXES = ("composed", "primitive", "fused")
_EXAMPLE = (
    "A target has `inputs()`, which returns a dict of Tensors, and at least one of "
    "`composed`, `primitive`, `fused…`, which take them as keywords"
)


class TargetError(HelixError):
    """A TARGET that cannot be loaded, or lacks what a target must have."""


@dataclass(frozen=True, slots=True)
class Target:
    """Variants by name, their inputs, which of these are parameters, and Op classes."""

    name: str
    variants: dict[str, Callable[..., Any]]
    inputs: dict[str, Any]
    parameters: tuple[str, ...]
    ops: dict[str, type[Op]]


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """["N=4096", "dtype=float64"] as {"N": 4096, "dtype": "float64"}."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise TargetError(f"--set {pair!r}: write NAME=VALUE, as in --set N=4096.")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            settings[name] = value
        try:
            json.dumps(settings[name])
        except TypeError:
            raise TargetError(
                f"--set {pair!r}: a setting goes into the report as JSON, which cannot "
                "hold it. Use numbers, strings, lists, true and false."
            ) from None
    return settings


def _split(spec: str) -> tuple[str, str]:
    """A TARGET as file or module, and the name after its colon ("" if none)."""
    path, _, name = spec.rpartition(":") if ":" in spec[2:] else (spec, "", "")
    return path, name


def located(spec: str) -> str:
    """`spec` itself if there is such a file or (top-level) module; it is not loaded."""
    path, _ = _split(spec)
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise TargetError(f"the file {path!r} does not exist. Check the path.")
    elif not _is_known(path.partition(".")[0]):
        raise _no_module(spec, path)
    return spec


_count = itertools.count().__next__


@contextmanager
def beside(spec: str) -> Iterator[None]:
    """Inside the block, a TARGET's file can import what lies beside it. The standard
    library goes before its folder, and installed packages after it."""
    path, _ = _split(spec)
    folder = str(Path(path).resolve().parent)
    if not path.endswith(".py") or folder in sys.path:
        yield
        return
    installed = (i for i, p in enumerate(sys.path) if p.endswith("-packages"))
    sys.path.insert(next(installed, len(sys.path)), folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _is_known(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # no such parent package, or no name at all
        return False


def _no_module(spec: str, path: str) -> TargetError:
    return TargetError(
        f"target {spec!r}: there is no module {path!r}. Write helix, file.py[:name] or "
        "pkg.mod[:name]."
    )


def _module(spec: str) -> tuple[ModuleType, str]:
    """The module that a TARGET names, and the name after its colon."""
    path, name = _split(located(spec))
    if path.endswith(".py"):
        file = Path(path)
        private = f"_helix_target_{_count()}_{file.stem}"  # it shadows no other module
        found = importlib.util.spec_from_file_location(private, file)
        if found is None or found.loader is None:
            raise TargetError(f"the file {path!r} cannot be loaded as Python.")
        module = importlib.util.module_from_spec(found)
        sys.modules[private] = module
        with beside(spec):
            _guarded(f"loading {path}", lambda: found.loader.exec_module(module))  # type: ignore[union-attr]
        return module, name
    if not _is_known(path):
        raise _no_module(spec, path)
    return _guarded(f"importing {path}", lambda: importlib.import_module(path)), name


def _guarded(what: str, call: Callable[[], Any]) -> Any:
    """`call()`, with an exception of the user's code told in one sentence."""
    try:
        return call()
    except HelixError as error:
        users = [place for place in _places(error) if _is_users(place)]
        if users:
            error.add_note(f"In {what}, at {users[-1]}.")
        raise
    except Exception as error:
        raise TargetError(told(what, error)) from error


def told(what: str, error: BaseException) -> str:
    """An exception in one line: what raised it, with what, and the user's line it came
    from (the last one outside this package, if there is any)."""
    line = ""
    if not isinstance(error, SyntaxError):  # it says its line itself
        places = _places(error)
        line = (
            f" at {([p for p in places if _is_users(p)] or places)[-1]}" if places else ""
        )
    message = " ".join(str(error).split()).removesuffix(".")
    colon = ": " if message else ""
    return f"{what} raised {type(error).__name__}{colon}{message}{line}."


def _places(error: BaseException) -> list[str]:
    """The lines `file:line` that an exception went through, the innermost last."""
    places = []
    at = error.__traceback__
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not file.startswith("<"):  # the import machinery is frozen
            places.append(f"{file}:{at.tb_lineno}")
        at = at.tb_next
    return places


def _is_users(place: str) -> bool:
    return not place.startswith(_PACKAGE)


def load_target(
    spec: str,
    settings: Mapping[str, Any],
    variants: Sequence[str] = (),
    inputs: str = "inputs",
    with_ops: bool = False,
) -> Target:
    """Load `file.py[:name]` or `pkg.mod[:name]` and call its inputs with `settings`.

    `:name` (or `variants`) picks variants by name instead of all that are found, and
    `with_ops` lets it pick Op classes too, of which a target may then have nothing but.
    """
    module, name = _module(spec)
    functions = {
        k: v
        for k, v in vars(module).items()
        if callable(v) and not isinstance(v, type) and not k.startswith("_")
    }
    classes = {
        k: v
        for k, v in vars(module).items()
        if isinstance(v, type) and issubclass(v, Op) and v.__module__ == module.__name__
    }
    make = functions.get(inputs)
    if make is None:
        raise TargetError(f"target {spec!r} has no function {inputs!r}. {_EXAMPLE}.")
    wanted = [*variants, *([name] if name else [])]
    known = functions | (classes if with_ops else {})
    missing = [k for k in wanted if k not in known]
    if missing:
        raise TargetError(
            f"target {spec!r} has no function {missing[0]!r}. It has: "
            f"{', '.join(known) or 'none'}."
        )
    if wanted:
        found = {k: functions[k] for k in wanted if k in functions}
        classes = {k: classes[k] for k in wanted if k in classes}
    else:
        found = {
            k: v
            for prefix in _PREFIXES
            for k, v in functions.items()
            if k.startswith(prefix)
        }
    if not found and not (with_ops and classes):
        raise TargetError(f"target {spec!r} has no variant to run. {_EXAMPLE}.")
    accepted = inspect.signature(make).parameters
    unknown = [k for k in settings if k not in accepted]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        raise TargetError(
            f"--set {unknown[0]}: {inputs}() of {spec!r} takes "
            f"{', '.join(accepted) or 'no settings'}."
        )
    due = [
        k
        for k, p in accepted.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (p.kind is p.POSITIONAL_ONLY or k not in settings)
    ]
    if due:
        raise TargetError(
            f"{inputs}() of {spec!r} is called without {', '.join(due)}. Every argument of "
            f"{inputs}() needs a default; --set changes it."
        )
    with beside(spec):
        made = _guarded(f"{inputs}() of {spec!r}", lambda: make(**settings))
    if not isinstance(made, Mapping):
        raise TargetError(
            f"{inputs}() of {spec!r} returned {type(made).__name__}; a dict of name → "
            "Tensor is due."
        )
    names = tuple(getattr(module, "parameters", ()))
    strangers = [name for name in names if name not in made]
    if strangers:
        raise TargetError(
            f"parameters of {spec!r} names {', '.join(strangers)}, which are no inputs. "
            f"The inputs are: {', '.join(made) or 'none'}."
        )
    wrapped = {k: _told(spec, k, fn) for k, fn in found.items()}
    return Target(spec, wrapped, dict(made), names, classes)


def _told(spec: str, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(**inputs: Any) -> Any:
        with beside(spec):
            return _guarded(f"{name}() of {spec!r}", lambda: fn(**inputs))

    return call
