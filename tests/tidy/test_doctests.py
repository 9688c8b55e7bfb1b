"""A docstring that can be executed, is: every example in the pure packages, and in nothing that needs a device."""

import doctest
import importlib
import pkgutil
import types

import pytest

import kvist

NOT_PURE = ("kvist.engine.backends", "kvist.server", "kvist.app", "kvist.cli", "kvist.lab")
"""These start things, or load libraries that the examples of the others must not need."""


def pure_modules() -> list[str]:
    """Names of the modules whose examples run."""
    found = pkgutil.walk_packages(kvist.__path__, "kvist.", onerror=None)
    return sorted(each.name for each in found if not each.name.startswith(NOT_PURE))


def failures(module: types.ModuleType) -> tuple[list[str], int]:
    """Runs the examples of a module; returns what went wrong and how many ran."""
    reports: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module)
    ran = sum(runner.run(test, out=reports.append).attempted for test in tests)
    return reports, ran


@pytest.mark.parametrize("name", pure_modules())
def test_the_examples_of_a_module_are_true(name: str) -> None:
    reports, _ = failures(importlib.import_module(name))
    assert not reports, "".join(reports)


def test_there_are_examples_to_run() -> None:
    assert sum(failures(importlib.import_module(name))[1] for name in pure_modules()) > 0


def module_saying(docstring: str) -> types.ModuleType:
    """A module whose only content is its docstring."""
    return types.ModuleType("said", docstring)


def test_a_false_example_is_seen() -> None:
    assert failures(module_saying(">>> 1 + 1\n2\n")) == ([], 1)
    assert len(failures(module_saying(">>> 1 + 1\n3\n"))[0]) == 1
    assert len(failures(module_saying(">>> no_such_name\n1\n"))[0]) == 1
    assert failures(module_saying("Says nothing that runs.")) == ([], 0)
