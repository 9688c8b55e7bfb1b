"""What comes from a tier is what vLLM had computed: answers are those after a local hit of equal length, to the bit."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from under_vllm.conftest import MODELS, Tokens
from under_vllm.place import TIERS, Place
from under_vllm.server import BLOCK_TOKENS, VllmServer, VllmSettings
from under_vllm.talk import check_same, converse, forget, settled

SOURCES = {"dram": "host", "disk": "disk", "pool": "external_unspecified"}
TURNS = (600, 150, 1100, 90)
CHUNK = "512"  # so that the third turn is computed in three


@pytest.fixture(scope="module", params=[(name, tier) for name in MODELS for tier in TIERS], ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture(scope="module")
def server(case: tuple[str, str], model: Callable[[str], Path], place: Place) -> Iterator[VllmServer]:
    name, tier = case
    kvist = place.kvist(tier, disk=name)
    settings = VllmSettings(model=model(name), kvist=kvist, flags=("--max-num-batched-tokens", CHUNK))
    with VllmServer(settings) as running:
        yield running


def cached_from(server: VllmServer, source: str) -> float:
    """Prompt tokens that vLLM says came from there."""
    return server.metrics().get(f'vllm:prompt_tokens_cached_by_source_total{{source="{source}"}}', 0.0)


def test_a_conversation_is_the_same_from_a_tier(case: tuple[str, str], server: VllmServer, tokens: Tokens) -> None:
    name, tier = case
    turns = [tokens(name, which, count) for which, count in enumerate(TURNS)]
    local = converse(server, turns, salt="local")
    before = server.metrics(), cached_from(server, SOURCES[tier])
    below = converse(server, turns, salt="below", between=lambda: forget(server))
    check_same(below, local)
    loaded = sum(answer.cached_tokens for answer in below)
    assert loaded >= sum(TURNS[:1]) + sum(TURNS[:2]) + sum(TURNS[:3]) - 3 * BLOCK_TOKENS
    after = settled(server)
    name_of_hits = "vllm:external_prefix_cache_hits_total"
    assert after[name_of_hits] - before[0].get(name_of_hits, 0.0) == loaded
    assert cached_from(server, SOURCES[tier]) - before[1] == loaded
    assert after["kvist_connector_detached"] == 0


def test_the_whole_prompt_again_leaves_one_token_to_compute(
    case: tuple[str, str], server: VllmServer, tokens: Tokens
) -> None:
    prompt = tokens(case[0], 50, 20 * BLOCK_TOKENS)  # it ends where a block does
    salted = {"cache_salt": "whole"}
    server.ask(prompt, **salted)
    local = server.ask(prompt, **salted)
    forget(server)
    below = server.ask(prompt, **salted)
    assert 0 < below.cached_tokens < len(prompt)
    check_same([below], [local])


def test_loaded_blocks_are_those_that_were_stored(case: tuple[str, str], server: VllmServer, tokens: Tokens) -> None:
    prompt = tokens(case[0], 60, 1000)
    forget(server)
    server.on_worker("kv_clear")
    server.ask(prompt, 1, cache_salt="bytes")
    stored = server.on_worker("kv_digests")[0]
    forget(server)
    server.on_worker("kv_clear")
    answer = server.ask(prompt, 1, cache_salt="bytes")
    found = server.on_worker("kv_digests")[0]
    own = 1 + (len(prompt) - answer.cached_tokens) // BLOCK_TOKENS  # computed with other numbers of tokens at once
    assert answer.cached_tokens >= len(prompt) - 2 * BLOCK_TOKENS
    for layer, digests in found.items():
        was, is_now = Counter(filter(None, stored[layer])), Counter(filter(None, digests))
        assert (is_now & was).total() >= answer.cached_tokens // BLOCK_TOKENS, f"layer {layer}"
        assert (is_now - was).total() <= own * 6, f"layer {layer}"


def test_a_reset_of_everything_forgets_what_tiers_have(
    case: tuple[str, str], server: VllmServer, tokens: Tokens
) -> None:
    prompt = tokens(case[0], 70, 400)
    cold = server.ask(prompt)
    settled(server)
    server.reset(everything=True)
    again = server.ask(prompt)
    assert again.cached_tokens == 0
    check_same([again], [cold])
    forget(server)
    assert server.ask(prompt).cached_tokens > 0
