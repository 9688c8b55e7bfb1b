"""A real thread over a real core; tests wait for events, never for time to pass."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from fakes.backend import MemoryBackend, answer_alone
from fakes.shape import VOCAB, Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import RequestError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.engine.batch import Batch, Drawn
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn
from kvist.engine.request import Request
from kvist.engine.thread import EngineThread

Run = Callable[[MemoryBackend, Batch], list[Drawn | None]]

PLAIN = Shape()

PATIENCE_S = 30
"""How long a test waits for what has to come; only a failing one waits as long."""


class Listener:
    """Keeps what requests are told, and waits until one got its last event."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.threads: set[str] = set()
        self._told = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._told:
            self.events[event.request_id].append(event)
            self.threads.add(threading.current_thread().name)
            self._told.notify_all()

    def last(self, name: str) -> Event:
        """Waits for the last event of a request."""

        def ended() -> list[Event]:
            return [event for event in self.events[name] if isinstance(event, Finished | Refused | Failed)]

        with self._told:
            assert self._told.wait_for(ended, timeout=PATIENCE_S), f"{name} waits for ever"
            return ended()[0]


class Computes:
    """A backend that is a function of another one and of the batch."""

    def __init__(self, inner: MemoryBackend, run: Run) -> None:
        self._inner, self._run = inner, run

    def run(self, batch: Batch) -> list[Drawn | None]:
        return self._run(self._inner, batch)


class Gate:
    """Holds each step until it is let through."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, inner: MemoryBackend, batch: Batch) -> list[Drawn | None]:
        self.entered.release()
        assert self.open.acquire(timeout=PATIENCE_S)
        return inner.run(batch)


class Served:
    """An engine thread with its listener; a request is made known to the backend before it is submitted."""

    def __init__(self, shape: Shape = PLAIN, run: Run = MemoryBackend.run) -> None:
        self.trial = EngineTrial(shape, around=lambda inner: Computes(inner, run))
        self.engine = EngineThread(self.trial.core, shape.limits)
        self.listener = Listener()

    def submit(self, request: Request) -> None:
        self.trial.truth.add(request)
        self.engine.submit(request, self.listener)


@contextmanager
def serving(shape: Shape = PLAIN, run: Run = MemoryBackend.run) -> Iterator[Served]:
    """A running engine, stopped at the end whatever happens."""
    served = Served(shape, run)
    served.engine.start()
    try:
        yield served
    finally:
        served.engine.stop()
    assert not served.engine._thread.is_alive()


def broken(_: MemoryBackend, __: Batch) -> list[Drawn | None]:
    raise ZeroDivisionError("unforeseen")


def test_a_request_is_answered_on_the_engines_thread() -> None:
    with serving() as served:
        request = request_of("a", (0, 1, 2), output=3)
        served.submit(request)
        assert isinstance(served.listener.last("a"), Finished)
    events = served.listener.events["a"]
    assert [type(event) for event in events] == [Admitted, TokenDrawn, TokenDrawn, TokenDrawn, Finished]
    assert [event.token for event in events if isinstance(event, TokenDrawn)] == answer_alone(request, VOCAB)
    assert served.listener.threads == {"kvist-engine"}
    assert served.engine.limits == Shape().limits


def test_what_is_submitted_before_the_start_is_served_after_it() -> None:
    served = Served()
    served.submit(request_of("a", (0, 1)))
    assert served.listener.events == {}
    served.engine.start()
    assert isinstance(served.listener.last("a"), Finished)
    served.engine.stop()


def test_a_refusal_is_an_event() -> None:
    with serving() as served:
        served.submit(request_of("a", ()))
        assert isinstance(served.listener.last("a"), Refused)


def test_statistics_are_those_after_the_latest_step() -> None:
    with serving() as served:
        assert served.engine.statistics().steps == 0
        served.submit(request_of("a", (0, 1, 2), output=3))
        served.listener.last("a")
        served.submit(request_of("b", ()))  # by the time it is refused the step before is counted
        served.listener.last("b")
        statistics = served.engine.statistics()
        assert (statistics.steps, statistics.tokens_output, statistics.finished) == (3, 3, 1)


def test_an_abort_between_steps_ends_the_request_before_the_next() -> None:
    gate = Gate()
    with serving(run=gate) as served:
        served.submit(request_of("a", (0, 1), output=50))
        gate.entered.acquire(timeout=PATIENCE_S)
        served.engine.abort(RequestId("a"))
        gate.open.release()
        event = served.listener.last("a")
    assert isinstance(event, Finished)
    assert (event.reason, event.tokens_output) == ("abort", 1)


def test_an_abort_right_behind_its_submit_ends_it_and_an_unknown_one_is_ignored() -> None:
    served = Served()
    served.engine.abort(RequestId("a"))
    served.submit(request_of("a", (0, 1), output=50))
    served.engine.abort(RequestId("nobody"))
    served.engine.abort(RequestId("a"))
    served.engine.start()
    event = served.listener.last("a")
    assert isinstance(event, Finished)
    assert (event.reason, event.tokens_output) == ("abort", 0)
    served.engine.stop()


@pytest.mark.parametrize("before", [0, 3])
def test_an_idle_engine_sleeps_on_its_condition(before: int) -> None:
    with serving() as served:
        for number in range(before):
            served.submit(request_of(f"{number}", (0, 1)))
            served.listener.last(f"{number}")
        while not served.engine._wake._waiters:  # until it has gone to sleep
            assert served.engine._thread.is_alive()
        served.trial.core._deliver = Watched(served.trial.core._deliver)
        steps = served.trial.core.statistics().steps
        served.engine._thread.join(0.1)  # it does not end; should it be spinning, it looks for work meanwhile
        assert served.trial.core.statistics().steps == steps
        assert served.trial.core._deliver.looks == 0


class Watched(dict):
    """Counts how often somebody looks whether there is anything in it."""

    looks = 0

    def __len__(self) -> int:
        self.looks += 1
        return super().__len__()


def test_many_threads_submit_and_abort_and_each_request_ends_once() -> None:
    shape = Shape(windows=(None, 5), blocks=(24, 24), sequences_max=4, overcommit=3.0, waiting_max=10_000)
    names = [[f"{thread}.{number}" for number in range(25)] for thread in range(8)]

    def drive(mine: list[str]) -> None:
        for number, name in enumerate(mine):
            served.submit(request_of(name, (0, 1, 2, 0, 1, 2)[: 1 + number % 6], output=1 + number % 9, tenant=name[0]))
            if number % 3 == 2:
                served.engine.abort(RequestId(mine[number - number % 5]))

    with serving(shape) as served, ThreadPoolExecutor(max_workers=8) as threads:
        list(threads.map(drive, names))
        last = [served.listener.last(name) for mine in names for name in mine]
        assert served.engine.fault is None
    served.trial.core.audit()
    assert {type(event) for event in last} == {Finished}
    for name, events in served.listener.events.items():
        assert sum(isinstance(event, Finished | Refused | Failed) for event in events) == 1, name
        assert isinstance(events[-1], Finished)
        assert [event for event in events if isinstance(event, Admitted)] == events[: len(events) > 1]
    statistics = served.engine.statistics()
    assert (statistics.running, statistics.waiting) == (0, 0)
    assert statistics.finished + statistics.aborts == 200
    assert all(counts.used == 0 for counts in statistics.blocks)


# When a step fails in a way that nobody foresaw


def told_once(served: Served, *names: str) -> list[str]:
    """The messages with which requests failed; each was told exactly that it failed, and once."""
    messages = []
    for name in names:
        event = served.listener.last(name)
        assert isinstance(event, Failed)
        messages.append(event.message)
    served.engine.stop()
    for name in names:
        assert sum(isinstance(each, Failed) for each in served.listener.events[name]) == 1, name
        assert isinstance(served.listener.events[name][-1], Failed)
    return messages


@pytest.mark.parametrize("together", [True, False])
def test_everybody_is_told_once_of_an_unforeseen_failure_and_later_ones_too(together: bool) -> None:
    served = Served(Shape(sequences_max=2), run=broken)
    if not together:
        served.engine.start()
    for name in "abc":
        served.submit(request_of(name, (0, 1)))
    if together:
        served.engine.start()  # all three are taken in by the step that fails
    assert served.listener.last("a") == Failed(
        request_id=RequestId("a"), message="the engine failed: ZeroDivisionError('unforeseen')"
    )
    served.submit(request_of("late", (0, 1)))
    served.engine.abort(RequestId("late"))
    served.listener.last("late")
    assert served.engine.fault == "the engine failed: ZeroDivisionError('unforeseen')"
    assert told_once(served, "a", "b", "c", "late") == [served.engine.fault] * 4


def test_a_failed_engine_sleeps_too() -> None:
    with serving(run=broken) as served:
        served.submit(request_of("a", (0, 1)))
        served.listener.last("a")
        while not served.engine._wake._waiters:
            assert served.engine._thread.is_alive()
        assert not served.trial.core.has_work


def test_who_was_answered_before_the_failure_is_not_told_again() -> None:
    def run(inner: MemoryBackend, batch: Batch) -> list[Drawn | None]:
        if any(chunk.request_id == "b" for chunk in batch):
            raise ZeroDivisionError("unforeseen")
        return inner.run(batch)

    with serving(run=run) as served:
        served.submit(request_of("a", (0, 1), output=1))
        assert isinstance(served.listener.last("a"), Finished)
        served.submit(request_of("refused", ()))
        assert isinstance(served.listener.last("refused"), Refused)
        served.submit(request_of("b", (0, 1)))
        assert isinstance(served.listener.last("b"), Failed)
    assert sum(isinstance(event, Failed) for events in served.listener.events.values() for event in events) == 1


def test_a_request_refused_by_the_step_that_fails_is_told_once() -> None:
    served = Served(run=broken)
    served.submit(request_of("refused", ()))
    served.submit(request_of("a", (0, 1)))
    served.engine.start()
    assert isinstance(served.listener.last("a"), Failed)
    served.engine.stop()
    assert [type(event) for event in served.listener.events["refused"]] == [Refused]


def test_books_that_are_wrong_do_not_keep_anybody_waiting() -> None:
    """A block is given away behind the engine's back: no request can give its blocks back any more."""

    def run(inner: MemoryBackend, batch: Batch) -> list[Drawn | None]:
        for chunk in batch:
            for block in chunk.runs[0].blocks:
                served.trial.pools[0]._holders[block].clear()
        return inner.run(batch)

    served = Served(run=run)
    for name in "abc":
        served.submit(request_of(name, (0, 1, 2, 0), output=1))
    served.engine.start()
    assert all("does not hold block" in message for message in told_once(served, "a", "b", "c"))


def test_a_backend_that_answers_for_too_few_is_a_failure() -> None:
    served = Served(run=lambda inner, batch: inner.run(batch)[1:])
    for name in "ab":
        served.submit(request_of(name, (0, 1)))
    served.engine.start()
    assert len(told_once(served, "a", "b")) == 2


@pytest.mark.parametrize("when", [Admitted, TokenDrawn, Finished])
def test_a_listener_that_raises_takes_nobody_elses_answer_away(when: type) -> None:
    """It must not raise; should it, the engine fails, and still everybody is told."""

    def raises(event: Event) -> None:
        if isinstance(event, when | Failed):
            raise ZeroDivisionError("in a listener")

    served = Served()
    bad = request_of("bad", (0, 1), output=1)
    served.trial.truth.add(bad)
    served.submit(request_of("a", (0, 1), output=40))
    served.engine.submit(bad, raises)
    served.submit(request_of("b", (0, 1), output=40))
    served.engine.start()
    assert told_once(served, "a", "b") == ["the engine failed: ZeroDivisionError('in a listener')"] * 2


# Stopping


def test_who_runs_and_who_waits_is_told_when_the_engine_stops() -> None:
    gate = Gate()
    served = Served(Shape(sequences_max=1), run=gate)
    served.engine.start()
    served.submit(request_of("a", (0, 1), output=50))
    gate.entered.acquire(timeout=PATIENCE_S)
    served.submit(request_of("b", (0, 1)))
    stopper = threading.Thread(target=served.engine.stop)
    stopper.start()
    with served.engine._wake:
        served.engine._wake.wait_for(lambda: served.engine._stopping, timeout=PATIENCE_S)
    served.submit(request_of("c", (0, 1)))
    gate.open.release()
    stopper.join(PATIENCE_S)
    assert told_once(served, "a", "b", "c") == ["the engine was stopped"] * 3
    assert served.engine.fault is None


def test_after_the_end_callers_are_told_on_their_own_thread() -> None:
    with serving() as served:
        pass
    served.submit(request_of("a", (0, 1)))
    assert [type(event) for event in served.listener.events["a"]] == [Failed]
    assert served.listener.threads == {threading.current_thread().name}
    served.engine.abort(RequestId("a"))
    served.engine.stop()


def test_after_a_failure_and_the_end_callers_are_told_of_the_failure() -> None:
    with serving(run=broken) as served:
        served.submit(request_of("a", (0, 1)))
        served.listener.last("a")
    served.submit(request_of("b", (0, 1)))
    event = served.listener.last("b")
    assert isinstance(event, Failed)
    assert "ZeroDivisionError" in event.message


def test_an_engine_that_was_never_started_tells_those_who_came() -> None:
    served = Served()
    served.submit(request_of("a", (0, 1)))
    served.engine.stop()
    assert [type(event) for event in served.listener.events["a"]] == [Failed]


def test_nobody_who_submits_while_the_engine_stops_is_left_without_an_answer() -> None:
    for _ in range(20):
        served = Served(Shape(waiting_max=10_000))
        served.engine.start()
        with ThreadPoolExecutor(max_workers=4) as threads:
            for number in range(40):
                threads.submit(served.submit, request_of(f"{number}", (0, 1), output=1))
                if number == 20:
                    threads.submit(served.engine.stop)
        assert all(isinstance(served.listener.last(f"{number}"), Finished | Failed) for number in range(40))
        served.engine.stop()


@pytest.mark.parametrize("tokens", [[], [-1], [10**9], [1, 2**40]])
def test_a_prompt_that_cannot_be_is_refused_to_who_asks_and_hurts_nobody(tokens: list[int]) -> None:
    with serving() as served:
        with pytest.raises(RequestError):
            served.engine.standing([TokenId(token) for token in tokens], TenantId("blue"))
        served.submit(request_of("a", (0, 1)))
        assert isinstance(served.listener.last("a"), Finished)
