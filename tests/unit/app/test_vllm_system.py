"""Processes of one container name it alike; and what Kvist says inside an engine is seen where the engine's own is."""

import io
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvist.app.vllm_system import running_system, speak_as


def test_another_process_names_the_same_system() -> None:
    program = "from kvist.app.vllm_system import running_system; import sys; sys.stdout.write(running_system())"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout == running_system() != ""


@pytest.fixture
def ours() -> Iterator[logging.Logger]:
    """Kvist's logger, as it was again in the end."""
    logger = logging.getLogger("kvist")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers, logger.level, logger.propagate = before


def engine_logger(stream: io.StringIO) -> logging.Logger:
    logger = logging.Logger("engine", logging.INFO)
    logger.addHandler(logging.StreamHandler(stream))
    logger.propagate = False
    return logger


def test_what_is_said_appears_once_and_as_the_engines(ours: logging.Logger) -> None:
    stream = io.StringIO()
    for _ in range(2):
        speak_as(engine_logger(stream))
    logging.getLogger("kvist.app.somewhere").info("tiers are open")
    logging.getLogger("kvist.app.somewhere").debug("details")
    assert stream.getvalue() == "tiers are open\n"
    assert not ours.propagate


def test_what_is_configured_already_stays(ours: logging.Logger) -> None:
    own, theirs = io.StringIO(), io.StringIO()
    ours.addHandler(logging.StreamHandler(own))
    speak_as(engine_logger(theirs))
    logging.getLogger("kvist").warning("something")
    assert (own.getvalue(), theirs.getvalue()) == ("something\n", "")


def test_an_engine_that_says_nothing_is_not_copied(ours: logging.Logger) -> None:
    level = ours.level
    speak_as(logging.Logger("silent", logging.CRITICAL))
    assert ours.level == level
