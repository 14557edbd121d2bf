"""Optimizers, clipping and learning-rate schedules.

A step writes into the parameters' own arrays, a piece of at most 2¹⁶ elements at a time,
so that its scratch stays in the cache and no temporary is of a parameter's size (unless
one row of it is longer). Every write bumps the storage's version: a tape that still wants
the old values notices.
"""

from .clip import clip_grad_norm_
from .optimizer import Optimizer
from .rules import SGD, Adam, AdamW
from .schedules import (
    ConstantSchedule,
    CosineDecay,
    JoinedSchedules,
    LinearSchedule,
    LRScheduler,
    StepDecay,
)

__all__ = [
    "SGD", "Adam", "AdamW", "ConstantSchedule", "CosineDecay", "JoinedSchedules",
    "LinearSchedule", "LRScheduler", "Optimizer", "StepDecay", "clip_grad_norm_",
]  # fmt: skip
