import asyncio
from collections.abc import Callable

import pytest

from kvist.base.errors import ConfigError
from kvist.lab.client import ServedModel
from kvist.lab.dialect import negotiate
from kvist.lab.draw import Span
from kvist.lab.failure import CallError
from kvist.lab.ttft import TtftRow, TtftSettings, check_fits, run_ttft

TINY = ServedModel(name="tiny", tokens_max=4096)


def settings(**changes: object) -> TtftSettings:
    values = {"lengths": (64, 256), "suffix_tokens": 16, "repeats": 3, "output_tokens": 2, "seed": 5}
    return TtftSettings(**(values | {"token_ids": Span(low=1000, high=20000)} | changes))


def measured(opened: Callable, wanted: TtftSettings, advance: Callable = lambda: None) -> tuple[TtftRow, ...]:
    async def go() -> tuple[TtftRow, ...]:
        async with opened() as client:
            return await run_ttft(await negotiate(client, TINY, wanted.token_ids), wanted, advance)

    return asyncio.run(go())


def test_cold_and_warm_are_measured_as_the_server_spends_its_time(opened: Callable) -> None:
    for row in measured(opened, settings()):
        cached = row.prefix_tokens if row.phase == "warm" else 0
        assert row.prompt_tokens == row.prefix_tokens + 16
        assert row.cached_tokens == cached
        assert row.ttft_s == pytest.approx(0.001 * (row.prompt_tokens - cached))
        assert row.latency_s == pytest.approx(row.ttft_s + 0.01)
        assert row.output_tokens == 2


def test_lengths_take_turns_and_warm_follows_cold(opened: Callable) -> None:
    order = [(row.repeat, row.prefix_tokens, row.phase) for row in measured(opened, settings(repeats=2))]
    phases = ("cold", "warm")
    assert order == [(repeat, length, phase) for repeat in (0, 1) for length in (64, 256) for phase in phases]


def test_a_pair_of_the_largest_length_goes_first_and_is_not_counted(opened: Callable, simulated: object) -> None:
    steps = []
    rows = measured(opened, settings(), lambda: steps.append(1))
    prompts = [body["prompt"] for body in simulated.bodies[1:]]  # the first one asked for the dialect
    assert (len(rows), len(prompts), len(steps)) == (12, 14, 14)
    assert [len(prompt) for prompt in prompts[:2]] == [272, 272]
    assert prompts[0] not in prompts[2:]


def test_every_prefix_of_a_run_is_fresh(opened: Callable, simulated: object) -> None:
    measured(opened, settings())
    cold = [tuple(body["prompt"][:16]) for body in simulated.bodies[1::2]]
    assert len(set(cold)) == len(cold) == 7


def test_a_prefix_that_is_no_whole_number_of_blocks_is_cached_in_part(opened: Callable) -> None:
    rows = measured(opened, settings(lengths=(100,), suffix_tokens=1))
    assert {row.cached_tokens for row in rows if row.phase == "warm"} == {96}


def test_a_server_that_counts_no_cached_tokens_is_told_so(opened: Callable, simulated: object) -> None:
    simulated.counts_cached = False
    with pytest.raises(CallError, match="does not say how many prompt tokens came from its cache"):
        measured(opened, settings())
    simulated.counts = False
    with pytest.raises(CallError, match="cached_tokens"):
        measured(opened, settings(seed=6))


def test_a_server_that_caches_nothing_is_told_so(opened: Callable, simulated: object) -> None:
    simulated.caches = False
    with pytest.raises(CallError, match="took 0 of 272 prompt tokens from its cache") as caught:
        measured(opened, settings())
    assert caught.value.kind == "no_hits"


def test_prompts_that_the_server_knows_are_not_cold(opened: Callable) -> None:
    measured(opened, settings())
    with pytest.raises(CallError, match="use another --seed") as caught:
        measured(opened, settings())
    assert caught.value.kind == "not_cold"
    assert len(measured(opened, settings(seed=99))) == 12


def test_a_prompt_longer_than_the_model_is_refused_before_anything_is_sent(opened: Callable, simulated: object) -> None:
    with pytest.raises(ConfigError, match=r"4,097 tokens, but 'tiny' takes at most 4,096"):
        measured(opened, settings(lengths=(4096 - 17,)))
    assert len(simulated.bodies) == 1
    check_fits(settings(lengths=(4096 - 18,)), TINY)
    check_fits(settings(lengths=(10**6,)), ServedModel(name="boundless"))


def test_more_pairs_than_first_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="--token-ids holds 6"):
        check_fits(settings(token_ids=Span(low=0, high=5)), TINY)
    check_fits(settings(token_ids=Span(low=0, high=6)), TINY)
