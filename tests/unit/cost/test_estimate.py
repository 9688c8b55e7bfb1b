import math

import pytest

from kvist.cost.estimate import RANGE, Estimate, estimate_of


def taught(estimate: Estimate, amounts: tuple[float, ...], *seconds: float) -> Estimate:
    for each in seconds:
        estimate = estimate.learned(amounts, each)
    return estimate


def test_a_prediction_is_the_sum_of_costs() -> None:
    assert estimate_of((0.5, 2.0)).predict_s((1.0, 3.0)) == 6.5


def test_the_first_timing_moves_it_most_of_the_way() -> None:
    assert taught(estimate_of((1.0,)), (1.0,), 2.0).predict_s((1.0,)) == pytest.approx(2.0, rel=0.05)


def test_later_ones_are_averaged() -> None:
    steady = taught(estimate_of((1.0,)), (1.0,), *[1.0] * 100)
    assert 1.0 < taught(steady, (1.0,), 1.3).predict_s((1.0,)) < 1.05


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_a_timing_that_cannot_be_changes_nothing(wrong: float) -> None:
    estimate = estimate_of((1.0, 1.0))
    assert estimate.learned((1.0, 1.0), wrong) is estimate


@pytest.mark.parametrize("amounts", [(0.0, 0.0), (math.nan, 1.0), (math.inf, 1.0)])
def test_amounts_that_cannot_be_change_nothing(amounts: tuple[float, float]) -> None:
    estimate = estimate_of((1.0, 1.0))
    assert estimate.learned(amounts, 1.0) is estimate


def test_one_stall_moves_it_by_a_bounded_factor_and_the_next_timings_undo_that() -> None:
    steady = taught(estimate_of((1.0,)), (1.0,), *[1.0] * 20)
    stalled = taught(steady, (1.0,), 10_000.0)
    assert 1.0 < stalled.predict_s((1.0,)) < 1.2
    assert taught(stalled, (1.0,), *[1.0] * 20).predict_s((1.0,)) == pytest.approx(1.0, rel=0.05)
    assert taught(estimate_of((1.0,)), (1.0,), 10_000.0).predict_s((1.0,)) <= 4.0, "the very first one neither"


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_the_third_surprise_in_a_row_is_believed(factor: float) -> None:
    steady = taught(estimate_of((1.0,)), (1.0,), *[1.0] * 20)
    two = taught(steady, (1.0,), factor, factor)
    assert abs(math.log(two.predict_s((1.0,)))) < math.log(1.5)
    assert taught(two, (1.0,), factor).predict_s((1.0,)) == pytest.approx(factor, rel=0.25)


def test_surprises_in_both_directions_or_with_others_in_between_are_no_change() -> None:
    steady = taught(estimate_of((1.0,)), (1.0,), *[1.0] * 20)
    mixed = taught(steady, (1.0,), *[100.0, 100.0, 1.0] * 10)
    assert mixed.predict_s((1.0,)) < 4.0
    assert taught(steady, (1.0,), *[100.0, 100.0, 0.01] * 10).predict_s((1.0,)) < 4.0


def test_three_surprises_are_believed_only_as_far_as_they_agree() -> None:
    steady = taught(estimate_of((1.0,)), (1.0,), *[1.0] * 20)
    assert taught(steady, (1.0,), 10_000.0, 3.0, 10_000.0).predict_s((1.0,)) < 4.0


def test_costs_stay_within_their_range() -> None:
    assert taught(estimate_of((1.0,)), (1.0,), *[1e-300] * 50).costs == (1 / RANGE,)
    assert taught(estimate_of((1.0,)), (1.0,), *[1e300] * 50).costs == (RANGE,)


def test_what_no_timing_tells_of_stays_where_it_is() -> None:
    estimate = taught(estimate_of((1.0, 1.0)), (1.0, 0.0), *[2.0] * 5000)
    assert estimate.costs[1] == pytest.approx(1.0)
    assert estimate.samples == 5000


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_is_above_zero(wrong: float) -> None:
    with pytest.raises(AssertionError, match="no costs"):
        estimate_of((1.0, wrong))
