"""Core, scheduling and blocks together when memory is short or the backend breaks."""

import pytest

from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import CapacityError
from kvist.base.ids import RequestId
from kvist.engine.backend import BackendError
from kvist.engine.messages import Event, Failed, Finished


def running(trial: EngineTrial) -> list[str]:
    """Who runs, in the order of admission."""
    return list(trial.core._running)


def last(trial: EngineTrial, name: str) -> Event:
    return trial.events[RequestId(name)][-1]


def finish(trial: EngineTrial) -> None:
    trial.drain()
    trial.check_ended()


def test_a_request_that_alone_is_too_much_for_memory_fails() -> None:
    trial = EngineTrial(Shape())
    trial.submit(request_of("a", (0, 1, 2, 0)))
    trial.step(CapacityError("9 GiB asked for"))
    assert last(trial, "a") == Failed(request_id=RequestId("a"), message="out of memory: 9 GiB asked for")
    trial.check_ended()
    assert trial.core.statistics().out_of_memory == 1


def test_of_several_the_last_gives_way_and_nobody_is_admitted_until_a_step_succeeds() -> None:
    trial = EngineTrial(Shape(step_tokens=24))
    trial.submit(*(request_of(name, (token,) * 8, output=4) for token, name in enumerate("abc")))
    for left in (["a", "b"], ["a"]):
        trial.step(CapacityError("no room"))
        assert running(trial) == left
    trial.step()
    assert running(trial) == ["a"]
    trial.step()
    assert running(trial) == ["a", "b", "c"]
    finish(trial)


@pytest.mark.parametrize("most", [2, 4, 8, 9, 15])
def test_memory_that_never_suffices_for_all_is_used_by_turns(most: int) -> None:
    trial = EngineTrial(Shape(step_tokens=16))
    trial.backend.batch_tokens_max = most
    trial.submit(*(request_of(name, (token,) * 8, output=6) for token, name in enumerate("abc")))
    finish(trial)
    # A prompt of eight tokens is one chunk here: where that alone is too much, no order of turns helps.
    ended = Failed if most < 8 else Finished
    assert all(isinstance(last(trial, name), ended) for name in "abc")


def test_memory_that_is_short_when_everybody_leaves_is_tried_again() -> None:
    trial = EngineTrial(Shape())
    trial.submit(*(request_of(name, (token,) * 8, output=4) for token, name in enumerate("ab")))
    trial.step(CapacityError("no room"))
    trial.abort(RequestId("a"))
    finish(trial)
    assert isinstance(last(trial, "b"), Finished)


def test_a_backend_that_breaks_fails_those_in_the_step_and_nobody_else() -> None:
    trial = EngineTrial(Shape(sequences_max=2))
    trial.submit(*(request_of(name, (token,) * 8, output=4) for token, name in enumerate("abc")))
    trial.step(BackendError("broken"))
    assert [type(last(trial, name)) for name in "ab"] == [Failed, Failed]
    assert trial.events[RequestId("c")] == []
    finish(trial)
    assert isinstance(last(trial, "c"), Finished)


def test_what_a_failed_step_has_torn_is_never_read() -> None:
    trial = EngineTrial(Shape(windows=(None, 5), blocks=(40, 40), step_tokens=16))
    trial.submit(request_of("a", (0,) * 7, output=20), request_of("b", (1,) * 7, output=20))
    while trial.core.has_work:
        trial.step(CapacityError("no room") if len(trial.core._waiting) + len(trial.core._running) > 1 else None)
        if trial.core.has_work:
            trial.step()
    trial.check_ended()
    assert [type(last(trial, name)) for name in "ab"] == [Finished, Finished]
