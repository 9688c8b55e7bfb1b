"""`kvist.cost` under any timings: bounded, monotone, convergent; and exploring within what was saved up."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from fakes.dice import Dice
from kvist.base.units import Tokens
from kvist.cost.choice import FLOOR_S, Exploration, Prospect, choose, patience_s
from kvist.cost.estimate import RANGE
from kvist.cost.load import LoadModel, load_model
from kvist.cost.prefill import PrefillModel, Work, prefill_model

Anything = st.floats(allow_nan=True, allow_infinity=True) | st.floats(1e-6, 100.0)
Timings = st.lists(st.tuples(st.integers(-10, 2**40), Anything), max_size=30)
Media = st.sampled_from(["dram", "disk", "pool"])
Seconds = st.floats(0.0, 100.0)


def loaded(medium: str, timings: list[tuple[int, float]], *, lanes: int = 1) -> LoadModel:
    model = load_model(medium, lanes=lanes)
    for nbytes, seconds in timings:
        model = model.learned(nbytes, seconds, now_s=0.0)
    return model


def steps_learned(timings: list[tuple[int, float]]) -> PrefillModel:
    model = prefill_model(Work(parameters=10**8, attention_width=10**4), step_tokens=Tokens(512))
    for end, seconds in timings:
        model = model.learned(max(0, end % 100_000 - 512), end % 100_000, seconds)
    return model


@settings(max_examples=examples(200))
@given(Media, Timings, st.lists(st.integers(0, 2**40), min_size=2, max_size=2).map(sorted), st.integers(0, 2**40))
def test_more_bytes_are_never_cheaper(medium: str, timings: list, sizes: list[int], queued: int) -> None:
    model = loaded(medium, timings)
    few, many = sizes
    assert 0 <= model.predict_s(few) <= model.predict_s(many) < math.inf
    assert model.predict_s(many) <= model.predict_s(many, queued_bytes=queued)
    assert model.predict_s(many, jobs=3) >= model.predict_s(many)
    assert model.hopeful_s(many) <= model.predict_s(many)
    assert loaded(medium, timings, lanes=2).predict_s(many, jobs=8) <= model.predict_s(many, jobs=8)


@settings(max_examples=examples(200))
@given(Timings, st.lists(st.integers(0, 10**6), min_size=3, max_size=3, unique=True).map(sorted))
def test_more_tokens_are_never_cheaper_and_later_ones_never_either(timings: list, marks: list[int]) -> None:
    model, (start, middle, end) = steps_learned(timings), marks
    assert 0 < model.predict_s(start, middle) <= model.predict_s(start, end) < math.inf
    assert model.predict_s(middle, end) <= model.predict_s(start, end)
    assert model.predict_s(0, 512) <= model.predict_s(end, end + 512)
    both = model.predict_s(start, middle) + model.predict_s(middle, end)
    assert model.predict_s(start, end) <= both * (1 + 1e-9)


@settings(max_examples=examples(200))
@given(Media, Timings)
def test_whatever_is_learned_stays_finite_and_within_range(medium: str, timings: list) -> None:
    model = loaded(medium, timings)
    prior = load_model(medium).estimate.costs
    for cost, first in zip(model.estimate.costs, prior, strict=True):
        assert first / RANGE * 0.999 <= cost <= first * RANGE * 1.001
    spread = model.estimate.spread
    assert all(math.isfinite(each) for row in spread for each in row)
    assert spread[0][0] >= 0
    assert spread[1][1] >= 0
    assert spread[0][1] ** 2 <= spread[0][0] * spread[1][1] + 1e-9, "no covariance of anything"


@settings(max_examples=examples(200))
@given(Media, Timings, st.integers(1, 2**40), st.floats(1e-9, 1e9))
def test_one_timing_changes_a_prediction_by_a_bounded_factor(
    medium: str, timings: list, nbytes: int, seconds: float
) -> None:
    """Unless it is the third surprise in a row."""
    before = loaded(medium, timings)
    after = before.learned(nbytes, seconds, now_s=0.0)
    if abs(before.estimate.surprises) < 2:
        change = abs(math.log(after.predict_s(nbytes) / before.predict_s(nbytes)))
        assert change <= 3 * math.log(4)
    assert abs(after.estimate.surprises) <= 2


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), Media, st.floats(-4, 4), st.floats(-4, 4), st.sampled_from([0, 12]))
def test_it_converges_to_what_is_true_under_noise_and_stalls(
    seed: int, medium: str, slower: float, narrower: float, stalls: int
) -> None:
    """Noise of up to a factor of 1.4; one timing in twelve may be ten seconds late. Off by up to e^4 at the start."""
    dice, model = Dice(seed), load_model(medium)
    latency_s, bandwidth = model.latency_s * math.exp(slower), model.bandwidth * math.exp(narrower)
    for _ in range(300):
        nbytes = round(latency_s * bandwidth * math.exp(dice.number(-400, 400) / 100)) + 1
        seconds = (latency_s + nbytes / bandwidth) * math.exp(dice.number(-340, 340) / 1000)
        seconds += 10.0 * (stalls > 0 and dice.number(1, stalls) == 1)
        model = model.learned(nbytes, seconds, now_s=0.0)
    for size in (0.02, 1.0, 50.0):
        nbytes = round(latency_s * bandwidth * size) + 1
        error = math.log(model.predict_s(nbytes) / (latency_s + nbytes / bandwidth))
        assert abs(error) <= math.log(1.5)


@st.composite
def crossroads(draw: st.DrawFn) -> list[Prospect]:
    """What may be compared: nothing loaded, and up to four loads that each leave less to compute."""
    prefill_s = sorted(draw(st.lists(Seconds, min_size=1, max_size=5)), reverse=True)
    loads = [
        Prospect(
            tokens=index + 1,
            load_s=draw(st.floats(1e-6, 1000.0)),
            prefill_s=rest_s,
            hopeful_load_s=draw(st.floats(1e-6, 1e-3) | st.floats(1e-6, 10.0)),
            unlearned_for_s=draw(st.sampled_from([0.0, 9.0, 60.0, math.inf])),
        )
        for index, rest_s in enumerate(prefill_s[1:])
    ]
    return [Prospect(tokens=0, load_s=0.0, prefill_s=prefill_s[0]), *loads]


@settings(max_examples=examples(300))
@given(crossroads())
def test_the_cheapest_is_taken_and_waited_for_no_longer_than_it_saves(prospects: list[Prospect]) -> None:
    choice = choose(prospects, Exploration(), now_s=0.0)
    chosen, recompute = prospects[choice.index], prospects[0]
    assert not choice.explored
    assert chosen.total_s == min(each.total_s for each in prospects)
    assert choice.patience_s <= recompute.prefill_s - chosen.prefill_s + FLOOR_S
    if chosen.load_s:
        assert choice.patience_s >= FLOOR_S
        assert choice.patience_s >= chosen.load_s, "it would not even wait for what was predicted"
    worst_s = choice.patience_s + recompute.prefill_s
    assert worst_s <= 2 * recompute.total_s + FLOOR_S, "a tier that hangs costs at most as much again"


@settings(max_examples=examples(120))
@given(st.lists(st.tuples(crossroads(), st.floats(0.0, 1000.0)), min_size=5, max_size=20))
def test_exploring_costs_at_most_what_was_saved_up_whatever_comes(steps: list[tuple[list[Prospect], float]]) -> None:
    exploration, now_s, extra_s = Exploration(), 0.0, 0.0
    for prospects, passes_s in steps:
        choice = choose(prospects, exploration, now_s=now_s)
        exploration = choice.exploration
        best_s = min(each.total_s for each in prospects)
        if choice.explored:
            chosen = prospects[choice.index]
            in_time = chosen.load_s <= choice.patience_s
            worst_s = choice.patience_s + prospects[0].prefill_s
            assert chosen.hopeful_load_s + FLOOR_S <= choice.patience_s
            assert chosen.unlearned_for_s >= exploration.interval_s
            extra_s += (chosen.total_s if in_time else worst_s) - best_s
        assert exploration.saved_s >= -1e-9
        assert extra_s <= exploration.share * now_s + 1e-6
        now_s += passes_s


@settings(max_examples=examples(20))
@given(st.floats(0.001, 0.4), st.floats(0.01, 30.0), st.floats(0.0, 1000.0))
def test_a_tier_that_stays_slow_is_tried_again_and_again_and_never_for_more_than_the_share(
    hopeful_load_s: float, passes_s: float, idle_s: float
) -> None:
    slow = Prospect(tokens=1, load_s=50.0, prefill_s=0.0, hopeful_load_s=hopeful_load_s, unlearned_for_s=60.0)
    exploration = Exploration(counted_at_s=-idle_s)
    spent_s, tried = 0.0, 0
    for step in range(1, 201):
        choice = choose([Prospect(tokens=0, load_s=0.0, prefill_s=1.0), slow], exploration, now_s=step * passes_s)
        exploration = choice.exploration
        spent_s += choice.patience_s
        tried += choice.explored
    earned_s = min(exploration.saved_s_max, exploration.share * idle_s) + exploration.share * 200 * passes_s
    assert spent_s <= earned_s + 1e-6
    a_trial_s = FLOOR_S + 2 * hopeful_load_s
    assert tried >= min(200, int((earned_s - exploration.saved_s_max) / a_trial_s) - 1)


@settings(max_examples=examples(300))
@given(st.integers(1, 64), st.integers(1, 512), st.floats(0.1, 4.0), st.floats(0.0, 1.0))
def test_between_nothing_and_everything_nothing_is_better(
    block_tokens: int, blocks: int, ratio: float, position: float
) -> None:
    """Why only ends are compared: the time of any part of a load is at least that of the better end."""
    tokens, block_bytes = block_tokens * (blocks + 1), 65_536
    prefill = prefill_model(Work(parameters=10**8, attention_width=10**5), step_tokens=Tokens(10**9))
    per_byte = prefill.predict_s(0, tokens) / (blocks * block_bytes) / ratio
    disk = load_model("disk")
    for _ in range(20):
        disk = disk.learned(blocks * block_bytes, blocks * block_bytes * per_byte, now_s=0.0)

    def total_s(loaded_blocks: int) -> float:
        return disk.predict_s(loaded_blocks * block_bytes) + prefill.predict_s(loaded_blocks * block_tokens, tokens)

    assert total_s(round(position * blocks)) >= min(total_s(0), total_s(blocks)) * (1 - 1e-9)


@settings(max_examples=examples(200))
@given(crossroads())
def test_patience_is_without_surprises(prospects: list[Prospect]) -> None:
    """Longer loads are never waited for less, as long as they save the same."""
    recompute = prospects[0]
    for each in prospects[1:]:
        waits = [
            patience_s(Prospect(tokens=1, load_s=load_s, prefill_s=each.prefill_s), recompute)
            for load_s in sorted((each.load_s, each.hopeful_load_s))
        ]
        assert waits == sorted(waits)
