"""Jobs and their reports: who is told, what it says about a tier's health, and which lane hangs."""

import pytest

from fakes.clock import HandClock
from fakes.fabric import BLUE, NAMESPACE, HandMovers
from fakes.tiers import DictTier
from kvist.base.errors import KvistError, TierFullError, TierTimeoutError
from kvist.fabric.carry import Reach
from kvist.fabric.dispatch import Dispatch
from kvist.fabric.jobs import Broken, Changed, DeleteJob, FindJob, Job, ListJob, Report, Skipped, StoreJob
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.settings import TierSettings
from kvist.fabric.tier_state import FULL_PAUSE_S, TierState
from kvist.tiers.regions import Regions

POOL = TierName("pool")


class Post:
    """A dispatch over movers by hand, and what its callers were told."""

    def __init__(self) -> None:
        self.movers = HandMovers(Reach(tiers={POOL: DictTier("pool")}, regions=Regions(), clock=HandClock()))
        self.dispatch = Dispatch(self.movers, stall_s=2.0)
        self.movers.start(lambda report: self.dispatch.report(report, self.now_s))
        self.tier = TierState(TierSettings(name=POOL, kind="pool"), known_max=8, bytes_share=100)
        self.told: list[Report] = []
        self.now_s = 0.0

    def send(self, *, nbytes: int = 0) -> Job | None:
        """Sends a deletion; None: it was not taken."""
        job = DeleteJob(ticket=self.dispatch.new_ticket(), tier=POOL, addresses=())
        taken = self.dispatch.send(job, self.tier, self.told.append, now_s=self.now_s, nbytes=nbytes)
        return job if taken else None

    def fail_to_store(self, error: KvistError) -> bool:
        """Sends a store that fails so; False: it was not taken."""
        job = StoreJob(ticket=self.dispatch.new_ticket(), tier=POOL, evicted=(), orders=())
        if not self.dispatch.send(job, self.tier, self.told.append, now_s=self.now_s):
            return False
        assert self.movers.withdraw(job.ticket)
        self.dispatch.report(Broken(ticket=job.ticket, error=error), self.now_s)
        return True

    def fail(self, error: KvistError) -> None:
        """Sends a deletion that fails so."""
        job = self.send()
        assert job is not None
        assert self.movers.withdraw(job.ticket)
        self.dispatch.report(Broken(ticket=job.ticket, error=error), self.now_s)


def test_whoever_sent_a_job_is_told_once_and_bytes_are_counted_until_then() -> None:
    post = Post()
    assert post.send(nbytes=7) is not None
    assert (post.tier.bytes_writing, post.tier.bytes_reading) == (7, 0)
    assert len(post.dispatch.live()) == 1
    post.movers.do_all()
    assert [type(report) for report in post.told] == [Changed]
    assert (post.tier.bytes_writing, post.dispatch.live()) == (0, set())


def test_a_report_that_nobody_waits_for_is_counted_and_harms_nothing() -> None:
    post = Post()
    post.dispatch.report(Changed(ticket=Ticket(77), present=()), 0.0)
    assert post.dispatch.surprises == 1


@pytest.mark.parametrize(
    "error", [TierTimeoutError("late", tier="pool"), TierFullError("full", tier="pool"), KvistError("?")]
)
def test_failures_in_a_row_open_the_breaker_of_their_lane_alone(error: KvistError) -> None:
    post = Post()
    for _ in range(3):
        post.fail(error)
    assert post.send() is None
    assert post.tier.writes.state(0.0) == "open"
    assert post.tier.reads.state(0.0) == post.tier.asks.state(0.0) == "closed"
    question = FindJob(ticket=post.dispatch.new_ticket(), tier=POOL, tenant=BLUE, namespace=NAMESPACE, groups=())
    assert post.dispatch.send(question, post.tier, post.told.append, now_s=0.0)


def test_a_tier_without_room_is_not_ill_and_is_offered_something_once_a_second() -> None:
    post = Post()
    for attempt in range(20):
        post.now_s = attempt * FULL_PAUSE_S
        assert post.tier.writable(post.now_s)
        assert post.fail_to_store(TierFullError("full", tier="pool"))
        assert not post.tier.writable(post.now_s)
        assert not post.tier.writable(post.now_s + 0.99 * FULL_PAUSE_S)
        assert post.tier.readable(post.now_s)
        assert post.send() is not None, "what frees room is done"
        post.movers.do_all()
    assert post.tier.writes.statistics(post.now_s).opened == 0


def test_a_trial_that_finds_no_room_finds_a_tier_that_answers() -> None:
    post = Post()
    for _ in range(3):
        assert post.fail_to_store(TierTimeoutError("late", tier="pool"))
    assert not post.fail_to_store(TierFullError("full", tier="pool"))
    post.now_s = 1.0
    assert post.fail_to_store(TierFullError("full", tier="pool"))
    assert post.tier.writes.state(1.0) == "closed"


def test_what_is_withdrawn_is_skipped_and_says_nothing_about_the_tier() -> None:
    post = Post()
    for _ in range(5):
        job = post.send(nbytes=3)
        assert job is not None
        assert post.dispatch.withdraw(job.ticket, 0.0)
        assert not post.dispatch.withdraw(job.ticket, 0.0)
    assert [type(report) for report in post.told] == [Skipped] * 5
    assert (post.tier.bytes_writing, post.tier.writes.state(0.0)) == (0, "closed")


def test_a_lane_without_progress_hangs_its_breaker_opens_and_what_waits_comes_back() -> None:
    post = Post()
    hung = post.send(nbytes=5)
    assert hung is not None
    post.movers.begin(hung)
    post.now_s = 1.0
    assert post.send(nbytes=5) is not None
    post.dispatch.watch(1.9)
    assert post.tier.writes.state(1.9) == "closed"
    post.dispatch.watch(2.2)
    assert post.tier.writes.state(2.2) == "open"
    assert [type(report) for report in post.told] == [Skipped]
    assert post.tier.bytes_writing == 5, "what is under way keeps its bytes"
    post.now_s = 2.3
    post.movers.do(hung)
    assert (post.tier.bytes_writing, post.tier.writes.state(2.3)) == (0, "open"), "too late to count as a success"


def test_a_lane_that_ends_jobs_is_slow_and_does_not_hang() -> None:
    post = Post()
    for _ in range(6):
        assert post.send() is not None
    for second in range(5):
        post.now_s = second * 1.5
        post.dispatch.watch(post.now_s)
        post.movers.do(post.movers.waiting[0])
    assert post.tier.writes.state(post.now_s) == "closed"


def test_when_staging_runs_out_the_tier_that_does_not_get_on_is_to_blame_sooner() -> None:
    post = Post()
    hung = post.send(nbytes=50)
    assert hung is not None
    post.movers.begin(hung)
    post.dispatch.starved()
    post.dispatch.watch(0.1)
    assert post.tier.writes.state(0.1) == "closed", "it has only just begun"
    post.dispatch.starved()
    post.dispatch.watch(0.6)
    assert post.tier.writes.state(0.6) == "open"


def test_a_job_is_blamed_once() -> None:
    post = Post()
    job = post.send()
    assert job is not None
    for _ in range(9):
        post.dispatch.blame(job.ticket, 0.0)
    assert post.tier.writes.state(0.0) == "closed"
    assert post.tier.writes.statistics(0.0).failures == 1
    post.dispatch.blame(Ticket(77), 0.0)


def test_a_lane_of_listings_is_never_hung_and_takes_the_blame_for_nothing() -> None:
    post = Post()
    ticket = post.dispatch.new_ticket()
    job = ListJob(ticket=ticket, tier=POOL, tenant=None, listing=ticket, most=9)
    assert post.dispatch.send(job, post.tier, post.told.append, now_s=0.0)
    post.movers.begin(job)
    assert post.dispatch.next_watch_s() is None
    for now_s in (1.0, 100.0, 10_000.0):
        post.dispatch.starved()
        post.dispatch.watch(now_s)
    tier = post.tier
    assert {each.state(10_000.0) for each in (tier.asks, tier.reads, tier.writes)} == {"closed"}
    for _ in range(9):
        ticket = post.dispatch.new_ticket()
        again = ListJob(ticket=ticket, tier=POOL, tenant=None, listing=ticket, most=9)
        if post.dispatch.send(again, post.tier, post.told.append, now_s=10_000.0):
            post.dispatch.report(Broken(ticket=ticket, error=TierTimeoutError("late", tier="pool")), 10_000.0)
    assert {each.state(10_000.0) for each in (tier.asks, tier.reads, tier.writes)} == {"closed"}
