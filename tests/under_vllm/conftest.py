"""Models, prompts and places that the tests of a real vLLM share; what they measure is shown at the end of the run."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from kvist.app.locate import locate
from kvist.lab.document import inventory
from measured import measured, pytest_terminal_summary
from real import prompts
from real.redis import RedisProcess
from under_vllm.place import Place

Tokens = Callable[[str, int, int], list[int]]

__all__ = ["measured", "pytest_terminal_summary"]

MODELS = ("smollm2", "gemma3-270m")


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """Where a fetched model is."""
    return cache(lambda name: locate(name).directory)


@pytest.fixture(scope="session")
def tokens(model: Callable[[str], Path]) -> Tokens:
    """So many tokens of a text, the text chosen by a number; those of two numbers differ from the first token on."""

    @cache
    def tokenizer(name: str) -> Tokenizer:
        return Tokenizer.from_file(str(model(name) / "tokenizer.json"))

    def tokens(name: str, which: int, count: int) -> list[int]:
        text = f"{which}. {prompts.PROSE}\n{inventory(10 + count // 12, which)}"
        found = tokenizer(name).encode(text, add_special_tokens=False).ids
        assert len(found) >= count
        return found[:count]

    return tokens


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A pool of this module's own."""
    with RedisProcess(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, redis: RedisProcess) -> Place:
    """Where this module's tiers keep what they have."""
    return Place(tmp_path_factory.mktemp("place"), redis)
