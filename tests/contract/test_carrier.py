"""What control may rely on from every Carrier: Movers, which has threads, and the tests' HandMovers, which has none."""

import threading
from collections.abc import Callable, Iterator

import pytest

from fakes.clock import HandClock
from fakes.fabric import BLUE, NAMESPACE, HandMovers, Unlent
from fakes.tiers import DictTier
from kvist.base.errors import TierError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.form import Form, Header, Part, Plane
from kvist.blocks.keys import BlockKey
from kvist.fabric.carry import Reach
from kvist.fabric.jobs import (
    Answered,
    Broken,
    Changed,
    DeleteJob,
    FindJob,
    Job,
    KeepJob,
    Listed,
    ListJob,
    Loaded,
    LoadJob,
    LoadOrder,
    Report,
    Skipped,
    Stamped,
    StampJob,
    StoreJob,
    StoreOrder,
    Written,
)
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.movers import Movers, MoverSettings
from kvist.fabric.ports import Carrier
from kvist.tiers.ports import Absent, Address, Found, Stored, Tier
from kvist.tiers.regions import Buffer, Region, RegionId, Regions

FORM = Form(planes=(Plane("k", "float32", (16,)),), part=Part(0, 1, 0, 1))
SIZE = FORM.record_bytes
POOL = TierName("pool")
QUEUE = 4


class Gate(Unlent):
    """A tier whose calls wait until the gate is open, and tell that they have come."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier)
        self.come = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()
        self.delete = self._delete

    def _delete(self, addresses: list[Address]) -> list[bool]:
        self.come.release()
        assert self.open.wait(30)
        return [True for _ in addresses]


class Desk:
    """A carrier under test, what it reported, and how to let it work."""

    def __init__(self, make: Callable[[Reach], Carrier]) -> None:
        self.regions = Regions()
        self.regions.add(Region(RegionId("staging"), 8 * SIZE))
        self.tier = Gate(DictTier("pool"))
        self.carrier = make(Reach(tiers={POOL: self.tier}, regions=self.regions, clock=HandClock()))
        self.reports: list[Report] = []
        self._changed = threading.Condition()
        self.carrier.start(self._report)

    def _report(self, report: Report) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def settle(self, reports: int) -> list[Report]:
        """Waits for so many reports, and gives them."""
        if isinstance(self.carrier, HandMovers):
            self.carrier.do_all()
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.reports) >= reports, 30), self.reports
            return list(self.reports)

    def do(self, job: Job) -> Report:
        """Has one job done."""
        before = len(self.reports)
        assert self.carrier.submit(job)
        reports = self.settle(before + 1)
        assert len(reports) == before + 1
        assert reports[-1].ticket == job.ticket
        return reports[-1]


def threaded(reach: Reach) -> Carrier:
    return Movers(reach, MoverSettings(queue_jobs=QUEUE))


def by_hand(reach: Reach) -> Carrier:
    return HandMovers(reach, queue_jobs=QUEUE)


@pytest.fixture(params=[threaded, by_hand])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(request.param)
    yield made
    made.tier.open.set()
    assert made.carrier.close(30)
    made.regions.close()


def address(number: int) -> Address:
    key = BlockKey(NAMESPACE, GroupId(0), "prefix", BlockHash(bytes([number]) * 32))
    return Address(key=key, tenant=BLUE)


def buffer(number: int) -> Buffer:
    return Buffer(region=RegionId("staging"), offset=number * SIZE, length=SIZE)


def deletion(ticket: int) -> DeleteJob:
    return DeleteJob(ticket=Ticket(ticket), tier=POOL, addresses=(address(ticket),))


def test_every_kind_of_job_is_done_and_reported_once(desk: Desk) -> None:
    header = Header(key=address(1).key, tenant=BLUE, form=FORM, first_position=0, tokens_valid=16, created_unix_s=5.0)
    stamped = desk.do(StampJob(ticket=Ticket(1), orders=((buffer(0), header),)))
    assert isinstance(stamped, Stamped)
    order = StoreOrder(address=address(1), buffer=buffer(0), created_unix_s=5.0, expires_unix_s=None)
    written = desk.do(StoreJob(ticket=Ticket(2), tier=POOL, evicted=(), orders=(order,)))
    assert isinstance(written, Written)
    assert list(written.outcomes) == [Stored()]
    found = desk.do(
        FindJob(
            ticket=Ticket(3),
            tier=POOL,
            tenant=BLUE,
            namespace=NAMESPACE,
            groups=((GroupId(0), [address(2).key.hash, address(1).key.hash]),),
        )
    )
    assert isinstance(found, Answered)
    assert [list(group) for group in found.found] == [[False, True]]
    orders = (LoadOrder(address(1), FORM, buffer(1)), LoadOrder(address(2), FORM, buffer(2)))
    loaded = desk.do(LoadJob(ticket=Ticket(4), tier=POOL, orders=orders, deadline_s=1.0))
    assert isinstance(loaded, Loaded)
    assert list(loaded.outcomes) == [Found(), Absent()]
    assert desk.regions.view(buffer(0)) == desk.regions.view(buffer(1))
    kept = desk.do(
        KeepJob(ticket=Ticket(5), tier=POOL, addresses=(address(1), address(2)), pinned=True, expires_unix_s=None)
    )
    assert isinstance(kept, Changed)
    assert list(kept.present) == [True, False]
    listed = desk.do(ListJob(ticket=Ticket(6), tier=POOL, tenant=BLUE, listing=Ticket(6), most=9))
    assert isinstance(listed, Listed)
    assert [entry.address for entry in listed.entries] == [address(1)]
    assert isinstance(desk.do(deletion(7)), Changed)


def test_a_load_that_comes_to_its_turn_too_late_never_begins(desk: Desk) -> None:
    job = LoadJob(ticket=Ticket(1), tier=POOL, orders=(LoadOrder(address(1), FORM, buffer(0)),), deadline_s=0.0)
    assert isinstance(desk.do(job), Skipped)


def test_a_tier_that_fails_and_a_job_that_makes_no_sense_are_reported(desk: Desk) -> None:
    desk.tier.close()
    broken = desk.do(ListJob(ticket=Ticket(1), tier=POOL, tenant=None, listing=Ticket(1), most=1))
    assert isinstance(broken, Broken)
    assert isinstance(broken.error, TierError)
    nowhere = Buffer(region=RegionId("nowhere"), offset=0, length=SIZE)
    header = Header(key=address(1).key, tenant=BLUE, form=FORM, first_position=0, tokens_valid=16, created_unix_s=5.0)
    surprise = desk.do(StampJob(ticket=Ticket(2), orders=((nowhere, header),)))
    assert isinstance(surprise, Broken)
    assert "nowhere" in str(surprise.error)


def fill(desk: Desk) -> int:
    """Has one deletion begin and not end, and fills the lane behind it; how many jobs there are."""
    desk.tier.open.clear()
    assert desk.carrier.submit(deletion(1))
    begun = 0
    if isinstance(desk.carrier, Movers):
        assert desk.tier.come.acquire(timeout=30)
        begun = 1
    for ticket in range(2, 2 + QUEUE - 1 + begun):
        assert desk.carrier.submit(deletion(ticket))
    return QUEUE + begun


def test_a_lane_that_is_full_takes_no_more_and_changes_keep_their_order(desk: Desk) -> None:
    jobs = fill(desk)
    assert not desk.carrier.submit(deletion(99))
    listing = ListJob(ticket=Ticket(50), tier=POOL, tenant=None, listing=Ticket(50), most=1)
    assert desk.carrier.submit(listing), "another lane"
    desk.tier.open.set()
    reports = desk.settle(jobs + 1)
    changes = [report.ticket for report in reports if report.ticket != 50]
    assert changes == list(range(1, jobs + 1))


def test_what_has_not_begun_can_be_taken_back_and_is_never_reported(desk: Desk) -> None:
    jobs = fill(desk)
    assert desk.carrier.withdraw(Ticket(3))
    assert not desk.carrier.withdraw(Ticket(3))
    assert not desk.carrier.withdraw(Ticket(77))
    desk.tier.open.set()
    assert 3 not in {report.ticket for report in desk.settle(jobs - 1)}


def test_closing_skips_what_waits_and_takes_nothing_more(desk: Desk) -> None:
    jobs = fill(desk)
    if isinstance(desk.carrier, Movers):
        assert not desk.carrier.close(0.0), "one job hangs"
    else:
        assert desk.carrier.close(0.0)
    assert not desk.carrier.submit(deletion(98))
    desk.tier.open.set()
    reports = desk.settle(jobs)
    assert sorted(report.ticket for report in reports) == list(range(1, jobs + 1))
    assert sum(isinstance(report, Skipped) for report in reports) == QUEUE
    assert desk.carrier.close(30)
