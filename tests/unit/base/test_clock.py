"""The clock is a port: something that can be owned by a test, with one question and no other."""

from collections.abc import Callable

from fakes.clock import HandClock
from kvist.base.clock import Clock


def measure(clock: Clock, work: Callable[[], None]) -> float:
    """Seconds that `work` takes by this clock."""
    begun_s = clock.now_s()
    work()
    return clock.now_s() - begun_s


def test_whoever_owns_the_clock_owns_the_time() -> None:
    clock = HandClock(100.0)
    assert measure(clock, lambda: clock.advance(2.5)) == 2.5
    assert measure(clock, lambda: None) == 0


def test_the_port_asks_one_question() -> None:
    assert [name for name in vars(Clock) if not name.startswith("_")] == ["now_s"]
