"""What tests measure is shown at the end of the run, under the names of the tests that measured it."""

from collections.abc import Callable

import pytest

Measured = Callable[[str], None]

_LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """Notes a line for the end of the run."""
    lines = request.config.stash.setdefault(_LINES, [])
    return lambda line: lines.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes the lines, if there are any."""
    if lines := config.stash.get(_LINES, []):
        terminalreporter.section("measured by tests")
        for line in lines:
            terminalreporter.write_line(line)
