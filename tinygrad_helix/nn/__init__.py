"""Modules: weights with names, layers, the HELIX block and a language model of it."""

from .layers import Embedding, Linear, RMSNorm
from .module import Module, Parameter

__all__ = ["Embedding", "Linear", "Module", "Parameter", "RMSNorm"]
