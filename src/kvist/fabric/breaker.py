"""Leaves a tier alone that fails or hangs, and tries it again by itself.

Knows outcomes and the time it is given; does not know what was asked of the tier.

    closed ── failures in a row, or staging used up ──▶ open ── pause over ──▶ half-open ── a success ──▶ closed
                                                          ▲                        │
                                                          └─ a failure: the next pause is longer ─┘

Laws:
    * An open breaker lets nothing through; a half-open one lets one job through, and another one only when the first
      was not heard of for a whole pause, so that a trial that is lost keeps nothing shut.
    * No pause is longer than `pause_s_max`.
"""

from dataclasses import dataclass
from typing import Literal

from kvist.base.errors import ConfigError

BreakerState = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When to leave a tier alone, and for how long.

    Attributes:
        failures_max: failures and time-outs in a row that open it.
        pause_s: the first pause.
        pause_factor: by which each pause is longer than the one before, as long as trials fail.
        pause_s_max: the longest one.
    """

    failures_max: int = 3
    pause_s: float = 1.0
    pause_factor: float = 2.0
    pause_s_max: float = 60.0

    def __post_init__(self) -> None:
        if self.failures_max < 1:
            raise ConfigError(f"failures_max is {self.failures_max}; it must be at least 1")
        if not 0 < self.pause_s <= self.pause_s_max < float("inf"):  # NaN compares false and ends here too
            raise ConfigError(
                f"pause_s is {self.pause_s}; it must be above 0 and at most pause_s_max, {self.pause_s_max}"
            )
        if not 1 <= self.pause_factor < float("inf"):
            raise ConfigError(f"pause_factor is {self.pause_factor}; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatistics:
    """A snapshot of one breaker.

    Attributes:
        state: at the time that was asked for.
        opened: how many times it opened.
        failures: in a row, up to now.
        retry_s: when it lets a job through again, by the caller's clock; None while it is closed.
    """

    state: BreakerState
    opened: int
    failures: int
    retry_s: float | None


class Breaker:
    """One tier's; starts closed. Times are seconds of one monotonic clock.

    Outcomes are those of jobs that ended in time and of those given up; a job that was given up and ends later is
    reported once, as timed out.
    """

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._failures = 0
        self._opened = 0
        self._pause_s = self._settings.pause_s
        self._retry_s: float | None = None  # None: closed
        self._is_trying = False

    def state(self, now_s: float) -> BreakerState:
        """Whether it is closed, open, or lets one job through to try."""
        if self._retry_s is None:
            return "closed"
        return "half-open" if self._is_trying or now_s >= self._retry_s else "open"

    def would_allow(self, now_s: float) -> bool:
        """Whether `allow` would say yes; for planning, since it takes nothing."""
        return self._retry_s is None or now_s >= self._retry_s

    def allow(self, now_s: float) -> bool:
        """Whether a job may be submitted now. A yes of a half-open breaker is the trial, so ask only to submit."""
        if not self.would_allow(now_s):
            return False
        if self._retry_s is not None:
            self._is_trying = True
            self._retry_s = now_s + self._pause_s
        return True

    def succeeded(self, now_s: float) -> None:
        """A job ended well and in time. Closes a half-open breaker; an open one waits for its trial."""
        if self.state(now_s) == "open":
            return
        self._failures = 0
        self._pause_s = self._settings.pause_s
        self._retry_s = None
        self._is_trying = False

    def failed(self, now_s: float) -> None:
        """A job failed as a whole."""
        self._failures += 1
        if self.state(now_s) == "half-open" or (
            self._retry_s is None and self._failures >= self._settings.failures_max
        ):
            self._open(now_s)

    def timed_out(self, now_s: float) -> None:
        """A job was given up because its deadline passed; as bad as a failure."""
        self.failed(now_s)

    def exhausted_staging(self, now_s: float) -> None:
        """Staging ran out because of jobs that do not come back; opens at once."""
        if self.state(now_s) != "open":
            self._failures += 1
            self._open(now_s)

    def statistics(self, now_s: float) -> BreakerStatistics:
        """A frozen snapshot."""
        return BreakerStatistics(
            state=self.state(now_s), opened=self._opened, failures=self._failures, retry_s=self._retry_s
        )

    def _open(self, now_s: float) -> None:
        if self._retry_s is not None:  # it was being tried
            self._pause_s = min(self._settings.pause_s_max, self._pause_s * self._settings.pause_factor)
        self._opened += 1
        self._retry_s = now_s + self._pause_s
        self._is_trying = False
