"""Two `kvist serve` processes and one Redis: what one has computed the other finds, if and only if it may.

The tiny model computes faster than any tier is expected to answer, so the servers are told to load whatever is there.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from real.redis import RedisProcess
from real.server import RealServer
from tiny_directory import write_tiny_directory

pytestmark = pytest.mark.slow

PROMPT = list(range(3, 203))
CACHED = 192
FLAGS = ("--dtype", "float32", "--kv-memory", "8MiB", "--step-tokens", "128", "--sequences-max", "8", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", "gemma3")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path_factory.mktemp("redis")) as process:
        yield process


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secret") / "secret"


def flags(folder: Path, redis: RedisProcess, secret: Path, *more: str) -> tuple[str, ...]:
    """What all servers here are told, so that one thing at a time can differ."""
    pool = (
        "--tier",
        f"pool=redis://127.0.0.1:{redis.port}",
        "--cache-secret-file",
        str(secret),
        "--load-when",
        "always",
    )
    return ("--model", str(folder), *FLAGS, *pool, *more)


def stores_done(metrics: dict[str, float]) -> bool:
    return metrics["kvist_stores_running"] == 0 and metrics['kvist_tier_blocks_total{event="stored",tier="pool"}'] > 0


@pytest.fixture(scope="module")
def answer(folder: Path, redis: RedisProcess, secret: Path) -> str:
    """What the first server answers, cold, before it ends; its blocks are in the pool from then on."""
    with RealServer(*flags(folder, redis, secret)) as first:
        cold = first.complete(PROMPT, max_tokens=12)
        assert cached(cold) == 0
        first.metrics_when(stores_done)
    return cold["choices"][0]["text"]


def cached(answer: dict[str, object]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_the_second_process_starts_warm_and_answers_the_same(
    folder: Path, redis: RedisProcess, secret: Path, answer: str
) -> None:
    with RealServer(*flags(folder, redis, secret)) as second:
        warm = second.complete(PROMPT, max_tokens=12)
        assert (cached(warm), warm["choices"][0]["text"]) == (CACHED, answer)
        assert second.metrics()['kvist_tokens_cached_total{tier="pool"}'] == CACHED
        # A tenant of its own finds nothing, and neither does who asks for nothing of the kind.
        assert cached(second.complete(PROMPT, max_tokens=1, cache_salt="somebody else")) == 0


def check_it_finds_nothing(*all_flags: str) -> None:
    with RealServer(*all_flags) as other:
        assert cached(other.complete(PROMPT, max_tokens=1)) == 0
        metrics = other.metrics()
        assert metrics['kvist_tier_blocks_total{event="hit",tier="pool"}'] == 0
        assert metrics['kvist_tier_blocks_total{event="queried",tier="pool"}'] > 0, "it did not even ask"


def test_other_weights_find_nothing(
    tmp_path: Path, folder: Path, redis: RedisProcess, secret: Path, answer: str
) -> None:
    other = tmp_path / folder.name
    write_tiny_directory(other, "gemma3")
    weights = other / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # the last number of some tensor, in the least way
    weights.write_bytes(content)
    check_it_finds_nothing(*flags(other, redis, secret))


def test_another_dtype_finds_nothing(folder: Path, redis: RedisProcess, secret: Path, answer: str) -> None:
    check_it_finds_nothing(*flags(folder, redis, secret, "--dtype", "bfloat16"))


def test_another_block_size_finds_nothing(folder: Path, redis: RedisProcess, secret: Path, answer: str) -> None:
    check_it_finds_nothing(*flags(folder, redis, secret, "--block-tokens", "32"))


def test_another_secret_finds_nothing(
    tmp_path: Path, folder: Path, redis: RedisProcess, secret: Path, answer: str
) -> None:
    check_it_finds_nothing(*flags(folder, redis, tmp_path / "other"))


def test_the_same_weights_elsewhere_are_the_same_model(
    tmp_path: Path, folder: Path, redis: RedisProcess, secret: Path, answer: str
) -> None:
    same = write_tiny_directory(tmp_path / "another name", "gemma3", dtype=torch.float32)
    with RealServer(*flags(same, redis, secret)) as other:
        assert cached(other.complete(PROMPT, max_tokens=1)) == CACHED
