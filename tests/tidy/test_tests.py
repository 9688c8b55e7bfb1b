"""The tests keep their own rules: they mirror the sources, can fail, never wait and run what is real."""

import ast
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

PROOF = re.compile(r"^_?(?:assert|check|expect|verify|compare|raises|warns|fail|run_state_machine)")
"""Calls that can fail a test, by how their names begin."""

UNREAL = {"unittest.mock", "mock", "pytest_mock"}
SKIPS = {"skip", "skipif", "importorskip", "xfail", "skipTest"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_called(call: ast.Call) -> str:
    """The last part of what a call names."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def stray(name: str, names: set[str]) -> list[str]:
    """Complains of a unit test whose source file is not where its path says."""
    path = PurePosixPath(name)
    if not name.startswith("tests/unit/") or not path.name.startswith("test_"):
        return []
    folder = PurePosixPath("src/kvist", *path.parts[2:-1])
    source = path.name.removeprefix("test_").removesuffix(".py")
    found = f"{folder}/{source}.py" in names or (source == "init" and f"{folder}/__init__.py" in names)
    return [] if found else [f"{name}: there is no {folder}/{source}.py"]


def toothless(name: str, text: str) -> list[str]:
    """Complains of tests that assert nothing, neither themselves nor through a call that says so."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    tests = [node for node in functions if node.name.startswith("test_")]
    return [f"{name}: {test.name} can not fail" for test in tests if not any(map(proves, ast.walk(test)))]


def proves(node: ast.AST) -> bool:
    """Whether a statement or expression can fail a test on purpose."""
    if isinstance(node, ast.Call):
        return PROOF.match(name_called(node)) is not None or name_called(node) == "hold"
    return isinstance(node, ast.Assert | ast.Raise)


def waits(name: str, text: str) -> list[str]:
    """Complains of tests that sleep; giving way to other tasks with a sleep of 0 is no waiting."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    sleeps = [call for call in calls if name_called(call) == "sleep"]
    return [f"{name}:{call.lineno}: sleeps" for call in sleeps if ast.unparse(call.args[0]) != "0"]


def modules_imported(node: ast.AST) -> set[str]:
    """Modules that an import statement may bring in; none for anything else."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return set()


def unreal(name: str, text: str) -> list[str]:
    """Complains of mocks and of patched attributes: the real thing runs, or a port is passed in."""
    complaints = []
    for node in ast.walk(ast.parse(text)):
        if modules_imported(node) & UNREAL:
            complaints.append(f"{name}:{node.lineno}: imports a mock")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "monkeypatch.setattr":
            complaints.append(f"{name}:{node.lineno}: patches an attribute")
    return complaints


def skipped(name: str, text: str) -> list[str]:
    """Complains of tests that may not run, whatever the reason; scripts/check chooses by markers instead."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    return [f"{name}:{node.lineno}: {node.attr}" for node in nodes if node.attr in SKIPS]


@pytest.fixture
def suite(python_files: dict[str, str]) -> dict[str, str]:
    """The files of the test suite."""
    return {name: text for name, text in python_files.items() if name.startswith("tests/")}


def test_unit_tests_mirror_the_sources(suite: dict[str, str], sources: dict[str, str], hold: Callable) -> None:
    hold(lambda name, _: stray(name, set(sources)), suite)


def test_every_test_can_fail(suite: dict[str, str], hold: Callable) -> None:
    hold(toothless, suite)


def test_no_test_waits(suite: dict[str, str], hold: Callable) -> None:
    hold(waits, suite)


def test_no_test_replaces_the_real_thing(suite: dict[str, str], hold: Callable) -> None:
    hold(unreal, suite)


def test_no_test_is_skipped(suite: dict[str, str], hold: Callable) -> None:
    hold(skipped, suite)


def test_a_unit_test_without_its_source_is_seen() -> None:
    names = {"src/kvist/base/units.py", "src/kvist/__init__.py"}
    assert stray("tests/unit/base/test_units.py", names) == []
    assert stray("tests/unit/test_init.py", names) == []
    assert stray("tests/unit/base/conftest.py", names) == []
    assert stray("tests/property/test_pool.py", names) == []
    assert len(stray("tests/unit/test_units.py", names)) == 1
    assert len(stray("tests/unit/base/test_unit.py", names)) == 1


def test_a_test_that_can_not_fail_is_seen() -> None:
    assert len(toothless("t.py", "def test_a(): f()")) == 1
    assert len(toothless("t.py", "class TestA:\n    async def test_a(self): await f()")) == 1
    for body in ("assert f()", "pool.check()", "check_all(x)", "raise AssertionError", "hold(a, b)"):
        assert toothless("t.py", f"def test_a(): {body}") == [], body
    assert toothless("t.py", "def test_a():\n    with pytest.raises(E): f()") == []
    assert toothless("t.py", "def helper(): f()") == []


def test_a_test_that_waits_is_seen() -> None:
    assert len(waits("t.py", "time.sleep(0.1)\nawait asyncio.sleep(delay)\nsleep(1)")) == 3
    assert waits("t.py", "await asyncio.sleep(0)") == []


def test_a_mock_and_a_patch_are_seen() -> None:
    for wrong in ("from unittest import mock", "import unittest.mock", "from unittest.mock import Mock"):
        assert len(unreal("t.py", wrong)) == 1, wrong
    assert len(unreal("t.py", "monkeypatch.setattr(kvist, 'x', 1)")) == 1
    assert unreal("t.py", "monkeypatch.setenv('HOME', 'x')\nfrom unittest import TestCase") == []


def test_a_skip_is_seen() -> None:
    for wrong in (
        "pytest.skip('no')",
        "@pytest.mark.skipif(x)\ndef f(): ...",
        "pytest.importorskip('torch')",
    ):
        assert len(skipped("t.py", wrong)) == 1, wrong
    assert skipped("t.py", "@pytest.mark.slow\ndef f(): ...") == []
