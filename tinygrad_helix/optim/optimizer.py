"""What every optimizer has: groups of parameters, their state, and the loop of a step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .. import memory
from ..backend import array_module, backend_of, is_writeable
from ..errors import DeviceError, DTypeError, GraphError, HelixError, ShapeError
from ..nn.module import shared_memory
from ..ops.operands import accumulator
from ..tensor import Tensor

__all__ = ["Optimizer", "listed", "number"]


def listed(what: str, parameters: Any) -> list[Tensor]:
    """`parameters` as a list of Tensors."""
    if isinstance(parameters, Tensor) or not isinstance(parameters, Iterable):
        raise DTypeError(
            f"{what} takes an iterable of Tensors; got {type(parameters).__name__}. Give "
            "model.parameters(), or a list."
        )
    tensors = list(parameters)
    for i, p in enumerate(tensors):
        if not isinstance(p, Tensor):
            raise DTypeError(
                f"{what} takes Tensors; parameter {i} is {type(p).__name__}. Give "
                "model.parameters()."
            )
    return tensors


def number(what: str, name: str, value: Any, low: float, below: float) -> None:
    """Refuse a hyperparameter that is no number in [low, below)."""
    if isinstance(value, bool) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise DTypeError(f"{what} takes a number as {name}; got {type(value).__name__}.")
    if not low <= value < below:
        bound = "finite" if below == math.inf else f"below {below:g}"
        raise HelixError(
            f"{what} got {name}={value!r}. Give one of at least {low:g}, {bound}."
        )


class Optimizer(ABC):
    """The base of every optimizer: groups of parameters, their state, and `step`.

    `parameters` is an iterable of Tensors, or a list of dicts {"params": Tensors, then
    hyperparameters of that group's own}. The hyperparameters in `param_groups` may be
    changed between steps (a learning rate, say); each step checks them. The parameters
    there may not: `add_param_group` adds some. A parameter whose gradient is None is left
    alone: no decay, no update of its state, no step. One that is given twice, or that
    shares memory with another, is an error.

    A rule is a subclass that states `_check`, `_state_names` and `_update`. deepcopy and
    pickle of (model, optimizer), as one object, keep them together.
    """

    def __init__(self, parameters: Any, defaults: dict[str, Any]) -> None:
        name = type(self).__name__
        several = isinstance(parameters, (list, tuple)) and len(parameters) > 0
        grouped = several and all(isinstance(p, Mapping) for p in parameters)
        self._defaults = defaults
        self.param_groups: list[dict[str, Any]] = [
            self._group(g) for g in (parameters if grouped else [{"params": parameters}])
        ]
        self._parameters = [p for p, _ in self._each()]  # whose state `_state` is
        if not self._parameters:
            raise HelixError(
                f"{name} got no parameters. A generator can be used once: call "
                "model.parameters() anew."
            )
        self._state: list[dict[str, Any] | None] = [None for _ in self._parameters]
        self._check_parameters(self._parameters)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Step the parameters of one more group from now on: {"params": Tensors, then
        hyperparameters of its own}, the others as they were given at first.

        It becomes the last of `param_groups`. After an error nothing has changed.

        >>> import tinygrad_helix as th
        >>> p, q = (th.ones(1, requires_grad=True) for _ in range(2))
        >>> optimizer = th.optim.SGD([p], lr=0.5)
        >>> optimizer.add_param_group({"params": [q], "lr": 0.25})
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.5, 0.25]
        """
        self._check_unchanged()
        name = type(self).__name__
        if not isinstance(group, Mapping):
            raise DTypeError(
                f"{name}.add_param_group takes a dict with params; got "
                f"{type(group).__name__}."
            )
        new = self._group(group)
        self._check_parameters([*self._parameters, *new["params"]])
        self.param_groups.append(new)
        self._parameters += new["params"]
        self._state += [None for _ in new["params"]]

    def _group(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A group as it was given, with all hyperparameters, checked."""
        name, defaults = type(self).__name__, self._defaults
        unknown = [key for key in given if key != "params" and key not in defaults]
        if unknown or "params" not in given:
            raise HelixError(
                f"{name}: a group has the keys params (required) and "
                f"{', '.join(defaults)}; got {', '.join(map(str, given)) or 'none'}."
            )
        group = {**defaults, **given}
        group["params"] = listed(name, group["params"])
        self._check(group)
        return group

    def _check_unchanged(self) -> None:
        """The state belongs to the parameters that were given, in their order."""
        now = [p for p, _ in self._each()]
        if list(map(id, now)) != list(map(id, self._parameters)):
            raise GraphError(
                f"{type(self).__name__}: its param_groups hold {len(now)} parameters that "
                f"are not the {len(self._parameters)} that were given, in their order: the "
                "state of one would be taken for another's. Add parameters with "
                "add_param_group(), or make a new optimizer. Nothing was changed."
            )

    def _each(self) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """Every parameter with its group, in the order given."""
        return ((p, group) for group in self.param_groups for p in group["params"])

    def _check_parameters(self, parameters: list[Tensor]) -> None:
        name = type(self).__name__
        for i, p in enumerate(parameters):
            if p.dtype.kind != "f":
                raise DTypeError(f"{name}: parameter {i} {p.shape} is {p.dtype}, no float.")
            if not p.is_leaf:
                raise GraphError(
                    f"{name}: parameter {i} {p.shape} was made by {p.node!r}. Only a leaf "
                    "can be stepped: give the Tensor that it was made from."
                )
        pair = shared_memory({str(i): p for i, p in enumerate(parameters)})
        if pair is not None:
            raise GraphError(
                f"{name}: parameters {pair[0]} and {pair[1]} are one Tensor, or share "
                "memory, which would be stepped twice. Give each weight once, and let "
                "layers share the Tensor itself."
            )

    # --- the rule, as a subclass states it

    @abstractmethod
    def _check(self, group: dict[str, Any]) -> None:
        """Raise for a hyperparameter that the rule cannot take."""

    @abstractmethod
    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """What the rule keeps of a parameter of this group: arrays of its shape."""

    @abstractmethod
    def _update(self, p: Any, g: Any, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Write one step of the rule into the array `p` with gradient `g`."""

    # --- what it does

    def step(self) -> None:
        """Step every parameter that has a gradient, in place."""
        self._check_unchanged()
        for group in self.param_groups:
            self._check(group)
        for i, (p, _) in enumerate(self._each()):
            if p.grad is not None:
                self._check_arrays(i, p.data)
        for i, (p, group) in enumerate(self._each()):
            if p.grad is not None:
                state = self._current(p.data, self._state[i] or {"step": 0}, group)
                state["step"] += 1
                self._state[i] = state
                self._update(p.data, p.grad.data, state, group)
                memory.bump(p.data)

    def _current(
        self, p: Any, kept: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any]:
        """`kept` with the arrays that the group's rule wants now; new ones are zeros.

        They change when a hyperparameter does: SGD keeps m only where it has momentum.
        """
        zeros, dtype = array_module(p).zeros, accumulator(p.dtype)
        state = {"step": kept["step"]}
        for name in self._state_names(group):
            state[name] = kept[name] if name in kept else zeros(p.shape, dtype)
        return state

    def zero_grad(self) -> None:
        """Set every gradient to None: the next sweep allocates, `step` skips it."""
        for p, _ in self._each():
            p.grad = None

    def _check_arrays(self, i: int, p: Any) -> None:
        what = f"{type(self).__name__}: parameter {i} {p.shape}"
        if not is_writeable(p):
            raise GraphError(
                f"{what} is read-only. Make it from a copy of its array. "
                "Nothing was stepped."
            )
        places = {
            k: backend_of(v) for k, v in (self._state[i] or {}).items() if k != "step"
        }
        for name, place in places.items():
            if place is not backend_of(p):
                raise DeviceError(
                    f"{what} is on {backend_of(p).name!r}, and its {name} on "
                    f"{place.name!r}. Move a model before its optimizer is made, or let "
                    "the optimizer load its own state_dict(). Nothing was stepped."
                )
        dtypes = {v.dtype for k, v in (self._state[i] or {}).items() if k != "step"}
        if dtypes - {accumulator(p.dtype)}:
            raise DTypeError(
                f"{what} has become {p.dtype} since the last step. Convert a model before "
                "its optimizer is made. Nothing was stepped."
            )

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Hyperparameters and state, with parameters numbered in the order given.

        {"param_groups": [{"params": [0, 1, …], "lr": …, …}, …], "state": {number:
        {"step": int, name: Tensor, …}}}. The Tensors are copies.
        """
        self._check_unchanged()
        state = {}
        for i, (p, group) in enumerate(self._each()):
            kept = self._state[i]
            if kept is not None:
                now = self._current(p.data, kept, group).items()
                state[i] = {k: v if k == "step" else Tensor(v.copy()) for k, v in now}
        return {"param_groups": self._numbered(), "state": state}

    def _numbered(self) -> list[dict[str, Any]]:
        """The groups with numbers in the place of parameters."""
        numbers = iter(range(len(self._state)))
        return [
            {**group, "params": [next(numbers) for _ in group["params"]]}
            for group in self.param_groups
        ]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; the parameters themselves stay.

        Groups, names, shapes and dtypes must agree; all that do not are listed in one
        error, and then nothing has changed.
        """
        self._check_unchanged()
        try:
            groups = [dict(group) for group in state_dict["param_groups"]]
            given = {int(i): dict(kept) for i, kept in state_dict["state"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DTypeError(
                f"{type(self).__name__}.load_state_dict takes what state_dict() returns, a "
                f"dict of param_groups and state; this is none ({error!r})."
            ) from None
        faults: list[str] = []
        layouts = [
            [(g.keys(), g.get("params")) for g in gs] for gs in (groups, self._numbered())
        ]
        if layouts[0] != layouts[1]:
            faults.append("its groups have other keys or other numbers of parameters")
        # What is kept depends on hyperparameters: on those that would be taken over.
        ruling = self.param_groups if faults else groups
        names = [self._state_names(g) for g in ruling for _ in g["params"]]
        parameters = [p for p, _ in self._each()]
        arrays: list[dict[str, Any] | None] = [None for _ in parameters]
        for i, kept in given.items():
            if not 0 <= i < len(parameters):
                faults.append(f"state of parameter {i}, due 0 to {len(parameters) - 1}")
            elif kept.keys() != {"step", *names[i]}:
                faults.append(f"parameter {i} has {list(kept)}, due {['step', *names[i]]}")
            else:
                arrays[i] = self._taken(i, kept, parameters[i].data, faults)
        if faults:
            raise ShapeError(
                f"the state does not fit this {type(self).__name__}: {'; '.join(faults)}. "
                "Nothing was loaded. Load a state of the same rule and parameters."
            )
        for group in groups:
            self._check(group)
        for group, new in zip(self.param_groups, groups, strict=True):
            group.update({k: v for k, v in new.items() if k != "params"})
        self._state = arrays

    def _taken(
        self, i: int, kept: dict[str, Any], p: Any, faults: list[str]
    ) -> dict[str, Any]:
        """Copies of the state of parameter i; what does not fit is added to `faults`."""
        if not isinstance(kept["step"], int) or kept["step"] < 1:
            faults.append(f"parameter {i} has step {kept['step']!r}, due an int ≥ 1")
        new = {"step": kept["step"]}
        dtype = accumulator(p.dtype)
        for name in [name for name in kept if name != "step"]:
            value = kept[name].data if isinstance(kept[name], Tensor) else kept[name]
            shape, got = getattr(value, "shape", None), getattr(value, "dtype", None)
            if shape != p.shape or got != dtype:
                faults.append(f"{name} of {i} is {shape} {got}, due {p.shape} {dtype}")
            else:
                new[name] = backend_of(p).copied(value)
        return new
