from collections.abc import Iterable

import pytest

from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId
from kvist.base.units import Tokens
from kvist.blocks.lifecycle import State
from kvist.blocks.window import Retention
from kvist.engine.backend import BackendError
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn

PROMPT = tuple((place * place * 7) % 3 for place in range(64))

LEAN = Shape(blocks=(8,), block_tokens=4, step_tokens=8, sequences_max=3, overcommit=100.0)
"""Eight blocks of four tokens, promised many times over."""


def names(trial: EngineTrial) -> tuple[list[str], list[str]]:
    """Who runs, in the order of admission, and who waits, in the order of the queue."""
    return list(trial.core._running), [sequence.request.id for sequence in trial.core._waiting]


def last(trial: EngineTrial, name: str) -> Event:
    return trial.events[RequestId(name)][-1]


def cached(trial: EngineTrial, name: str) -> int:
    return next(event.tokens_cached for event in trial.events[RequestId(name)] if isinstance(event, Admitted))


def steps(trial: EngineTrial, count: int) -> None:
    for _ in range(count):
        trial.step()


def finish(trial: EngineTrial) -> None:
    trial.drain()
    trial.check_ended()


# One request


def test_a_request_is_admitted_answered_token_by_token_and_finished() -> None:
    trial = EngineTrial(Shape())
    assert not trial.core.has_work
    trial.submit(request_of("a", PROMPT[:10], output=3))
    assert trial.core.has_work
    finish(trial)
    events = trial.events[RequestId("a")]
    assert [type(event) for event in events] == [Admitted, TokenDrawn, TokenDrawn, TokenDrawn, Finished]
    assert last(trial, "a") == Finished(
        request_id=RequestId("a"),
        reason="length",
        tokens_prompt=Tokens(10),
        tokens_cached=Tokens(0),
        tokens_output=Tokens(3),
        preemptions=0,
    )
    assert not trial.core.has_work


@pytest.mark.parametrize("size", [1, 3, 4, 16, 100])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 12, 15, 16, 17])
def test_prompts_shorter_longer_and_just_as_long_as_blocks(length: int, size: int) -> None:
    trial = EngineTrial(Shape(block_tokens=size, step_tokens=7))
    for turn in range(3):
        trial.submit(request_of(f"{turn}", PROMPT[:length], output=9))
        finish(trial)
        assert cached(trial, f"{turn}") == ((length - 1) // size * size if turn else 0)


@pytest.mark.parametrize("windows", [(None,), (1,), (3,), (None, 2), (5, None)])
@pytest.mark.parametrize("step_tokens", [1, 2, 3, 5, 64])
def test_budgets_smaller_than_a_block_and_larger_than_a_window(windows: tuple, step_tokens: int) -> None:
    trial = EngineTrial(
        Shape(windows=windows, blocks=(64,) * len(windows), step_tokens=step_tokens, sequences_max=1, block_tokens=4)
    )
    trial.submit(request_of("a", PROMPT[:30], output=20), request_of("b", PROMPT[:30], output=20, seed=1))
    finish(trial)
    assert [len(trial.answer(RequestId(name))) for name in "ab"] == [20, 20]


def test_a_stop_token_is_delivered_and_ends_the_request() -> None:
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:5], output=50, stops=(0, 1, 2)))
    finish(trial)
    event = last(trial, "a")
    assert isinstance(event, Finished)
    assert (event.reason, event.tokens_output, len(trial.answer(RequestId("a")))) == ("stop", 1, 1)


# What is refused


def test_what_can_never_run_is_refused_and_leaves_no_trace() -> None:
    trial = EngineTrial(Shape(blocks=(4,)))
    trial.submit(request_of("empty", ()), request_of("long", PROMPT[:13], output=5), request_of("odd", (7,)))
    assert all(isinstance(last(trial, name), Refused) for name in ("empty", "long", "odd"))
    assert not trial.core.has_work
    trial.check_ended()
    assert trial.core.statistics().refusals == 3


def test_a_request_that_just_fits_the_pool_is_served() -> None:
    trial = EngineTrial(Shape(blocks=(4,)))
    trial.submit(request_of("a", PROMPT[:12], output=5))
    finish(trial)
    assert isinstance(last(trial, "a"), Finished)


def test_one_too_many_in_the_queue_is_told_to_come_back() -> None:
    trial = EngineTrial(Shape(waiting_max=2, sequences_max=1))
    trial.submit(*(request_of(name, PROMPT[:4], output=2) for name in "abcd"))
    event = last(trial, "d")
    assert isinstance(event, Refused)
    assert event.kind == "busy"
    finish(trial)
    assert all(isinstance(last(trial, name), Finished) for name in "abc")


def test_one_whose_output_is_all_that_was_wanted_is_finished_and_not_aborted() -> None:
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:4], output=9))
    trial.step()
    trial.core.complete(RequestId("a"))
    event = last(trial, "a")
    assert isinstance(event, Finished)
    assert event.reason == "stop"
    assert (trial.core.statistics().finished, trial.core.statistics().aborts) == (1, 0)
    trial.core.complete(RequestId("a"))
    trial.core.audit()


def test_an_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    trial = EngineTrial(Shape())
    request = request_of("a", PROMPT[:4], output=3)
    trial.submit(request)
    told: list[Event] = []
    for _ in range(2):
        trial.core.submit(request, trial.shape.limits, told.append)
        trial.step()
    assert [(event.kind, event.request_id) for event in told if isinstance(event, Refused)] == [("invalid", "a")] * 2
    trial.drain()
    assert isinstance(last(trial, "a"), Finished)
    trial.core.submit(request, trial.shape.limits, told.append)
    assert len(told) == 2  # the id is free again


# Who goes first


def test_those_who_do_not_fit_hold_back_those_behind() -> None:
    trial = EngineTrial(Shape(blocks=(8,), step_tokens=8, sequences_max=3))
    trial.submit(request_of("a", PROMPT[:8], output=9), request_of("big", (1,) * 20, output=9), request_of("c", (2,)))
    trial.step()
    assert names(trial) == (["a"], ["big", "c"])
    finish(trial)
    assert list(trial.events) == ["a", "big", "c"]


def test_who_waits_for_a_block_in_flight_lets_others_pass() -> None:
    trial = EngineTrial(Shape(blocks=(32,), step_tokens=8, sequences_max=3))
    trial.submit(request_of("a", PROMPT[:20]), request_of("b", PROMPT[:20], seed=1), request_of("c", (1,) * 5))
    trial.step()
    assert names(trial) == (["a", "c"], ["b"])
    finish(trial)
    assert cached(trial, "b") == 16


@pytest.mark.parametrize("fate", ["abort", "failure", "preemption"])
@pytest.mark.parametrize("done", [1, 2])
def test_who_waits_for_somebody_who_is_gone_goes_on_where_that_one_stopped(fate: str, done: int) -> None:
    shape = Shape(blocks=(64,), step_tokens=12, sequences_max=3)
    trial = EngineTrial(shape)
    trial.submit(request_of("first", (1,) * 4, output=30))
    trial.step()
    trial.submit(request_of("a", PROMPT[:40], output=4), request_of("b", PROMPT[:41], output=4))
    steps(trial, done)
    assert names(trial) == (["first", "a"], ["b"])
    if fate == "abort":
        trial.abort(RequestId("a"))
    else:
        trial.step(BackendError("broken") if fate == "failure" else CapacityError("no room"))
    finish(trial)
    assert isinstance(last(trial, "b"), Finished)
    assert cached(trial, "b") == (40 if fate == "preemption" else 8 * done)


def test_b_waits_for_a_again_when_a_is_resumed_first() -> None:
    """A preempted request is resumed before those who never ran, and keeps being waited for."""
    trial = EngineTrial(Shape(blocks=(64,), step_tokens=12, sequences_max=3))
    trial.submit(request_of("first", (1,) * 4, output=30))
    trial.step()
    trial.submit(request_of("a", PROMPT[:40], output=4), request_of("b", PROMPT[:41], output=4))
    trial.step()
    trial.step(CapacityError("no room"))
    assert names(trial) == (["first"], ["a", "b"])
    steps(trial, 2)  # nobody is admitted before a step has succeeded
    assert names(trial) == (["first", "a"], ["b"])
    finish(trial)


def test_two_tenants_with_one_prompt_wait_for_nobody() -> None:
    trial = EngineTrial(Shape(step_tokens=8))
    trial.submit(request_of("a", PROMPT[:20], tenant="blue"), request_of("b", PROMPT[:20], tenant="green"))
    trial.step()
    assert names(trial) == (["a", "b"], [])
    finish(trial)
    assert (cached(trial, "a"), cached(trial, "b")) == (0, 0)


# Abort


def test_nobody_is_aborted_who_is_unknown_or_gone() -> None:
    trial = EngineTrial(Shape())
    trial.core.abort(RequestId("nobody"))
    trial.submit(request_of("a", PROMPT[:4], output=1))
    finish(trial)
    events = list(trial.events[RequestId("a")])
    trial.core.abort(RequestId("a"))
    assert trial.events[RequestId("a")] == events
    assert trial.core.statistics().aborts == 0


@pytest.mark.parametrize("windows", [(None,), (None, 6), (3,)])
@pytest.mark.parametrize("done", range(12))
def test_an_abort_in_any_state_gives_back_every_block(windows: tuple, done: int) -> None:
    """Waiting, in mid-prefill and mid-block, decoding; alone, and while another reads the same blocks."""
    trial = EngineTrial(Shape(windows=windows, blocks=(40,) * len(windows), step_tokens=7, sequences_max=2))
    trial.submit(request_of("a", PROMPT[:22], output=20), request_of("b", PROMPT[:22], output=20, seed=1))
    trial.submit(request_of("c", PROMPT[:30], output=3))
    steps(trial, done)
    for name in "abc":
        trial.abort(RequestId(name))
    assert not trial.core.has_work
    trial.check_ended()
    assert all(event.reason == "abort" for name in "abc" if isinstance(event := last(trial, name), Finished))


def test_what_an_aborted_request_computed_serves_the_next() -> None:
    for windows in ((None,), (None, 5)):
        trial = EngineTrial(Shape(windows=windows, blocks=(40,) * len(windows), step_tokens=10))
        trial.submit(request_of("a", PROMPT[:40]))
        steps(trial, 2)
        trial.abort(RequestId("a"))
        trial.submit(request_of("b", PROMPT[:40]))
        finish(trial)
        assert cached(trial, "b") == 16


# Preemption


def test_the_newest_gives_way_and_is_resumed_with_the_same_answer() -> None:
    trial = EngineTrial(LEAN)
    trial.submit(request_of("a", PROMPT[:8], output=20), request_of("b", (1,) * 8, output=20))
    finish(trial)
    event = last(trial, "b")
    assert isinstance(event, Finished)
    assert event.preemptions > 0
    assert trial.core.statistics().preemptions == event.preemptions
    assert trial.core.statistics().tokens_recomputed > 0
    assert sum(isinstance(each, Admitted) for each in trial.events[RequestId("b")]) == 1


def test_the_resumed_go_before_those_who_never_ran_oldest_first() -> None:
    trial = EngineTrial(LEAN)
    trial.submit(*(request_of(name, (token,) * 8, output=24) for token, name in enumerate("abc")))
    trial.submit(request_of("d", PROMPT[:8], output=2))
    seen: list[list[str]] = []
    while trial.core.has_work:
        trial.step()
        _, waits = names(trial)
        if {"b", "c"} <= set(waits):
            seen.append(waits)
    assert seen
    assert all(waits == ["b", "c", "d"] for waits in seen)
    trial.check_ended()


# When the engine cannot go on


def fail_all(trial: EngineTrial, broken: Iterable[str] = ()) -> dict[str, list[Event]]:
    """Fails everybody, again after each listener that raises; returns what each was told."""
    told: dict[str, list[Event]] = {name: [] for name in trial.events}

    def listen(event: Event) -> None:
        told[event.request_id].append(event)
        if event.request_id in broken:
            raise ZeroDivisionError

    trial.core._deliver = dict.fromkeys(trial.core._deliver, listen)
    for _ in broken:
        with pytest.raises(ZeroDivisionError):
            trial.core.fail_all("the end")
    trial.core.fail_all("the end")
    return told


@pytest.mark.parametrize("broken", [(), ("b",), ("a", "c")])
def test_everybody_is_told_once_even_if_some_listeners_raise(broken: tuple[str, ...]) -> None:
    trial = EngineTrial(Shape(sequences_max=2))
    trial.submit(*(request_of(name, (token,) * 8) for token, name in enumerate("abc")))
    for name in "abc":
        trial.events.setdefault(RequestId(name), [])
    trial.step()
    told = fail_all(trial, broken)
    assert told == {name: [Failed(request_id=RequestId(name), message="the end")] for name in "abc"}
    assert not trial.core.has_work
    assert trial.core.statistics().failures == 3
    trial.core.fail_all("again")
    assert trial.core.statistics().failures == 3


# The audit


def test_the_audit_catches_a_block_given_away_behind_the_engines_back() -> None:
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:8]))
    trial.step()
    trial.pools[0].release(trial.core._running[RequestId("a")].table.held()[0][0], RequestId("a"))
    with pytest.raises(AssertionError, match="block 0"):
        trial.core.audit()


def test_the_audit_catches_blocks_of_nobody_and_requests_in_no_queue() -> None:
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:8]))
    trial.pools[0].allocate(RequestId("nobody"))
    with pytest.raises(AssertionError, match="nobody"):
        trial.core.audit()
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:8]))
    trial.core._waiting.clear()
    with pytest.raises(AssertionError, match="in no queue"):
        trial.core.audit()
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", PROMPT[:8]))
    trial.core._waiting[0].table.grow(1)
    with pytest.raises(AssertionError):
        trial.core.audit()


# Windows between sequences


def test_a_window_that_another_still_reads_stays_when_its_first_reader_moves_on() -> None:
    """B takes A's window over; A goes far ahead and lets its part go, while B has yet to read it."""
    trial = EngineTrial(
        Shape(
            windows=(None, 6),
            blocks=(64, 64),
            step_tokens=24,
            sequences_max=2,
            retention=Retention(checkpoint_tokens=Tokens(1000), slack_tokens=Tokens(0)),
        )
    )
    trial.submit(request_of("a", PROMPT[:24], output=30))
    trial.step()
    trial.submit(request_of("b", (*PROMPT[:24], 1, 1, 1), output=1))
    trial.step()
    assert cached(trial, "b") == 24
    finish(trial)


def test_a_second_seal_moves_the_table_over_in_every_group() -> None:
    """Equal prompts of whole blocks: the second computes the last block again and gets the first one's."""
    trial = EngineTrial(Shape(windows=(None, 6), blocks=(32, 32), step_tokens=64, sequences_max=2))
    trial.submit(request_of("a", PROMPT[:16], output=20), request_of("b", PROMPT[:16], output=20, seed=9))
    steps(trial, 2)
    tables = [sequence.table.groups[0][:4] for sequence in trial.core._running.values()]
    assert tables[0] == tables[1]
    assert all(trial.pools[0].state(BlockId(block)) is State.HELD for block in tables[0] if block is not None)
    finish(trial)
