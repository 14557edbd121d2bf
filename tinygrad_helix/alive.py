"""Why a buffer is alive: who holds it, in words."""

import gc
import inspect
import sys
from collections.abc import Iterator
from types import CellType, FrameType, ModuleType
from typing import Any

from . import memory
from .backend import Backend, is_array
from .tape import Leaf, Node
from .tensor import Tensor

__all__ = ["why_alive"]


def why_alive(x: Any) -> list[str]:
    """The holders of a Tensor's or array's storage, a sentence each.

    Named are: nodes that saved it (with op, label, line, and the variable whose graph
    reaches the node), local and global variables, a notebook's `Out[n]`, frames that the
    last exception keeps, leaves whose gradient it is, attributes and containers. It looks
    through all objects that the interpreter tracks, which takes a moment.

    >>> import tinygrad_helix as th
    >>> x = th.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> print(*th.why_alive(y), sep="\\n")  # doctest: +ELLIPSIS
    variable `y` of <module> (...)
    saved as 'y' by exp (node ..., made at ...), in the graph of variable `y`...
    """
    target = memory.storage(x.data if isinstance(x, Tensor) else x)
    del x
    tracked = gc.get_objects()
    tensors = [t for t in tracked if _is(t, Tensor) and _shares(t, target)]
    nodes = [n for n in tracked if _is(n, Node)]
    leaves = [leaf for leaf in tracked if _is(leaf, Leaf)]
    alive = [t for t in tracked if _is(t, Tensor)]
    del tracked

    names = list(_names())
    by_id: dict[int, list[str]] = {}
    for name, value in names:
        by_id.setdefault(id(value), []).append(name)
    reasons = [name for name, value in names if _shares(value, target)]
    for t in tensors:
        if id(t) not in by_id:
            reasons += _containers(t, [alive, tensors, names])
    gradients = {id(leaf.grad) for leaf in leaves if leaf.grad is not None}
    if any(id(t) in gradients for t in tensors):
        reasons.append("the gradient of a leaf (`.grad` of a Tensor that requires one)")
    for node in sorted(nodes, key=lambda node: node.counter):
        for s in node.saved or ():
            if s.array is not None and _shares(s.array, target):
                graph = _graph_of(node, alive, by_id)
                reasons.append(f"saved as '{s.label}' by {node!r}, in the graph of {graph}")
    return list(dict.fromkeys(reasons))


def _is(value: Any, *kinds: type) -> bool:
    """isinstance() for any object there is: it would ask a stranger's proxy for its
    `__class__`, and some answer with a warning or an import."""
    return issubclass(type(value), kinds)


def _holds_values(value: Any) -> bool:
    return _is(value, Tensor, Backend.array_type)


def _shares(value: Any, target: Any) -> bool:
    if isinstance(value, Tensor):
        value = value.data
    return is_array(value) and memory.storage(value) is target


def _graph_of(node: Node, alive: list[Tensor], by_id: dict[int, list[str]]) -> str:
    """The named Tensor nearest above `node` whose graph reaches it."""
    above = [t for t in alive if t.node is not None and node in set(t.node.reachable())]
    above.sort(key=lambda t: t.node.counter if t.node is not None else 0)
    for t in above:
        if id(t) in by_id:
            return by_id[id(t)][0]
    if above:
        return f"a Tensor of shape {above[0].shape} made by {above[0].node!r}"
    return "no Tensor (something holds the node itself)"


def _names() -> Iterator[tuple[str, Any]]:
    """Every Tensor and array that a variable, a notebook or an exception holds."""
    seen: set[int] = set()
    at: FrameType | None = None
    for at in sys._current_frames().values():
        while at is not None:
            if at.f_globals.get("__name__") != __name__:
                yield from _variables(at, "variable", seen)
            at = at.f_back
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    traceback = getattr(error, "__traceback__", None)
    while traceback is not None:
        kind = f"the last exception ({type(error).__name__}), variable"
        yield from _variables(traceback.tb_frame, kind, seen)
        traceback = traceback.tb_next
    main = sys.modules.get("__main__")
    out = getattr(main, "Out", None)
    if isinstance(out, dict):
        for n, value in out.items():
            yield from _inside(f"Out[{n}] of the notebook", value)
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and id(vars(module)) not in seen:
            for name, value in list(vars(module).items()):
                if not (module is main and (name.startswith("_") or name == "Out")):
                    yield from _inside(f"global `{name}` of {module.__name__}", value)


def _variables(frame: FrameType, kind: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(frame) in seen:
        return
    seen |= {id(frame)}
    where = frame.f_code.co_name
    module_level = where == "<module>"
    if module_level:
        seen.add(id(frame.f_globals))
    variables = frame.f_locals
    # Before Python 3.13 a snapshot that the frame keeps. Is it held by more than the
    # frame, `variables` and the call of getrefcount, someone has called locals().
    shared = sys.getrefcount(variables) > 3
    for name, value in list(variables.items()):
        if not name.isidentifier() or (module_level and (name[0] == "_" or name == "Out")):
            continue  # names that tools make, and a notebook's own copies of Out
        label = f"{kind} `{name}` of {where} ({frame.f_code.co_filename}:{frame.f_lineno})"
        yield from _inside(label, value)
    snapshot = frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(variables) is dict
    if snapshot and not shared:
        variables.clear()  # it would outlive this call, and all that it holds


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`value` and, one level down, what a list, tuple or dict of it holds."""
    if _holds_values(value):
        yield name, value
    elif type(value) in (list, tuple):
        for i, item in enumerate(value):
            if _holds_values(item):
                yield f"{name}, element {i}", item
    elif type(value) is dict:
        for key, item in list(value.items()):
            if _holds_values(item):
                yield f"{name}, key {key!r}", item


def _containers(t: Tensor, ours: list[Any]) -> list[str]:
    """What holds a Tensor that no variable names: an object's attribute, a container."""
    mine = {id(held) for held in ours}
    found = []
    for holder in gc.get_referrers(t):
        if id(holder) in mine or _is(holder, FrameType, CellType, Leaf):
            continue
        if type(holder) is dict:
            owners = [o for o in gc.get_referrers(holder) if _attributes(o) is holder]
            found += [_attribute(o, t) for o in owners] or ["a dict"]
        elif _attributes(holder) is not None:
            found.append(_attribute(holder, t))
        elif type(holder) is not tuple or id(holder[-1]) != id(t):  # not one of `_names`
            found.append(f"a {type(holder).__name__}")
    return found


def _attributes(x: Any) -> dict[str, Any] | None:
    return getattr(x, "__dict__", None) if not _is(x, type, ModuleType) else None


def _attribute(owner: Any, t: Tensor) -> str:
    names = [name for name, value in vars(owner).items() if value is t]
    return f"attribute `{''.join(names[:1])}` of a {type(owner).__name__}"
