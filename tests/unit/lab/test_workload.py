import statistics
from itertools import combinations, pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.lab.draw import Span
from kvist.lab.workload import (
    PlannedRequest,
    ServeWorkload,
    plan_serve,
    prompt_pair,
    shared_tokens,
    tokens_reusable,
)


@st.composite
def spans(draw: st.DrawFn, most: int) -> Span:
    low, high = sorted((draw(st.integers(1, most)), draw(st.integers(1, most))))
    return Span(low=low, high=high)


@st.composite
def workloads(draw: st.DrawFn) -> ServeWorkload:
    requests = draw(st.integers(1, 8))
    low = draw(st.integers(0, 1000))
    return ServeWorkload(
        requests=requests,
        prompt_tokens=draw(spans(60)),
        output_tokens=draw(spans(20)),
        shared_prefix_ratio=draw(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0])),
        token_ids=Span(low=low, high=low + draw(st.integers(2 * requests, 40)) - 1),
        seed=draw(st.integers(0, 2**63)),
        rate_per_s=draw(st.none() | st.floats(0.01, 1000)),
    )


def workload(**changes: object) -> ServeWorkload:
    settings = {
        "requests": 20,
        "prompt_tokens": Span(low=100, high=100),
        "output_tokens": Span(low=7, high=7),
        "shared_prefix_ratio": 0.5,
        "token_ids": Span(low=1000, high=20000),
        "seed": 0,
    }
    return ServeWorkload(**(settings | changes))


def leading_tokens_in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def reusable_by_comparing(plan: tuple[PlannedRequest, ...]) -> int:
    return sum(
        max((leading_tokens_in_common(request.prompt, earlier.prompt) for earlier in plan[: request.index]), default=0)
        for request in plan
    )


@given(load=workloads())
def test_a_plan_keeps_its_lengths_and_its_token_ids(load: ServeWorkload) -> None:
    plan = plan_serve(load)
    assert [request.index for request in plan] == list(range(load.requests))
    for request in plan:
        assert load.prompt_tokens.low <= len(request.prompt) <= load.prompt_tokens.high
        assert load.output_tokens.low <= request.output_tokens <= load.output_tokens.high
        assert request.tokens_shared == shared_tokens(load.shared_prefix_ratio, len(request.prompt))
        assert all(load.token_ids.low <= token <= load.token_ids.high for token in request.prompt)


@given(load=workloads())
def test_two_prompts_share_exactly_the_shorter_of_their_shared_parts(load: ServeWorkload) -> None:
    for one, other in combinations(plan_serve(load), 2):
        assert leading_tokens_in_common(one.prompt, other.prompt) == min(one.tokens_shared, other.tokens_shared)


@given(load=workloads())
def test_what_can_be_reused_is_what_comparing_all_prompts_finds(load: ServeWorkload) -> None:
    plan = plan_serve(load)
    assert tokens_reusable(plan) == reusable_by_comparing(plan)


@given(load=workloads())
def test_the_same_seed_gives_the_same_plan(load: ServeWorkload) -> None:
    assert plan_serve(load) == plan_serve(load)


def test_another_seed_gives_another_plan() -> None:
    one, other = plan_serve(workload()), plan_serve(workload(seed=1))
    assert leading_tokens_in_common(one[0].prompt, other[0].prompt) < 16


@given(load=workloads())
def test_arrivals_begin_at_once_and_ascend_in_an_open_loop_only(load: ServeWorkload) -> None:
    arrivals = [request.arrival_s for request in plan_serve(load)]
    if load.rate_per_s is None:
        assert set(arrivals) == {None}
    else:
        assert arrivals[0] == 0.0
        assert arrivals == sorted(arrivals)


def test_arrivals_are_a_poisson_process_of_the_rate_asked_for() -> None:
    plan = plan_serve(workload(requests=4000, rate_per_s=20.0, prompt_tokens=Span(low=1, high=1)))
    gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(plan)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(1 / 20, rel=0.1)  # exponential: as wide as its mean


@pytest.mark.parametrize(
    ("ratio", "length", "shared"), [(0.0, 9, 0), (0.5, 9, 4), (0.1, 30, 3), (0.7, 10, 7), (1.0, 9, 9)]
)
def test_the_shared_part_is_the_floor_in_exact_decimals(ratio: float, length: int, shared: int) -> None:
    assert shared_tokens(ratio, length) == shared


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"requests": 1000, "prompt_tokens": Span(low=1, high=10**6)}, "1,000,000,000 tokens"),
        ({"requests": 30, "token_ids": Span(low=0, high=58)}, "need 60"),
        ({"shared_prefix_ratio": 1.5}, "1.5"),
        ({"shared_prefix_ratio": float("nan")}, "nan"),
        ({"requests": 0}, "at least one request"),
        ({"prompt_tokens": Span(low=0, high=5)}, "one prompt token"),
        ({"output_tokens": Span(low=0, high=5)}, "one output token"),
    ],
)
def test_a_load_that_cannot_be_planned_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan_serve(workload(**changes))


def test_a_load_that_shares_everything_needs_few_token_ids() -> None:
    plan = plan_serve(workload(shared_prefix_ratio=1.0, token_ids=Span(low=3, high=4)))
    assert len({request.prompt for request in plan}) == 1


@given(
    seed=st.integers(0, 2**63),
    index=st.integers(0, 30),
    prefix=st.integers(1, 50),
    suffix=st.integers(1, 20),
    size=st.integers(2, 50),
)
def test_a_pair_shares_its_prefix_and_nothing_more(seed: int, index: int, prefix: int, suffix: int, size: int) -> None:
    pair = prompt_pair(seed, index, prefix, suffix, Span(low=5, high=4 + size))
    assert len(pair.cold) == len(pair.warm) == prefix + suffix
    assert pair.prefix_tokens == prefix == leading_tokens_in_common(pair.cold, pair.warm)
    assert all(5 <= token <= 4 + size for token in pair.cold + pair.warm)
    assert pair == prompt_pair(seed, index, prefix, suffix, Span(low=5, high=4 + size))


@given(seed=st.integers(0, 2**63), size=st.integers(2, 40))
def test_pairs_of_one_run_differ_in_their_first_token(seed: int, size: int) -> None:
    firsts = {prompt_pair(seed, index, 4, 2, Span(low=0, high=size - 1)).cold[0] for index in range(size)}
    assert len(firsts) == size


def test_one_token_id_tells_no_prompts_apart() -> None:
    with pytest.raises(ConfigError, match="at least two"):
        prompt_pair(0, 0, 4, 4, Span(low=7, high=7))
