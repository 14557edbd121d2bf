"""Modules: weights with names, layers, the HELIX block and a language model of it."""

from .helix import HelixBlock, helix_block
from .layers import Embedding, Linear, RMSNorm
from .lm import HelixLM
from .module import Module, Parameter

__all__ = [
    "Embedding",
    "HelixBlock",
    "HelixLM",
    "Linear",
    "Module",
    "Parameter",
    "RMSNorm",
    "helix_block",
]
