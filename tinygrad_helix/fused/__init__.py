"""Whole blocks as one node each: what they keep (policy) and how they compute (helix)."""

from .helix import FusedAux, FusedHelix
from .policy import POLICIES, Budget, Keep

__all__ = ["POLICIES", "Budget", "FusedAux", "FusedHelix", "Keep"]
