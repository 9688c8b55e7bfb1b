"""`kvist.fabric.breaker` under every order of jobs, outcomes, losses and waits."""

from collections import Counter
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from depth import run_state_machine_until
from fakes.clock import HandClock
from kvist.fabric.breaker import Breaker, BreakerSettings


class BreakerMachine(RuleBasedStateMachine):
    """Keeps, beside the breaker, what the world saw of it: jobs let through, and failures in a row."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(failures_max=st.integers(1, 4), pause_s=st.sampled_from([0.5, 1.0]), factor=st.sampled_from([1.0, 2.0]))
    def begin(self, failures_max: int, pause_s: float, factor: float) -> None:
        self.settings = BreakerSettings(
            failures_max=failures_max, pause_s=pause_s, pause_factor=factor, pause_s_max=4 * pause_s
        )
        self.breaker, self.clock = Breaker(self.settings), HandClock()
        self.jobs = 0
        self.in_a_row = 0
        self.shut_since_s: float | None = None
        self.last_trial_s = -1e9

    def now_s(self) -> float:
        return self.clock.now_s()

    @rule(by_s=st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.0, 4.0]))
    def wait(self, by_s: float) -> None:
        self.clock.advance(by_s)

    @rule()
    def submit(self) -> None:
        before, expected = self.breaker.state(self.now_s()), self.breaker.would_allow(self.now_s())
        allowed = self.breaker.allow(self.now_s())
        assert allowed == expected
        assert before != "open" or not allowed
        assert before != "closed" or allowed
        if before == "half-open" and allowed:
            assert self.now_s() - self.last_trial_s >= self.settings.pause_s, "two trials at once"
            self.last_trial_s = self.now_s()
            self.seen["trial"] += 1
        self.seen[before if allowed else "refused"] += 1
        self.jobs += allowed

    @precondition(lambda self: self.jobs > 0)
    @rule()
    def succeed(self) -> None:
        before = self.breaker.state(self.now_s())
        self.breaker.succeeded(self.now_s())
        self.jobs -= 1
        if before != "open":
            assert self.breaker.state(self.now_s()) == "closed"
            self.in_a_row, self.last_trial_s = 0, -1e9
        if before == "half-open":
            self.seen["trial succeeded"] += 1

    @precondition(lambda self: self.jobs > 0)
    @rule(timed_out=st.booleans())
    def fail(self, timed_out: bool) -> None:
        before = self.breaker.state(self.now_s())
        (self.breaker.timed_out if timed_out else self.breaker.failed)(self.now_s())
        self.jobs -= 1
        self.in_a_row += 1
        opens = before != "closed" or self.in_a_row >= self.settings.failures_max
        assert self.breaker.state(self.now_s()) == ("open" if opens else "closed")
        self.seen["trial failed" if before == "half-open" else "opened" if opens else "failed"] += 1

    @precondition(lambda self: self.jobs > 0)
    @rule()
    def lose(self) -> None:
        """A job ends and nobody reports it."""
        self.jobs -= 1

    @rule()
    def exhaust(self) -> None:
        self.breaker.exhausted_staging(self.now_s())
        assert self.breaker.state(self.now_s()) == "open"
        self.in_a_row += 1

    @invariant()
    def it_is_never_shut_for_longer_than_the_longest_pause(self) -> None:
        retry_s = self.breaker.statistics(self.now_s()).retry_s
        assert retry_s is None or retry_s <= self.now_s() + self.settings.pause_s_max
        assert self.breaker.would_allow(self.now_s() + self.settings.pause_s_max)


def test_a_breaker_keeps_its_laws() -> None:
    BreakerMachine.seen.clear()
    seen = BreakerMachine.seen
    tried = ("trial", "trial succeeded", "trial failed", "closed", "refused", "opened")
    run_state_machine_until(lambda: min(seen[each] for each in tried) >= 20, BreakerMachine, max_examples=150, steps=40)
