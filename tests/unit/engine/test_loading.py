"""A sequence whose beginning comes from below, from the question to the first token, and every way out of it."""

import pytest

from fakes.below import DictTiers, Manners
from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import CapacityError
from kvist.base.ids import RequestId
from kvist.engine.backend import BackendError
from kvist.engine.messages import Admitted, Event, Finished

SIZE = 4
PROMPT = tuple((place * place * 7) % 3 for place in range(64))


def tiers_with(*prompts: tuple[int, ...], windows: tuple[int | None, ...] = (None,), **manners: object) -> DictTiers:
    """Tiers that have every block of these prompts, and from then on such manners."""
    tiers = DictTiers(windows, SIZE)
    first = EngineTrial(Shape(windows=windows, blocks=(64,) * len(windows)), tiers=tiers)
    first.submit(*(request_of(f"{index}", prompt, output=1) for index, prompt in enumerate(prompts)))
    first.drain()
    first.check_ended()
    tiers.manners = Manners(is_punctual=True, **manners)
    return tiers


def trial_over(tiers: DictTiers, **shape: object) -> EngineTrial:
    """An engine with nothing in its own memory, over tiers that somebody else has filled."""
    windows = shape.get("windows", (None,))
    trial = EngineTrial(Shape(blocks=(shape.pop("blocks", 64),) * len(windows), **shape), tiers=tiers)
    trial.past.append(("blue", list(PROMPT)))
    return trial


def admitted(trial: EngineTrial, name: str) -> Admitted:
    return next(event for event in trial.events[RequestId(name)] if isinstance(event, Admitted))


def last(trial: EngineTrial, name: str) -> Event:
    return trial.events[RequestId(name)][-1]


def loading(trial: EngineTrial) -> list[str]:
    return [sequence.request.id for sequence in trial.core._loading]


def finish(trial: EngineTrial) -> None:
    trial.drain()
    trial.check_ended()


def test_it_begins_with_what_was_loaded_and_says_from_where() -> None:
    trial = trial_over(tiers_with(PROMPT[:40]))
    trial.submit(request_of("a", PROMPT[:40]))
    finish(trial)
    event = admitted(trial, "a")
    assert event.tokens_cached == 36
    assert event.prefix_end == "every full block before the last token was cached"
    assert {source.tier for source in event.sources} == {"disk", "dram"}
    assert sum(source.tokens for source in event.sources) == 36
    assert sum(source.bytes for source in event.sources) == 9 * SIZE * 8
    assert event.decision is not None
    assert event.decision.chosen.tokens == 36
    statistics = trial.core.statistics()
    assert (statistics.loads, statistics.loads_failed, statistics.tokens_prompt_computed) == (1, 0, 4)
    assert dict(statistics.tokens_by_tier) == {source.tier: source.tokens for source in event.sources}
    assert trial.backend.copied_in == 9


def test_a_prefix_that_is_shorter_says_why() -> None:
    trial = trial_over(tiers_with(PROMPT[:20]))
    trial.submit(request_of("a", PROMPT[:40]))
    finish(trial)
    event = admitted(trial, "a")
    assert (event.tokens_cached, event.prefix_end) == (20, "the longest there is")


def test_what_g1_has_is_not_loaded() -> None:
    trial = trial_over(tiers_with(PROMPT[:40]))
    trial.submit(request_of("a", PROMPT[:21], output=1))
    finish(trial)
    trial.submit(request_of("b", PROMPT[:40], output=1))
    finish(trial)
    assert trial.backend.copied_in == 9
    tokens = {source.tier: source.tokens for source in admitted(trial, "b").sources}
    assert tokens.pop("G1") == 20
    assert sum(tokens.values()) == 16


def test_who_finds_all_in_g1_asks_nobody() -> None:
    tiers = tiers_with()
    trial = EngineTrial(Shape(), tiers=tiers)
    trial.submit(request_of("a", PROMPT[:40], output=1))
    finish(trial)
    asked = tiers._tickets
    trial.submit(request_of("b", PROMPT[:40], output=1), request_of("c", PROMPT[:4], output=1))
    assert tiers._tickets == asked
    finish(trial)
    assert admitted(trial, "b").decision is None
    assert [source.tier for source in admitted(trial, "b").sources] == ["G1"]


def test_the_question_is_asked_when_the_request_comes_and_others_run_meanwhile() -> None:
    trial = trial_over(tiers_with(PROMPT[:40], answer_s=5), sequences_max=4)
    trial.submit(request_of("a", PROMPT[:40]))
    assert len(trial.core._loading.tickets) == 1
    trial.submit(request_of("short", (1, 2), output=12))
    trial.step()
    assert list(trial.core._running) == ["short"]
    assert trial.core.statistics().waiting == 1
    for _ in range(5):
        trial.step()
    assert "a" not in [sequence.request.id for sequence in trial.core._waiting]
    finish(trial)
    assert admitted(trial, "a").tokens_cached == 36


def test_while_one_loads_others_compute() -> None:
    trial = trial_over(tiers_with(PROMPT[:40], land_s=4))
    trial.submit(request_of("a", PROMPT[:40]), request_of("b", (2, 2, 2), output=20))
    trial.step()
    assert (loading(trial), list(trial.core._running)) == (["a"], ["b"])
    assert trial.core.statistics().loading == 1
    assert not trial.events[RequestId("a")]
    answered = len(trial.answer(RequestId("b")))
    for _ in range(3):
        trial.step()
    assert len(trial.answer(RequestId("b"))) == answered + 3
    trial.step()
    assert loading(trial) == []
    finish(trial)


def test_equal_prompts_load_once() -> None:
    tiers = tiers_with(PROMPT[:40], land_s=3)
    trial = trial_over(tiers)
    trial.submit(*(request_of(name, PROMPT[:40], seed=seed) for seed, name in enumerate("abc")))
    trial.step()
    assert loading(trial) == ["a"]
    finish(trial)
    assert trial.backend.copied_in == 9
    assert [admitted(trial, name).tokens_cached for name in "abc"] == [36, 36, 36]
    assert [source.tier for source in admitted(trial, "b").sources] == ["G1"]


def test_of_a_window_only_what_a_hit_needs_is_loaded() -> None:
    windows = (None, 8)
    trial = trial_over(tiers_with(PROMPT[:60], windows=windows), windows=windows)
    trial.submit(request_of("a", PROMPT[:60]))
    finish(trial)
    assert admitted(trial, "a").tokens_cached == 56
    assert trial.backend.copied_in == 14 + 2


@pytest.mark.parametrize("losses", [10, 5])
def test_a_load_that_fails_is_not_tried_again_and_what_landed_is_used(losses: int) -> None:
    tiers = tiers_with(PROMPT[:60], losses=losses)
    trial = trial_over(tiers)
    trial.submit(request_of("a", PROMPT[:60]))
    finish(trial)
    statistics = trial.core.statistics()
    assert (statistics.loads, statistics.loads_failed) == (0, 1)
    event = admitted(trial, "a")
    assert [source.tier for source in event.sources] == (["G1"] if event.tokens_cached else [])
    assert statistics.tokens_prompt_computed == 60 - event.tokens_cached
    assert trial.backend.copied_in == 14 - tiers.events["lost"]


def test_a_load_that_is_late_is_computed_instead() -> None:
    trial = trial_over(tiers_with(PROMPT[:40], land_s=50, patience_s=3))
    trial.submit(request_of("a", PROMPT[:40]))
    trial.step()
    assert trial.core.patience_s() == pytest.approx(2, abs=1)
    finish(trial)
    assert admitted(trial, "a").tokens_cached == 0
    assert trial.core.statistics().loads_failed == 1


@pytest.mark.parametrize("fault", [CapacityError("no room"), BackendError("broken")])
def test_a_copy_that_fails_is_a_load_that_failed(fault: CapacityError | BackendError) -> None:
    trial = trial_over(tiers_with(PROMPT[:40]))
    trial.backend.copy_fault = fault
    trial.submit(request_of("a", PROMPT[:40]))
    finish(trial)
    assert trial.core.statistics().loads_failed == 1
    assert isinstance(last(trial, "a"), Finished)


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("verb", ["abort", "complete"])
def test_who_leaves_in_any_state_leaves_nothing_behind(steps: int, verb: str) -> None:
    trial = trial_over(tiers_with(PROMPT[:40], answer_s=2, land_s=3), land_bytes_max=SIZE * 8)
    trial.submit(request_of("other", (2, 2, 2), output=20), request_of("a", PROMPT[:40], output=20))
    for _ in range(steps):
        trial.step()
    if verb == "abort":
        trial.abort(RequestId("a"))
    else:
        trial.core.complete(RequestId("a"))
        trial.check()
    assert not trial.core._loading.tickets
    assert RequestId("a") not in trial.core._loading
    assert isinstance(last(trial, "a"), Finished)
    trial.submit(request_of("b", PROMPT[:40]))
    trial.drain()
    assert admitted(trial, "b").tokens_cached == 36


def test_while_others_compute_little_is_copied_at_once() -> None:
    trial = trial_over(tiers_with(PROMPT[:60]), land_bytes_max=5 * SIZE * 8, step_tokens=64)
    trial.submit(request_of("b", (2, 2, 2), output=20))
    trial.step()
    trial.submit(request_of("a", PROMPT[:60]))
    for copied in (5, 10):
        trial.step()
        assert (loading(trial), trial.backend.copied_in) == (["a"], copied)
        assert trial.core._loading.has_arrivals
    trial.step()
    assert (loading(trial), trial.backend.copied_in) == ([], 14)
    finish(trial)
    assert admitted(trial, "a").tokens_cached == 56


def test_who_is_preempted_while_loading_computes_and_is_told_of_admission_once() -> None:
    tiers = tiers_with(PROMPT[:24], land_s=30, patience_s=100)
    trial = trial_over(tiers, blocks=10, overcommit=100.0, step_tokens=8)
    trial.submit(request_of("old", (2, 2, 2), output=30), request_of("a", PROMPT[:24], output=4))
    trial.step()
    assert loading(trial) == ["a"]
    finish(trial)
    assert last(trial, "a").preemptions >= 1
    assert sum(isinstance(event, Admitted) for event in trial.events[RequestId("a")]) == 1
    assert trial.core.statistics().loads == 0


def test_when_the_engine_fails_the_tiers_are_told_that_nobody_waits() -> None:
    tiers = tiers_with(PROMPT[:40], answer_s=5, land_s=5)
    trial = trial_over(tiers)
    trial.submit(request_of("a", PROMPT[:40]), request_of("b", PROMPT[:30][::-1]))
    assert tiers._asked
    trial.core.fail_all("broken")
    assert not tiers._asked
    assert not trial.core.heeds_tiers


def test_steps_that_only_prefill_one_sequence_are_learned_from() -> None:
    tiers = tiers_with()
    trial = EngineTrial(Shape(step_tokens=16), tiers=tiers)
    trial.submit(request_of("a", PROMPT[:40], output=3))
    trial.drain()
    assert [(start, end) for start, end, _ in tiers.prefills] == [(0, 16), (16, 32), (32, 40)]
