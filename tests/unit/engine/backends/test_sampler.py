"""A draw is a function of the logits, the filters and one number: compared with lists, sums and sorting alone."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.engine.backend import BackendError
from kvist.engine.backends.sampler import draw
from kvist.engine.batch import Drawn, DrawSpec
from kvist.engine.request import Sampling

ALMOST_ONE = 1 - 2**-53
NEAR = 1e-9  # nobody can say on which side of a boundary a number lies that is this close to it


def drawn(logits: list[float], sampling: Sampling, uniform: float = 0.0) -> Drawn:
    (found,) = draw(torch.tensor([logits]), [DrawSpec(sampling=sampling, uniform=uniform)])
    return found


def left_over(logits: list[float], sampling: Sampling) -> list[tuple[int, float]]:
    """Tokens that the filters leave, best first, with their probabilities before the rest went."""
    return [(token, probability) for token, probability, margin in ranked(logits, sampling) if margin > 0]


def ranked(logits: list[float], sampling: Sampling) -> list[tuple[int, float, float]]:
    """The top_k tokens, best first, with their probabilities and by how much the other filters let them stay."""
    order = sorted(range(len(logits)), key=lambda token: -logits[token])
    top = order[: sampling.top_k]
    weights = [math.exp((logits[token] - logits[order[0]]) / sampling.temperature) for token in top]
    total = math.fsum(weights)
    probabilities = [weight / total for weight in weights]
    found = [(top[0], probabilities[0], 1.0)]
    for rank, token in enumerate(top[1:], start=1):
        # A filter that is off drops nothing, however small.
        room = sampling.top_p - math.fsum(probabilities[:rank]) if sampling.top_p < 1 else 1.0
        lead = probabilities[rank] - sampling.min_p * probabilities[0] if sampling.min_p > 0 else 1.0
        found.append((token, probabilities[rank], min(room, lead)))
    return found


def expected(logits: list[float], sampling: Sampling, uniform: float) -> int:
    """The token at which the running sum of probabilities passes the number."""
    assume(all(abs(margin) > NEAR for _, _, margin in ranked(logits, sampling)))
    kept = left_over(logits, sampling)
    if sampling.top_k is None and sampling.top_p == 1 and sampling.min_p == 0:
        kept.sort()  # nothing was sorted: the sum runs in the order of the vocabulary
    total = math.fsum(probability for _, probability in kept)
    passed = [total_so_far / total for total_so_far in itertools.accumulate(probability for _, probability in kept)]
    assume(all(abs(uniform - edge) > NEAR for edge in passed[:-1]))
    return next((token for (token, _), edge in zip(kept, passed, strict=True) if uniform < edge), kept[-1][0])


different = st.lists(st.integers(-300, 300).map(lambda step: step / 32), min_size=1, max_size=24, unique=True)
numbers = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, ALMOST_ONE]))
filters = st.builds(
    Sampling,
    temperature=st.one_of(st.floats(0.05, 3), st.sampled_from([1.0, 2.0, 1e4])),
    top_k=st.one_of(st.none(), st.integers(1, 30)),
    top_p=st.one_of(st.just(1.0), st.floats(1e-6, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(0, 1)),
)


@settings(max_examples=examples(400))
@given(logits=different, sampling=filters, uniform=numbers)
@example(logits=[0.0], sampling=Sampling(top_k=5, top_p=0.1, min_p=1.0), uniform=ALMOST_ONE)
@example(logits=[1.0, 2.0], sampling=Sampling(min_p=1.0), uniform=ALMOST_ONE)
def test_a_draw_inverts_what_the_filters_leave(logits: list[float], sampling: Sampling, uniform: float) -> None:
    assert drawn(logits, sampling, uniform).token == expected(logits, sampling, uniform)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=2.0), Sampling(top_k=5), Sampling(top_p=0.8), Sampling(min_p=0.2)],
    ids=str,
)
def test_evenly_spread_numbers_give_tokens_in_proportion(sampling: Sampling) -> None:
    logits, count = [0.0, 2.5, 1.0, -3.0, 1.5, 0.5, 2.0, -1.0], 2000
    kept = left_over(logits, sampling)
    total = math.fsum(probability for _, probability in kept)
    rows = torch.tensor([logits]).expand(count, -1)
    specs = [DrawSpec(sampling=sampling, uniform=(index + 0.5) / count) for index in range(count)]
    counted = Counter(found.token for found in draw(rows, specs))
    assert set(counted) <= {token for token, _ in kept}
    for token, probability in kept:
        assert abs(counted[token] - count * probability / total) <= 1, token


@pytest.mark.parametrize("temperature", [0.0, 5e-324, 1e-308, 1e-30, 1e-3])
@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
def test_the_colder_the_surer(temperature: float, uniform: float) -> None:
    for rest in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.5}):
        assert drawn([1.0, 9.0, 3.0, -1e30], Sampling(temperature=temperature, **rest), uniform).token == 1


def test_the_hottest_is_even_and_still_draws_nothing_impossible() -> None:
    logits = [5.0, -math.inf, 0.0, -40.0, -math.inf]
    for temperature in (1e30, 1.7e308):
        sampling = Sampling(temperature=temperature)
        found = [drawn(logits, sampling, uniform).token for uniform in (0.0, 0.3, 0.34, 0.66, 0.67, ALMOST_ONE)]
        assert found == [0, 0, 2, 2, 3, 3]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=2.0), Sampling(top_k=4), Sampling(top_p=1e-9)])
def test_what_is_impossible_is_never_drawn(sampling: Sampling) -> None:
    for logits in ([-math.inf, 0.0, -math.inf], [-math.inf] * 5 + [-1e38], [3e38, -math.inf]):
        allowed = {token for token, logit in enumerate(logits) if logit > -math.inf}
        for uniform in (0.0, 0.5, ALMOST_ONE):
            assert drawn(logits, sampling, uniform).token in allowed


def test_the_first_of_equals_is_the_most_likely() -> None:
    for size in (1, 2, 300, 5000):
        assert drawn([1.0] * size, Sampling(temperature=0)).token == 0
        assert drawn([*[0.0] * (size - 1), 1.0, 1.0, 1.0], Sampling(temperature=0)).token == size - 1


def test_of_equals_each_is_drawn_and_none_twice_as_often() -> None:
    for sampling in (Sampling(), Sampling(top_k=4), Sampling(top_p=0.999), Sampling(min_p=0.5)):
        found = {drawn([2.0] * 4, sampling, (index + 0.5) / 4).token for index in range(4)}
        assert found == {0, 1, 2, 3}, sampling


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        # Halves, quarters and what is half of the best are exact: the set that reaches top_p exactly is enough,
        # and what is as likely as min_p asks stays.
        (Sampling(top_p=0.5), 2),
        (Sampling(top_p=0.500001), 3),
        (Sampling(top_p=0.25), 1),
        (Sampling(min_p=1.0), 4),
        (Sampling(top_k=2, top_p=0.5), 1),
    ],
    ids=str,
)
def test_bounds_that_are_met_exactly(sampling: Sampling, left: int) -> None:
    assert len({drawn([1.0] * 4, sampling, (index + 0.5) / 12).token for index in range(12)}) == left


def test_a_row_is_drawn_as_if_it_were_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 500, generator=generator).mul(3)
    kinds = [Sampling(temperature=0), Sampling(), Sampling(top_k=3, logprobs=2), Sampling(top_p=0.5, min_p=0.01)]
    specs = [DrawSpec(sampling=kinds[row % 4], uniform=(row + 0.5) / 12) for row in range(12)]
    alone = [draw(logits[row : row + 1], [spec])[0] for row, spec in enumerate(specs)]
    assert draw(logits, specs) == alone


def test_nothing_asked_nothing_drawn() -> None:
    assert draw(torch.zeros(0, 7), []) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_smallest_vocabulary_of_any_dtype(dtype: torch.dtype) -> None:
    for sampling in (Sampling(temperature=0), Sampling(), Sampling(top_k=9, top_p=0.1, min_p=1.0, logprobs=20)):
        (found,) = draw(torch.tensor([[-3.0]], dtype=dtype), [DrawSpec(sampling=sampling, uniform=ALMOST_ONE)])
        assert found.token == 0
        assert found.logprob in {None, 0.0}
        assert found.top in {(), ((0, 0.0),)}


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("where", [0, 3, 6])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(), Sampling(top_k=1)], ids=str)
def test_what_is_no_number_is_no_answer(bad: float, where: int, sampling: Sampling) -> None:
    logits = torch.zeros(2, 7)
    logits[1, where] = bad
    with pytest.raises(BackendError, match="not numbers"):
        draw(logits, [DrawSpec(sampling=sampling, uniform=0.5)] * 2)


def test_nothing_possible_is_no_answer() -> None:
    with pytest.raises(BackendError, match="not numbers"):
        drawn([-math.inf] * 4, Sampling())


@settings(max_examples=examples(100))
@given(logits=different, wanted=st.integers(0, 30), temperature=st.sampled_from([0.0, 0.3, 1.0, 5.0]))
def test_log_probabilities_are_those_before_temperature_and_filters(
    logits: list[float], wanted: int, temperature: float
) -> None:
    found = drawn(logits, Sampling(temperature=temperature, top_k=2, logprobs=wanted), 0.7)
    best = max(logits)
    total = best + math.log(math.fsum(math.exp(logit - best) for logit in logits))
    assert found.logprob == pytest.approx(logits[found.token] - total, abs=1e-5)
    order = sorted(range(len(logits)), key=lambda token: -logits[token])[:wanted]
    assert [token for token, _ in found.top] == order
    assert [logprob for _, logprob in found.top] == pytest.approx([logits[token] - total for token in order], abs=1e-5)


def test_log_probabilities_come_only_when_asked_for() -> None:
    bare = drawn([1.0, 2.0], Sampling())
    assert bare == Drawn(token=bare.token)
    none = drawn([0.0, 9.0], Sampling(temperature=0, logprobs=0))
    assert none.top == ()
    assert none.logprob == pytest.approx(-math.log1p(math.exp(-9)), abs=1e-6)


def test_an_impossible_token_has_a_log_probability_of_minus_infinity() -> None:
    found = drawn([0.0, -math.inf], Sampling(temperature=0, logprobs=2))
    assert found.top == ((0, 0.0), (1, -math.inf))
