import pytest

from fakes.clock import HandClock
from kvist.base.errors import ConfigError
from kvist.fabric.breaker import Breaker, BreakerSettings

SETTINGS = BreakerSettings(failures_max=3, pause_s=1.0, pause_factor=2.0, pause_s_max=5.0)


def opened(at_s: float = 0.0) -> Breaker:
    """A breaker that three failures have just opened."""
    breaker = Breaker(SETTINGS)
    for _ in range(3):
        breaker.failed(at_s)
    return breaker


def test_a_tier_that_works_is_used() -> None:
    breaker = Breaker()
    for _ in range(100):
        assert breaker.allow(0.0)
        breaker.succeeded(0.0)
    assert breaker.state(0.0) == "closed"


def test_failures_open_it_only_when_they_are_in_a_row() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(10):
        breaker.failed(0.0)
        breaker.timed_out(0.0)
        breaker.succeeded(0.0)
    assert breaker.state(0.0) == "closed"
    breaker.failed(0.0)
    breaker.timed_out(0.0)
    assert breaker.allow(0.0)
    breaker.failed(0.0)
    assert breaker.state(0.0) == "open"
    assert not breaker.allow(0.0)


def test_staging_that_it_used_up_opens_it_at_once_and_once() -> None:
    breaker = Breaker(SETTINGS)
    breaker.exhausted_staging(7.0)
    breaker.exhausted_staging(7.5)
    assert breaker.statistics(7.5).state == "open"
    assert (breaker.statistics(7.5).opened, breaker.statistics(7.5).retry_s) == (1, 8.0)


def test_after_the_pause_one_job_is_let_through_and_its_success_closes_it() -> None:
    breaker = opened()
    assert not breaker.would_allow(0.999)
    assert breaker.state(1.0) == "half-open"
    assert breaker.would_allow(1.0)
    assert breaker.allow(1.0)
    assert not breaker.would_allow(1.0)
    assert not breaker.allow(1.1)
    assert breaker.state(1.1) == "half-open"
    breaker.succeeded(1.2)
    assert breaker.state(1.2) == "closed"
    assert breaker.allow(1.2)


def test_while_trials_fail_the_pauses_grow_up_to_a_bound_and_a_success_makes_them_short_again() -> None:
    breaker, clock, pauses = opened(), HandClock(), []
    for _ in range(5):
        begin = clock.now_s()
        while not breaker.allow(clock.now_s()):
            clock.advance(0.25)
        pauses.append(clock.now_s() - begin)
        breaker.failed(clock.now_s())
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]
    clock.advance(5.0)
    assert breaker.allow(clock.now_s())
    breaker.succeeded(clock.now_s())
    breaker.exhausted_staging(clock.now_s())
    assert breaker.statistics(clock.now_s()).retry_s == clock.now_s() + 1.0


def test_a_trial_that_is_never_heard_of_does_not_keep_it_shut() -> None:
    breaker = opened()
    assert breaker.allow(1.0)
    assert not breaker.allow(1.9)
    assert breaker.allow(2.0)
    breaker.succeeded(2.5)
    assert breaker.state(2.5) == "closed"


def test_what_ends_while_it_is_open_changes_nothing() -> None:
    breaker = opened()
    breaker.succeeded(0.5)
    breaker.failed(0.5)
    assert breaker.statistics(0.5).retry_s == 1.0
    assert breaker.state(0.5) == "open"


def test_statistics_tell_what_happened() -> None:
    seen = opened(3.0).statistics(3.5)
    assert (seen.state, seen.opened, seen.failures, seen.retry_s) == ("open", 1, 3, 4.0)
    assert Breaker().statistics(0.0).retry_s is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"failures_max": 0},
        {"pause_s": 0.0},
        {"pause_s": float("nan")},
        {"pause_s": 61.0},
        {"pause_s_max": float("inf")},
        {"pause_factor": 0.5},
        {"pause_factor": float("nan")},
    ],
)
def test_settings_that_would_never_open_or_never_close_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        BreakerSettings(**wrong)
