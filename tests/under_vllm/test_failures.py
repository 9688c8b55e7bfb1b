"""Tiers that fail, clients that go away, processes that are killed: every answer is right, and nothing is left behind.

In float32, so that an answer in a crowd can be held against one that was computed alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from under_vllm.conftest import Tokens
from under_vllm.place import TIERS, Place, late_read
from under_vllm.server import Answer, Metrics, Prompt, VllmServer, VllmSettings
from under_vllm.talk import check_near, forget, settled

NAME = "smollm2"
CROWD = 8


@pytest.fixture(scope="module")
def prompts(tokens: Tokens) -> list[Prompt]:
    return [tokens(NAME, which, 400 + 32 * which) for which in range(CROWD)]


@pytest.fixture(scope="module")
def settings(model: Callable[[str], Path], place: Place) -> Callable[..., VllmSettings]:
    def settings(*tiers: str, **more: str) -> VllmSettings:
        kvist = place.kvist(*tiers, **more)
        flags = ("--max-num-batched-tokens", "512", "--max-model-len", "1024")
        return VllmSettings(model=model(NAME), kvist=kvist, dtype="float32", kv_bytes=400 * 2**20, flags=flags)

    return settings


@pytest.fixture(scope="module")
def server(settings: Callable[..., VllmSettings]) -> Iterator[VllmServer]:
    with VllmServer(settings(*TIERS, faults="one_in = 5, seed = 3, delay_s = 0.3")) as running:
        yield running


@pytest.fixture(scope="module")
def alone(server: VllmServer, prompts: list[Prompt]) -> list[Answer]:
    return [server.ask(prompt, cache_salt="alone") for prompt in prompts]


def loads(metrics: Metrics, *outcomes: str) -> float:
    """How many loads ended so."""
    return sum(metrics.get(f'kvist_loads_total{{outcome="{outcome}"}}', 0.0) for outcome in outcomes)


def test_tiers_that_fail_all_the_time_change_no_answer(
    server: VllmServer, prompts: list[Prompt], alone: list[Answer]
) -> None:
    for _ in range(5):
        check_near(server.ask_all(prompts, cache_salt="failing"), alone)
        forget(server)
    metrics = settled(server)
    assert loads(metrics, "complete") > 0, "nothing came from a tier"
    assert loads(metrics, "failed", "late") > 0, "nothing failed"
    assert metrics["kvist_connector_detached"] == 0


def test_who_goes_away_leaves_nothing_behind(server: VllmServer, prompts: list[Prompt], alone: list[Answer]) -> None:
    server.ask_all(prompts, cache_salt="leaving")
    for hurry in (1, 4, 16):
        forget(server)
        with ThreadPoolExecutor(CROWD) as pool:
            for gone in [
                pool.submit(server.abandon, prompt, after_s=0.02 * hurry + 0.01 * turn, cache_salt="leaving")
                for turn, prompt in enumerate(prompts)
            ]:
                gone.result()
        settled(server)
    check_near(server.ask_all(prompts, cache_salt="leaving"), alone)
    metrics = settled(server)
    assert loads(metrics, "aborted") > 0, "nobody went away during a load"
    assert metrics["kvist_connector_detached"] == 0


def test_a_pool_that_hangs_or_dies_costs_no_answer(
    server: VllmServer, place: Place, prompts: list[Prompt], alone: list[Answer]
) -> None:
    for fail, repair in ((place.redis.pause, place.redis.resume), (place.redis.stop, place.redis.start)):
        forget(server)
        fail()
        check_near(server.ask_all(prompts, cache_salt="failing"), alone)
        check_near(server.ask_all(prompts, cache_salt=fail.__name__), alone)
        repair()
        forget(server)
        check_near(server.ask_all(prompts, cache_salt="failing"), alone)
    assert settled(server)["kvist_connector_detached"] == 0


def kill_while(server: VllmServer, prompts: list[Prompt], holds: Callable[[Metrics], bool]) -> None:
    """Kills a server that answers, as soon as its metrics say something."""
    with ThreadPoolExecutor(CROWD) as pool:
        asked: list[Future[Answer]] = [pool.submit(server.ask, prompt, 256) for prompt in prompts]
        try:
            server.metrics_when(holds)
        finally:
            server.kill()
    cut_off = [each for each in asked if isinstance(each.exception(), httpx.TransportError)]
    assert cut_off, "everything was answered before it was killed"


def test_killed_during_stores_and_during_loads(settings: Callable[..., VllmSettings], prompts: list[Prompt]) -> None:
    stored = 'kvist_tier_blocks_total{event="stored",tier="disk"}'
    with VllmServer(settings("disk", disk="killed")) as first:
        kill_while(first, prompts, lambda found: found.get(stored, 0.0) > 0)
    with VllmServer(settings("disk", disk="killed", faults=late_read(60.0))) as second:
        kill_while(second, prompts, lambda found: found.get("kvist_loads_running", 0.0) > 0)
    with VllmServer(settings("disk", disk="killed")) as third:
        answers = third.ask_all(prompts)
        assert sum(answer.cached_tokens for answer in answers) > 0, "nothing was left on the disk"
        check_near(answers, [third.ask(prompt, cache_salt="alone") for prompt in prompts])
        assert settled(third)["kvist_connector_detached"] == 0
