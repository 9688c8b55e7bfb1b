"""The examples in the docstrings of the package are true."""

import doctest
import importlib
import pkgutil

import pytest

from kvist import lab

MODULES = sorted(each.name for each in pkgutil.iter_modules(lab.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"kvist.lab.{name}")).failed == 0


def test_there_are_examples() -> None:
    modules = [importlib.import_module(f"kvist.lab.{name}") for name in MODULES]
    assert sum(doctest.testmod(module).attempted for module in modules) >= 8
