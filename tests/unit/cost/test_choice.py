import math
from dataclasses import replace

import pytest

from kvist.cost.choice import FLOOR_S, Exploration, Prospect, choose, choose_longest, patience_s

RECOMPUTE = Prospect(tokens=0, load_s=0.0, prefill_s=1.0)
LOAD = Prospect(tokens=4080, load_s=0.1, prefill_s=0.01, hopeful_load_s=0.1)
SLOW = replace(LOAD, load_s=10.0, unlearned_for_s=60.0)
SAVED = Exploration(saved_s=1.0, counted_at_s=0.0)


def test_the_least_total_is_taken() -> None:
    part = Prospect(tokens=2048, load_s=0.02, prefill_s=0.4)
    assert choose([RECOMPUTE, part, LOAD], Exploration(), now_s=0.0).index == 2
    assert choose([RECOMPUTE, part, replace(LOAD, load_s=0.5)], Exploration(), now_s=0.0).index == 1
    assert choose([RECOMPUTE, replace(part, load_s=0.7)], Exploration(), now_s=0.0).index == 0


def test_on_a_tie_nothing_is_loaded() -> None:
    assert choose([RECOMPUTE, replace(LOAD, load_s=0.75, prefill_s=0.25)], Exploration(), now_s=0.0).index == 0


def test_with_nothing_to_load_it_says_so() -> None:
    choice = choose([RECOMPUTE], SAVED, now_s=0.0)
    assert (choice.index, choice.patience_s, choice.explored) == (0, 0.0, False)
    assert "nothing to load" in choice.reason


def test_reasons_have_figures() -> None:
    assert choose([RECOMPUTE, LOAD], Exploration(), now_s=0.0).reason == (
        "loading takes 100.0 ms and leaves 10.0 ms to compute; without it, computing takes 1.00 s"
    )
    assert choose([RECOMPUTE, SLOW], Exploration(), now_s=0.0).reason == (
        "computing the rest takes 1.00 s; the best load takes 10.00 s and leaves 10.0 ms to compute"
    )
    explored = choose([RECOMPUTE, SLOW], SAVED, now_s=0.0).reason
    assert "not timed for 60.00 s" in explored
    assert "predicted to take 10.00 s" in explored
    assert "not timed yet" in choose([RECOMPUTE, replace(SLOW, unlearned_for_s=math.inf)], SAVED, now_s=0.0).reason


@pytest.mark.parametrize(
    ("load_s", "saved_s", "expected_s"),
    [
        (0.001, 0.1, FLOOR_S),  # noise of a busy machine
        (0.1, 10.0, 2.5),  # a quarter of what is at stake
        (0.1, 1.0, 0.4),  # four times the prediction
        (0.9, 1.0, 1.0 + FLOOR_S),  # no longer than it would save
        (5.0, 1.0, 1.0 + FLOOR_S),
        (0.0, 1.0, 0.0),  # nothing is loaded
    ],
)
def test_a_load_is_waited_for_as_long_as_it_is_worth(load_s: float, saved_s: float, expected_s: float) -> None:
    prospect = Prospect(tokens=1, load_s=load_s, prefill_s=2.0)
    recompute = Prospect(tokens=0, load_s=0.0, prefill_s=2.0 + saved_s)
    assert patience_s(prospect, recompute) == pytest.approx(expected_s)


def test_a_tier_that_looks_too_slow_is_tried_out_of_what_was_saved() -> None:
    choice = choose([RECOMPUTE, SLOW], SAVED, now_s=0.0)
    assert (choice.index, choice.explored) == (1, True)
    assert choice.patience_s == pytest.approx(FLOOR_S + 2 * 0.1)
    assert choice.exploration.saved_s == pytest.approx(1.0 - choice.patience_s)


@pytest.mark.parametrize(
    "prospect",
    [
        replace(SLOW, unlearned_for_s=9.9),  # timed a moment ago
        replace(SLOW, hopeful_load_s=0.99),  # would not be better at its best
        replace(SLOW, hopeful_load_s=0.5),  # more than was saved up
    ],
)
def test_otherwise_it_is_not_tried(prospect: Prospect) -> None:
    choice = choose([RECOMPUTE, prospect], SAVED, now_s=0.0)
    assert (choice.index, choice.explored, choice.exploration.saved_s) == (0, False, 1.0)


def test_a_slow_tier_is_tried_although_another_one_can_be_loaded_from() -> None:
    pool = Prospect(tokens=4080, load_s=0.5, prefill_s=0.01, hopeful_load_s=0.5)
    choice = choose([RECOMPUTE, pool, SLOW], SAVED, now_s=0.0)
    assert (choice.index, choice.explored) == (2, True)
    assert choice.exploration.saved_s == pytest.approx(1.0 - (FLOOR_S + 0.2 + 1.0 - 0.51))


def test_seconds_for_trying_are_saved_up_while_time_passes_up_to_a_bound() -> None:
    exploration = Exploration(share=0.01, saved_s_max=2.0)
    assert exploration.counted(1000.0).saved_s == 0.0
    assert exploration.counted(1000.0).counted(1050.0).saved_s == pytest.approx(0.5)
    assert exploration.counted(1000.0).counted(9000.0).saved_s == 2.0
    assert exploration.counted(1000.0).counted(900.0).saved_s == 0.0


@pytest.mark.parametrize("wrong", [{"load_s": math.nan}, {"prefill_s": -1.0}, {"tokens": -1}])
def test_a_prospect_is_made_of_numbers(wrong: dict) -> None:
    with pytest.raises(AssertionError, match=next(iter(wrong))):
        replace(LOAD, **wrong)


def test_the_first_prospect_is_what_is_done_without_a_load() -> None:
    with pytest.raises(AssertionError, match="first prospect loads"):
        choose([LOAD], Exploration(), now_s=0.0)


def test_the_longest_is_taken_whatever_it_costs() -> None:
    part = Prospect(tokens=2048, load_s=0.001, prefill_s=0.4)
    choice = choose_longest([RECOMPUTE, part, SLOW], SAVED, now_s=5.0)
    assert (choice.index, choice.explored, choice.exploration.saved_s) == (2, False, SAVED.counted(5.0).saved_s)
    assert choice.patience_s >= 10.0, "what need not be worth it is waited for"
    assert "as configured" in choice.reason
    # Of two that are as long, the one that loads less long.
    assert choose_longest([RECOMPUTE, SLOW, LOAD], SAVED, now_s=0.0).index == 2
    assert choose_longest([RECOMPUTE], SAVED, now_s=0.0).patience_s == 0.0
