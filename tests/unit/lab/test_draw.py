import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import ConfigError
from kvist.lab.draw import Span, fractions, integers, words

seeds = st.integers(0, 2**63)
labels = st.text(max_size=20)

GOLDEN = (3069829173, 3440655566, 3370973153, 635301337)


def test_the_numbers_are_the_same_on_every_machine() -> None:
    assert words(0, "golden", 4) == GOLDEN


@given(seed=seeds, label=labels, count=st.integers(0, 200))
def test_a_longer_list_begins_with_the_shorter(seed: int, label: str, count: int) -> None:
    assert words(seed, label, 200)[:count] == words(seed, label, count)


@given(seed=seeds, label=labels)
def test_another_seed_or_label_gives_other_numbers(seed: int, label: str) -> None:
    here = words(seed, label, 8)
    assert here == words(seed, label, 8)
    assert here != words(seed + 1, label, 8)
    assert here != words(seed, label + "x", 8)


@given(seed=seeds, low=st.integers(0, 2**31), size=st.integers(1, 2**31))
def test_integers_stay_within_their_span(seed: int, low: int, size: int) -> None:
    span = Span(low=low, high=low + size - 1)
    assert span.size == size
    assert all(span.low <= value <= span.high for value in integers(seed, "x", 50, span))


def test_every_number_of_a_span_turns_up_about_equally_often() -> None:
    drawn = integers(1, "even", 60_000, Span(low=10, high=15))
    for value in range(10, 16):
        assert 9_500 < drawn.count(value) < 10_500


@given(seed=seeds)
def test_fractions_are_strictly_between_0_and_1(seed: int) -> None:
    assert all(0 < value < 1 for value in fractions(seed, "x", 100))


@pytest.mark.parametrize(("low", "high"), [(5, 4), (-1, 3)])
def test_an_empty_or_negative_span_is_refused(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match=f"{low}:{high}"):
        Span(low=low, high=high)
