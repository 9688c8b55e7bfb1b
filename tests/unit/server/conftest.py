"""Engines that follow a script, closed after each test."""

from collections.abc import Callable, Iterator

import pytest

from fakes.engine import LIMITS, Program, Script, ScriptedEngine
from kvist.engine.messages import EngineLimits

Start = Callable[..., ScriptedEngine]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an engine with a program and limits."""
    engines: list[ScriptedEngine] = []

    def start(program: Program | Script = Script(), limits: EngineLimits = LIMITS) -> ScriptedEngine:  # noqa: B008  # frozen
        engines.append(ScriptedEngine(program, limits))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
