"""The clock is a port: something that can be owned by a test, with one question and no other."""

from collections.abc import Callable

from kvist.base.clock import Clock


class HandClock:
    """A clock that goes where its owner puts it."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


def measure(clock: Clock, work: Callable[[], None]) -> float:
    """Seconds that `work` takes by this clock."""
    begun_s = clock.now_s()
    work()
    return clock.now_s() - begun_s


def test_whoever_owns_the_clock_owns_the_time() -> None:
    clock = HandClock()

    def work() -> None:
        clock.time_s += 2.5

    assert measure(clock, work) == 2.5


def test_the_port_asks_one_question() -> None:
    assert [name for name in vars(Clock) if not name.startswith("_")] == ["now_s"]
