"""Learning-rate schedules: factors of the step number, and what applies one.

A schedule is a function of t, the number of steps taken so far, that gives the factor of
every group's own learning rate. Any function will do; those here can be joined, pickled
and printed. An argument that they cannot take raises DTypeError or HelixError at once, not
at the step at which it would be used.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..errors import DTypeError, HelixError, ShapeError
from .optimizer import Optimizer, number

__all__ = [
    "ConstantSchedule", "CosineDecay", "JoinedSchedules", "LRScheduler", "LinearSchedule",
    "StepDecay",
]  # fmt: skip

Schedule = Callable[[int], float]


def _count(what: str, name: str, value: Any) -> None:
    """Refuse a number of steps that is no int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DTypeError(f"{what} takes an int as {name}; got {type(value).__name__}.")
    if value < 1:
        raise HelixError(f"{what} got {name}={value}. Give at least 1.")


def _callable(what: str, schedule: Any) -> None:
    """Refuse a schedule that is no function."""
    if not callable(schedule):
        raise DTypeError(
            f"{what} takes functions of the step as schedules; got "
            f"{type(schedule).__name__}. Give CosineDecay(1000), say."
        )


@dataclass(frozen=True)
class ConstantSchedule:
    """factor(t) = factor

    >>> from tinygrad_helix.optim import ConstantSchedule
    >>> ConstantSchedule(0.5)(1000)
    0.5
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        number("ConstantSchedule", "factor", self.factor, 0, math.inf)

    def __call__(self, t: int) -> float:
        return self.factor


@dataclass(frozen=True)
class LinearSchedule:
    """factor(t) = start·(1 - u) + end·u          u = min(t, steps)/steps

    Warm-up: `LinearSchedule(0.0, 1.0, steps)`. It stays at `end`.

    >>> from tinygrad_helix.optim import LinearSchedule
    >>> [LinearSchedule(0.0, 1.0, 4)(t) for t in range(6)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            number("LinearSchedule", name, getattr(self, name), 0, math.inf)
        _count("LinearSchedule", "steps", self.steps)

    def __call__(self, t: int) -> float:
        part = min(t, self.steps) / self.steps
        return self.start * (1 - part) + self.end * part


@dataclass(frozen=True)
class CosineDecay:
    """factor(t) = end + (1 - end)·(1 + cos(π·min(t, steps)/steps))/2

    From 1 down to `end`, where it stays.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017,
    without the restarts.

    >>> from tinygrad_helix.optim import CosineDecay
    >>> [round(CosineDecay(4, end=0.1)(t), 3) for t in range(6)]
    [1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _count("CosineDecay", "steps", self.steps)
        number("CosineDecay", "end", self.end, 0, math.inf)

    def __call__(self, t: int) -> float:
        wave = (1 + math.cos(math.pi * min(t, self.steps) / self.steps)) / 2
        return self.end + (1 - self.end) * wave


@dataclass(frozen=True)
class StepDecay:
    """factor(t) = gamma ^ ⌊t/every⌋

    >>> from tinygrad_helix.optim import StepDecay
    >>> [StepDecay(2, gamma=0.5)(t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        _count("StepDecay", "every", self.every)
        number("StepDecay", "gamma", self.gamma, 0, math.inf)

    def __call__(self, t: int) -> float:
        return self.gamma ** (t // self.every)


@dataclass(frozen=True)
class JoinedSchedules:
    """factor(t) = schedules[i](t - boundaries[i - 1]), i = how many boundaries are ≤ t

    Each schedule counts from its own beginning: there is one boundary fewer than
    schedules, and they rise.

    >>> from tinygrad_helix.optim import CosineDecay, JoinedSchedules, LinearSchedule
    >>> warm_up = LinearSchedule(0.0, 1.0, 2)
    >>> schedule = JoinedSchedules([warm_up, CosineDecay(4)], [3])
    >>> [round(schedule(t), 3) for t in range(8)]
    [0.0, 0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """

    schedules: Sequence[Schedule]
    boundaries: Sequence[int]

    def __post_init__(self) -> None:
        for name in ("schedules", "boundaries"):
            if not isinstance(given := getattr(self, name), Sequence):
                raise DTypeError(
                    f"JoinedSchedules takes a list as {name}; got {type(given).__name__}."
                )
        for schedule in self.schedules:
            _callable("JoinedSchedules", schedule)
        for boundary in self.boundaries:
            _count("JoinedSchedules", "boundaries", boundary)
        if len(self.boundaries) != len(self.schedules) - 1:
            raise ShapeError(
                f"JoinedSchedules got {len(self.schedules)} schedules and "
                f"{len(self.boundaries)} boundaries. Give one boundary between each two."
            )
        if any(a >= b for a, b in pairwise(self.boundaries)):
            raise HelixError(
                f"JoinedSchedules got boundaries={list(self.boundaries)}. They must rise."
            )

    def __call__(self, t: int) -> float:
        i = bisect_right(self.boundaries, t)
        return self.schedules[i](t - (self.boundaries[i - 1] if i else 0))


class LRScheduler:
    """lr ← base lr · schedule(t) for every group, t = the calls of `step` so far

    The base of a group is the lr that it has when the scheduler is made, which applies
    schedule(0) at once. Call `step` after `optimizer.step()`. From then on lr is the
    scheduler's: what is written into a group by hand lasts until the next call.

    `schedule` is a function of an int that gives a finite number ≥ 0, or else HelixError
    is raised and neither t nor a group has changed.

    >>> import tinygrad_helix as th
    >>> p = th.tensor([1.0], requires_grad=True)
    >>> optimizer = th.optim.SGD([p], lr=0.5)
    >>> scheduler = th.optim.LRScheduler(optimizer, th.optim.LinearSchedule(0.0, 1.0, 2))
    >>> for _ in range(3):
    ...     print(optimizer.param_groups[0]["lr"])
    ...     p.grad = th.ones(1)
    ...     optimizer.step()
    ...     scheduler.step()
    0.0
    0.25
    0.5
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError(
                f"LRScheduler takes an Optimizer; got {type(optimizer).__name__}."
            )
        _callable("LRScheduler", schedule)
        self.optimizer = optimizer
        self.schedule = schedule
        self._set(0, [float(group["lr"]) for group in optimizer.param_groups])

    def _set(self, t: int, base_lrs: list[float]) -> None:
        factor = self.schedule(t)
        number(f"LRScheduler at step {t}", "the schedule's factor", factor, 0, math.inf)
        groups = len(self.optimizer.param_groups)
        if len(base_lrs) != groups:
            raise ShapeError(
                f"LRScheduler was made for {len(base_lrs)} groups, and its optimizer has "
                f"{groups} now. Make a new one after add_param_group()."
            )
        for group, lr in zip(self.optimizer.param_groups, base_lrs, strict=True):
            group["lr"] = lr * float(factor)
        self._t, self._base_lrs = t, base_lrs

    def step(self) -> None:
        """Go on to the next step's learning rates."""
        self._set(self._t + 1, self._base_lrs)

    def state_dict(self) -> dict[str, Any]:
        """{"step": t, "base_lrs": one a group}. The schedule is not in it."""
        return {"step": self._t, "base_lrs": list(self._base_lrs)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, and set the groups' learning rates by it.

        Errors: DTypeError for what is no such state, ShapeError for another number of
        groups; then nothing has changed.
        """
        try:
            t, base_lrs = state_dict["step"], [float(lr) for lr in state_dict["base_lrs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise DTypeError(
                "LRScheduler.load_state_dict takes what state_dict() returns, a dict of "
                f"step and base_lrs; this is none ({error!r}). Nothing was loaded."
            ) from None
        if isinstance(t, bool) or not isinstance(t, int) or t < 0:
            raise DTypeError(
                f"LRScheduler.load_state_dict got step={t!r}, due an int ≥ 0. Nothing was "
                "loaded."
            )
        groups = len(self.optimizer.param_groups)
        if len(base_lrs) != groups:
            raise ShapeError(
                f"the state is of {len(base_lrs)} groups, and this optimizer has {groups}. "
                "Nothing was loaded. Load a state of the same groups."
            )
        for lr in base_lrs:
            number("LRScheduler.load_state_dict", "base_lrs", lr, 0, math.inf)
        self._set(t, base_lrs)
