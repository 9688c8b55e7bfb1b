"""What every clock promises: seconds since a fixed start, never going back, from any thread; and every calendar."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from fakes.clock import HandClock
from fakes.fabric import HandCalendar
from kvist.app.clock import SystemCalendar, SystemClock
from kvist.base.clock import Calendar, Clock

Make = Callable[[], Clock]


@pytest.fixture(params=[SystemClock, HandClock])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes one clock of each implementation."""
    return request.param


class TestClock:
    def test_it_never_goes_back(self, make: Make) -> None:
        clock = make()
        readings = [clock.now_s() for _ in range(10_000)]
        assert readings == sorted(readings)

    def test_it_is_read_in_seconds_as_a_float(self, make: Make) -> None:
        assert type(make().now_s()) is float

    def test_any_thread_may_ask(self, make: Make) -> None:
        clock = make()

        def read(_: int) -> list[float]:
            return [clock.now_s() for _ in range(1_000)]

        with ThreadPoolExecutor(max_workers=4) as threads:
            for readings in threads.map(read, range(4)):
                assert readings == sorted(readings)


def test_the_real_clock_counts_real_seconds() -> None:
    clock = SystemClock()
    outer_s = time.perf_counter()
    begun_s = clock.now_s()
    sum(range(100_000))
    took_s = clock.now_s() - begun_s
    assert 0 < took_s <= time.perf_counter() - outer_s


def test_a_clock_in_the_hand_moves_forward_only() -> None:
    clock = HandClock()
    clock.advance(2.5)
    assert clock.now_s() == 2.5
    with pytest.raises(AssertionError, match="does not go back"):
        clock.advance(-1)


@pytest.fixture(params=[SystemCalendar, HandCalendar])
def calendar(request: pytest.FixtureRequest) -> Calendar:
    """One of each implementation of Calendar."""
    return request.param()


def test_a_calendar_tells_seconds_to_any_thread(calendar: Calendar) -> None:
    with ThreadPoolExecutor(max_workers=4) as threads:
        found = list(threads.map(lambda _: calendar.now_unix_s(), range(100)))
    assert {type(each) for each in found} == {float}
    assert min(found) > 0


def test_the_real_calendar_tells_the_system_s_time() -> None:
    before_s = datetime.now(UTC).timestamp()
    now_s = SystemCalendar().now_unix_s()
    assert before_s - 0.001 <= now_s <= datetime.now(UTC).timestamp() + 0.001  # one of the two counts microseconds
