"""Parameter and Module: weights with names.

A Module is an ordinary object. Its parameters are found by walking its attributes in the
order in which they were assigned: there is no registration, and no `super().__init__()`
to forget.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .. import memory
from ..backend import backend_of, get_backend, is_array, is_writeable
from ..errors import DTypeError, GraphError, HelixError, ShapeError
from ..modes import no_grad
from ..tape import Leaf, Scope, scope
from ..tensor import Tensor

__all__ = ["Module", "Parameter"]


class Parameter(Tensor):
    """A Tensor that a model learns: it requires a gradient, and its bytes are parameters'.

    Like `Tensor(data)` it aliases an array and converts lists. Its storage is counted as
    a parameter, not as an activation, wherever the tape holds it. Copies made by deepcopy
    and pickle are Parameters too; results of operations are plain Tensors.

    >>> import tinygrad_helix as th
    >>> from tinygrad_helix.nn import Parameter
    >>> w = Parameter([[1.0, 2.0]])
    >>> w.requires_grad, type(w * 2).__name__, th.saved_bytes((w * w).sum())
    (True, 'Tensor', 0)
    """

    __slots__ = ()

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        requires_grad: bool = True,
        device: str | None = None,
    ) -> None:
        super().__init__(data, dtype, requires_grad, device)
        memory.mark_parameter(self._data)

    def __repr__(self) -> str:
        text = super().__repr__().replace("\n", "\n" + " " * 3)
        return text.replace("Tensor(", "Parameter(", 1)

    def _copied(self, data: Any, grad: Any) -> Tensor:
        memory.mark_parameter(data)
        return super()._copied(data, grad)

    def __reduce__(self) -> Any:
        return _unpickle, super().__reduce__()

    def _replace(self, array: Any, grad: Any) -> None:
        """Take `array` for one's own, on a new leaf: old graphs reach this one no more.
        The hooks come along, with their handles."""
        memory.mark_parameter(array)
        self._data = array
        hooks = self._edge.hooks if isinstance(self._edge, Leaf) else None
        needed = self._requires_grad or grad is not None or hooks is not None
        self._edge = Leaf(self) if needed else None
        if self._edge is not None:
            self._edge.hooks = hooks
        self.grad = grad


def _unpickle(make: Any, args: tuple[Any, ...]) -> Tensor:
    parameter = make(*args)
    memory.mark_parameter(parameter.data)
    return parameter


def float_dtype(what: str, dtype: Any) -> np.dtype:
    """`dtype` as a NumPy dtype of floats, or an error that begins with `what`."""
    try:
        target = np.dtype(dtype)
    except TypeError:
        target = None
    if dtype is None or target is None or target.kind != "f":
        raise DTypeError(
            f"{what} got dtype {dtype!r}. Parameters are floats: use 'float32', say."
        )
    return target


def shared_memory(named: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """The names of two Tensors whose arrays overlap in memory, or None."""
    by_storage: dict[int, list[str]] = {}
    for name, x in named.items():
        others = by_storage.setdefault(id(memory.storage(x.data)), [])
        for other in others:
            if backend_of(x.data).xp.shares_memory(x.data, named[other].data):
                return other, name
        others.append(name)
    return None


def _members(
    name: str, value: Any, around: tuple[int, ...] = ()
) -> Iterator[tuple[str, "Parameter | Module"]]:
    """The Parameters and Modules that an attribute holds, with their names. `around` are
    the ids of the lists that the value is in: one that holds itself is passed over."""
    if isinstance(value, (Parameter, Module)):
        yield name, value
    elif isinstance(value, (list, tuple)) and id(value) not in around:
        for i, item in enumerate(value):
            if isinstance(item, (Parameter, Module, list, tuple)):
                yield from _members(f"{name}.{i}", item, (*around, id(value)))


class Module:
    """A function with parameters: assign Parameters and Modules, write `forward`.

    What is found: attributes that are Parameters or Modules, and (nested) lists and
    tuples of them, in the order of assignment. A plain Tensor is not part of the state.
    A Parameter that two attributes share is one parameter, under its first name.

    >>> import tinygrad_helix as th
    >>> from tinygrad_helix.nn import Module, Parameter
    >>> class Scale(Module):
    ...     def __init__(self, dim):
    ...         self.gain = Parameter(th.ones(dim))
    ...     def forward(self, x):
    ...         return x * self.gain
    >>> Scale(3)
    Scale: 3 parameters
      gain [3] float32
    """

    training: bool = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise HelixError(
            f"{type(self).__name__} has no forward. Write a method forward(self, ...); a "
            "call of the module runs it."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = scope.set(Scope(self, scope.get()))
        try:
            return self.forward(*args, **kwargs)
        finally:
            scope.reset(token)

    # --- what it is made of

    def _children(self) -> Iterator[tuple[str, "Parameter | Module"]]:
        for name, value in vars(self).items():
            yield from _members(name, value)

    def _walk(self, prefix: str, seen: set[int]) -> Iterator[tuple[str, "Module"]]:
        seen.add(id(self))
        yield prefix, self
        for name, child in self._children():
            if isinstance(child, Module) and id(child) not in seen:
                yield from child._walk(f"{prefix}.{name}" if prefix else name, seen)

    def named_modules(self) -> Iterator[tuple[str, "Module"]]:
        """(name, module) of this module, named "", and all below it, each once."""
        return self._walk("", set())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter) of all parameters, each once.

        A module's own come before those of the modules below it, in order of assignment.
        Two different Parameters on the same memory raise GraphError: each would get a
        part of the gradient only. To share a weight assign the same Parameter twice.
        """
        found: dict[str, Parameter] = {}
        seen: set[int] = set()
        for prefix, module in self.named_modules():
            for name, child in module._children():
                if isinstance(child, Parameter) and id(child) not in seen:
                    seen.add(id(child))
                    found[f"{prefix}.{name}" if prefix else name] = child
        pair = shared_memory(found)
        if pair is not None:
            raise GraphError(
                f"{type(self).__name__}: the parameters {pair[0]} and {pair[1]} are two "
                "Parameters on the same memory, so each would get only a part of the "
                "gradient. Assign the very same Parameter to both places."
            )
        return iter(found.items())

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, each once, in the order of `named_parameters`."""
        return (parameter for _, parameter in self.named_parameters())

    # --- modes and gradients

    def train(self, mode: bool = True) -> "Module":
        """Set `training` on this module and all below it; returns the module."""
        for _, module in self.named_modules():
            module.training = bool(mode)
        return self

    def eval(self) -> "Module":
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self, flag: bool = True) -> "Module":
        """Freeze (False) or unfreeze every parameter; returns the module.

        Freezing drops the gradients, so that no optimizer steps on an old one.
        """
        for parameter in self.parameters():
            parameter.requires_grad = flag
            if not flag:
                parameter.grad = None
        return self

    def zero_grad(self) -> None:
        """Set every gradient to None: the next sweep allocates, optimizers skip it."""
        for parameter in self.parameters():
            parameter.grad = None

    # --- state

    def state_dict(self) -> dict[str, Tensor]:
        """{name: copy of the parameter}: a snapshot that training does not change.

        Costs as many bytes as the parameters. A shared parameter is in it once.
        """
        return {
            name: Tensor(backend_of(p.data).copy(p.data))
            for name, p in self.named_parameters()
        }

    def load_state_dict(
        self, state: Mapping[str, Any], strict: bool = True
    ) -> tuple[list[str], list[str]]:
        """Write the values of `state` (Tensors or arrays by name) into the parameters.

        Copies in place, so that what shares a parameter sees it. Names, shapes and dtypes
        must agree; all that do not are listed in one error, and then nothing has changed.
        With `strict=False` missing and unexpected names are let pass. Returns the names
        that were missing and those that were not expected.
        """
        if not isinstance(state, Mapping):
            raise DTypeError(
                "load_state_dict takes a mapping of names to Tensors or arrays; got "
                f"{type(state).__name__}."
            )
        own = dict(self.named_parameters())
        missing = [name for name in own if name not in state]
        unexpected = [name for name in state if name not in own]
        shapes, types, arrays = [], [], {}
        for name, p in own.items():
            if name in missing:
                continue
            value = state[name].data if isinstance(state[name], Tensor) else state[name]
            if not is_array(value):
                types.append(f"{name} is {type(value).__name__}, due {p.dtype}")
            elif value.shape != p.shape:
                shapes.append(f"{name} has {value.shape}, due {p.shape}")
            elif value.dtype != p.dtype:
                types.append(f"{name} is {value.dtype}, due {p.dtype}")
            elif not is_writeable(p.data):
                types.append(f"{name} of this module is read-only")
            # A parameter's own array may be written to before it is read: copy it.
            elif memory.is_parameter(value):
                arrays[name] = backend_of(value).copy(value)
            else:
                arrays[name] = value
        lists = {"wrong shapes": shapes, "wrong types": types}
        if strict:
            lists = {"missing": missing, "unexpected": unexpected} | lists
        faults = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
        if faults:
            kind = ShapeError if shapes else DTypeError if types else HelixError
            raise kind(
                f"the state does not fit this {type(self).__name__}; {'; '.join(faults)}. "
                "Nothing was loaded. Load a state that this architecture made."
            )
        with no_grad():
            for name, array in arrays.items():
                own[name].copy_(array)
        return missing, unexpected

    def to(self, device: str) -> "Module":
        """Move every parameter and its gradient to `device`, in place."""
        get_backend(device)
        for p in self.parameters():
            if p.device != device:
                grad = None if p.grad is None else p.grad.to(device)
                p._replace(p.detach().to(device).data, grad)
        return self

    def astype(self, dtype: Any) -> "Module":
        """Convert every parameter of floats and its gradient to `dtype`, in place. Hooks
        on parameters stay."""
        target = float_dtype(f"astype of a {type(self).__name__}", dtype)
        for p in self.parameters():
            if p.dtype.kind == "f" and p.dtype != target:
                grad = None if p.grad is None else p.grad.detach().astype(target)
                p._replace(p.data.astype(target), grad)
        return self

    # --- text

    def __repr__(self) -> str:
        return "\n".join(self._lines("", "", {id(self): "the whole"}))

    def _lines(self, prefix: str, indent: str, seen: dict[int, str]) -> Iterator[str]:
        count = sum(p.size for p in self.parameters())
        yield f"{type(self).__name__}: {count:,} parameters"
        indent += "  "
        for name, child in self._children():
            full = prefix + name
            first = seen.setdefault(id(child), full)
            if first != full:
                yield f"{indent}{name}: shared with {first}"
            elif isinstance(child, Module):
                head, *rest = child._lines(f"{full}.", indent, seen)
                yield f"{indent}{name}: {head}"
                yield from rest
            else:
                frozen = "" if child.requires_grad else ", frozen"
                yield f"{indent}{name} {list(child.shape)} {child.dtype}{frozen}"
