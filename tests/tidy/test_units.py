"""Units never mix in the planner: what is in bytes has the type of bytes, and mypy takes no tokens for them."""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from mypy import api

from kvist import planner
from kvist.base.units import Bytes, Tokens
from kvist.planner.budget import KvPlan
from kvist.planner.capacity import Capacity
from kvist.planner.plan import Plan

ROOT = Path(__file__).parents[2]

MIXED = """
from kvist.base.units import Bytes, Tokens
from kvist.planner.deployment import Deployment

def longer(asked: Deployment) -> Bytes:
    return asked.context_tokens

def take(size: Bytes) -> Tokens:
    return size

take(Tokens(7))
"""


def dataclasses_of(package: object) -> Iterator[type]:
    """Every dataclass that a module of the package defines."""
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for _, each in inspect.getmembers(module, dataclasses.is_dataclass):
            if each.__module__ == module.__name__:
                yield each


def in_bytes(name: str) -> bool:
    """Whether a name says that it is a count of bytes; of those per second, nobody counts whole ones."""
    return "bytes" in name.split("_") and not name.endswith("_per_s")


def holds(hint: object, unit: object) -> bool:
    """Whether a type is a unit's, or a tuple of it, or of it or nothing."""
    return hint is unit or any(holds(each, unit) for each in get_args(hint))


def test_whatever_is_called_bytes_has_their_type() -> None:
    fields = [(each, name, hint) for each in dataclasses_of(planner) for name, hint in get_type_hints(each).items()]
    sizes = [(each, name, hint) for each, name, hint in fields if in_bytes(name)]
    assert len(sizes) > 20
    assert [f"{each.__name__}.{name}" for each, name, hint in sizes if not holds(hint, Bytes)] == []
    assert [f"{each.__name__}.{name}" for each, name, hint in fields if not in_bytes(name) and holds(hint, Bytes)] == [
        "MemoryUse.weights",
        "MemoryUse.workspace",
        "MemoryUse.reserve",
    ]


@pytest.mark.parametrize("answer", [Plan, Capacity, KvPlan])
def test_what_an_answer_counts_in_tokens_has_their_type(answer: type) -> None:
    hints = get_type_hints(answer)
    tokens = {name: hint for name, hint in hints.items() if name.startswith("tokens") or name.endswith("_tokens")}
    assert {name for name, hint in tokens.items() if not holds(hint, Tokens)} <= {"block_tokens"}
    assert not any(holds(hint, Tokens) for name, hint in hints.items() if in_bytes(name))


def test_mypy_takes_no_tokens_for_bytes(tmp_path: Path) -> None:
    source = tmp_path / "mixed.py"
    source.write_text(MIXED, encoding="utf-8")
    said, _, status = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(source)])
    assert status == 1
    errors = [line.split(": error: ")[0].rsplit(":", 1)[-1] for line in said.splitlines() if ": error: " in line]
    assert errors == ["6", "9", "11"], said
