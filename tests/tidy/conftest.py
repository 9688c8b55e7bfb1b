"""The tracked texts of the repository, by their path from its root, for the checks to read."""

from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[[str, str], list[str]]
"""Reads one file, given its name and text, and complains."""

Hold = Callable[[Check, dict[str, str]], None]

ROOT = Path(__file__).parents[2]
HIDDEN_KEPT = {".ci", ".gitignore", ".pre-commit-config.yaml"}
BUILT = {"build", "dist", "__pycache__"}


def _is_ours(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    hidden = parts[0].startswith(".") and parts[0] not in HIDDEN_KEPT
    return not hidden and not any(part in BUILT or part.endswith(".egg-info") for part in parts)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _files() -> dict[str, str]:
    top = (path for path in sorted(ROOT.iterdir()) if _is_ours(path))
    paths = (file for path in top for file in ([path] if path.is_file() else sorted(path.rglob("*"))))
    texts = ((path, _read(path)) for path in paths if path.is_file() and _is_ours(path))
    return {path.relative_to(ROOT).as_posix(): text for path, text in texts if text is not None}


def _is_python(name: str, text: str) -> bool:
    return name.endswith(".py") or text.startswith("#!/usr/bin/env python")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def text_files() -> dict[str, str]:
    """Every text file that belongs to the repository."""
    return _files()


@pytest.fixture(scope="session")
def python_files(text_files: dict[str, str]) -> dict[str, str]:
    """Every Python file: sources, tests, scripts and benchmarks."""
    return {name: text for name, text in text_files.items() if _is_python(name, text)}


@pytest.fixture(scope="session")
def sources(python_files: dict[str, str]) -> dict[str, str]:
    """The Python files of the package itself."""
    return {name: text for name, text in python_files.items() if name.startswith("src/kvist/")}


@pytest.fixture(scope="session")
def hold() -> Hold:
    """Fails with every complaint of a check over some files, one to a line."""

    def hold(check: Check, files: dict[str, str]) -> None:
        complaints = [complaint for name, text in files.items() for complaint in check(name, text)]
        if complaints:
            pytest.fail("\n".join(complaints), pytrace=False)

    return hold
