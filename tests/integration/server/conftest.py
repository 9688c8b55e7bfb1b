"""Servers on loopback sockets, ended after each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fakes.engine import LIMITS, Program, Script
from fakes.served import Served, echo_program
from kvist.engine.messages import EngineLimits

Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a program; the default one says each prompt again."""
    with ExitStack() as running:

        def serve(program: Program | Script = echo_program, limits: EngineLimits = LIMITS) -> Served:
            return running.enter_context(Served(program, limits))

        yield serve
