import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.spread import pairwise_ratios, percentile, percentiles, spread

samples = st.lists(st.floats(0, 1e9), min_size=1, max_size=60)


@given(values=st.lists(st.floats(0, 1e6), min_size=2, max_size=60))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (1, 25, 50, 90, 99):
        assert percentile(values, percent / 100) == pytest.approx(cuts[percent - 1], rel=1e-9, abs=1e-9)


@given(values=samples, low=st.floats(0, 1), high=st.floats(0, 1))
def test_percentiles_grow_and_stay_within_the_samples(values: list[float], low: float, high: float) -> None:
    low, high = sorted((low, high))
    assert min(values) <= percentile(values, low) <= percentile(values, high) <= max(values)


@given(value=st.floats(0, 1e9))
def test_one_sample_is_its_own_spread(value: float) -> None:
    only = spread([value])
    assert (only.count, only.median, only.q1, only.q3, only.min, only.max) == (1, value, value, value, value, value)


def test_a_spread_names_median_quartiles_and_extremes() -> None:
    found = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.count, found.min, found.q1, found.median, found.q3, found.max) == (5, 1.0, 2.0, 3.0, 4.0, 5.0)


def test_latency_percentiles_of_a_hundred_and_one_samples() -> None:
    found = percentiles([float(value) for value in range(101)])
    assert (found.count, found.mean, found.p50, found.p90, found.p99, found.max) == (101, 50.0, 50.0, 90.0, 99.0, 100.0)


@pytest.mark.parametrize("fraction", [-0.01, 1.01, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile([1.0], fraction)


def test_no_samples_have_no_spread() -> None:
    for function in (spread, percentiles):
        with pytest.raises(ValueError, match="0 samples"):
            function([])


def test_ratios_are_taken_pair_by_pair() -> None:
    assert pairwise_ratios([10.0, 30.0], [5.0, 3.0]) == (2.0, 10.0)
    with pytest.raises(ValueError, match="positive"):
        pairwise_ratios([1.0], [0.0])
    with pytest.raises(ValueError, match="zip"):
        pairwise_ratios([1.0, 2.0], [1.0])
