"""Modules: weights with names, layers, the HELIX block and a language model of it."""

from .module import Module, Parameter

__all__ = ["Module", "Parameter"]
