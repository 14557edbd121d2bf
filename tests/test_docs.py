"""The examples in docstrings run, and everything that is exported says what it does."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import tinygrad_helix as th

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(th.__path__, f"{th.__name__}.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", [th.__name__, *MODULES])
def test_examples_run(name):
    module = importlib.import_module(name)
    # Names of their own: an example brings what it uses.
    result = doctest.testmod(module, globs={"__name__": "example"})
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_and_what_they_export_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for exported in getattr(module, "__all__", []):
        value = getattr(module, exported)
        if inspect.isroutine(value) or inspect.isclass(value):
            assert value.__doc__, f"{name}.{exported}"


def test_there_are_examples_at_all():
    finder = doctest.DocTestFinder()
    examples = [
        test
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(examples) >= 10
