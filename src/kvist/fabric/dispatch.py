"""Sends jobs and takes their reports: knows who waits for which, how each tier is doing, and which one hangs.

Every job that was sent is here until its report has come; only then is what it holds given up. A lane that has jobs and
ends none for `stall_s` is hung: its breaker opens, and the jobs that wait there are taken back. Not so a lane of
listings: going through a large tier takes as long as it takes, and whoever waits for it has a time-out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from kvist.base.errors import TierFullError, TierTimeoutError
from kvist.fabric.breaker import Breaker
from kvist.fabric.jobs import Broken, Job, Lane, Report, Skipped, StampJob, StoreJob, lane_of
from kvist.fabric.messages import Ticket
from kvist.fabric.ports import Carrier
from kvist.fabric.tier_state import FULL_PAUSE_S, TierState

Done = Callable[[Report], None]


@dataclass(slots=True, kw_only=True, eq=False)
class _Traffic:
    """The jobs of one lane of one tier, oldest first, and when it last ended one or began from nothing."""

    tier: TierState
    breaker: Breaker
    lane: Lane
    jobs: dict[Ticket, "_Sent"] = field(default_factory=dict)
    progress_s: float = 0.0

    def stands_still(self, now_s: float, longest_s: float) -> bool:
        """Whether it has ended nothing for so long, and should have."""
        return self.lane != "list" and bool(self.jobs) and now_s - self.progress_s >= longest_s

    def holds(self, more: int) -> None:
        """The lane's jobs keep so many more bytes of staging busy."""
        if self.lane == "change":
            self.tier.bytes_writing += more
        else:
            self.tier.bytes_reading += more


@dataclass(slots=True, kw_only=True, eq=False)
class _Sent:
    job: Job
    traffic: _Traffic | None
    nbytes: int
    done: Done
    blamed: bool = False


class Dispatch:
    """The jobs that run. Called under control's lock; nothing here blocks.

    Attributes:
        surprises: reports of jobs that nobody had sent.
    """

    def __init__(self, carrier: Carrier, *, stall_s: float) -> None:
        """Sends through `carrier`, once it has been started."""
        self._carrier = carrier
        self._stall_s = stall_s
        self._tickets = count(1)
        self._sent: dict[Ticket, _Sent] = {}
        self._lanes: dict[tuple[str, Lane], _Traffic] = {}
        self._watch_s = 0.0
        self._is_starved = False
        self.surprises = 0

    def new_ticket(self) -> Ticket:
        """One that was never used."""
        return Ticket(next(self._tickets))

    def live(self) -> set[Ticket]:
        """Tickets of jobs that have not been reported."""
        return set(self._sent)

    def send(self, job: Job, tier: TierState | None, done: Done, *, now_s: float, nbytes: int = 0) -> bool:
        """Hands a job to the movers; False: not now, and nothing has changed.

        Args:
            job: with a ticket of its own.
            tier: on which it works; None: stamping.
            done: called with its report, under the lock, later.
            now_s: monotonic.
            nbytes: of staging that it keeps busy.
        """
        traffic = None if tier is None else self._traffic(tier, job)
        if traffic is not None and not traffic.breaker.allow(now_s):
            return False
        if not self._carrier.submit(job):
            return False  # if this was a breaker's trial, another one is allowed after a pause
        sent = self._sent[job.ticket] = _Sent(job=job, traffic=traffic, nbytes=nbytes, done=done)
        if traffic is not None:
            traffic.progress_s = traffic.progress_s if traffic.jobs else now_s
            traffic.jobs[job.ticket] = sent
            traffic.holds(nbytes)
        return True

    def report(self, report: Report, now_s: float) -> None:
        """Learns from a report how the tier is doing, and passes it to who waits for it."""
        sent = self._sent.pop(report.ticket, None)
        if sent is None:
            self.surprises += 1
            return
        if sent.traffic is not None:
            del sent.traffic.jobs[report.ticket]
            sent.traffic.holds(-sent.nbytes)
            if not isinstance(report, Skipped):
                sent.traffic.progress_s = now_s
            if not sent.blamed:
                _judge(sent.traffic, sent.job, report, now_s)
        sent.done(report)

    def blame(self, ticket: Ticket, now_s: float) -> None:
        """The job is later than it may be: its tier has timed out, once."""
        sent = self._sent.get(ticket)
        if sent is not None and sent.traffic is not None and not sent.blamed:
            sent.blamed = True
            sent.traffic.breaker.timed_out(now_s)

    def withdraw(self, ticket: Ticket, now_s: float) -> bool:
        """Takes a job back if it has not begun; it is then done, as skipped."""
        if not self._carrier.withdraw(ticket):
            return False
        self.report(Skipped(ticket=ticket), now_s)
        return True

    def watch(self, now_s: float) -> None:
        """Looks for lanes that hang; cheap when called often."""
        if self._is_starved:
            self._is_starved = False
            self._blame_for_staging(now_s)
        if now_s < self._watch_s:
            return
        self._watch_s = now_s + self._stall_s / 8
        for traffic in list(self._lanes.values()):
            if traffic.stands_still(now_s, self._stall_s):
                self._open(traffic, now_s)

    def starved(self) -> None:
        """Staging has run out: the next `watch` looks at once for who is to blame."""
        self._is_starved = True

    def next_watch_s(self) -> float | None:
        """When a lane may be found to hang; None: there are no jobs."""
        watched = (each for each in self._lanes.values() if each.jobs and each.lane != "list")
        return min((each.progress_s + self._stall_s for each in watched), default=None)

    def _blame_for_staging(self, now_s: float) -> None:
        """Of the tiers whose jobs do not get on, the one that holds most of it is to blame."""
        slow = [each for each in self._lanes.values() if each.stands_still(now_s, self._stall_s / 4)]
        if slow:
            self._open(max(slow, key=lambda each: sum(sent.nbytes for sent in each.jobs.values())), now_s)

    def _open(self, traffic: _Traffic, now_s: float) -> None:
        if all(sent.blamed for sent in traffic.jobs.values()):
            return  # what hangs has opened the breaker before, and must not do so again whenever somebody looks
        for sent in traffic.jobs.values():
            sent.blamed = True
        if traffic.breaker.state(now_s) == "half-open":
            traffic.breaker.timed_out(now_s)
        else:
            traffic.breaker.exhausted_staging(now_s)
        for ticket in list(traffic.jobs):
            self.withdraw(ticket, now_s)

    def _traffic(self, tier: TierState, job: Job) -> _Traffic:
        assert not isinstance(job, StampJob), "stamping is no tier's work"
        lane = lane_of(job)
        traffic = self._lanes.get((tier.name, lane))
        if traffic is None:
            breakers: dict[Lane, Breaker] = {"ask": tier.asks, "read": tier.reads, "change": tier.writes}
            # A listing that fails is no reason to leave the tier alone otherwise.
            breaker = breakers.get(lane) or Breaker()
            traffic = self._lanes[tier.name, lane] = _Traffic(tier=tier, breaker=breaker, lane=lane)
        return traffic


def _judge(traffic: _Traffic, job: Job, report: Report, now_s: float) -> None:
    """What the report of a job that was not late says about its tier's health."""
    breaker = traffic.breaker
    if isinstance(report, Broken):
        if isinstance(report.error, TierFullError) and isinstance(job, StoreJob):
            # It answers, and is well: only it must not be asked to store too often. What frees room goes on.
            traffic.tier.full_until_s = now_s + FULL_PAUSE_S
            breaker.succeeded(now_s)
        elif isinstance(report.error, TierTimeoutError):
            breaker.timed_out(now_s)
        else:
            breaker.failed(now_s)
    elif not isinstance(report, Skipped):
        breaker.succeeded(now_s)
