"""Optimizers and clipping: SGD, AdamW, `clip_grad_norm_`.

A step writes into the parameters' own arrays, a piece of at most 2¹⁶ elements at a time,
so that its one scratch array stays in the cache and no temporary is of a parameter's size
(unless one row of it is longer). Every write bumps the storage's version: a tape that
still wants the old values notices.
"""

from .clip import clip_grad_norm_
from .optimizer import Optimizer
from .rules import SGD, AdamW

__all__ = ["SGD", "AdamW", "Optimizer", "clip_grad_norm_"]
