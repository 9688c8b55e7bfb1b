"""The fabric under whatever engines, tiers, clocks and operators may do, in any order, with faults from a seed.

Movers do one job when they are told to, so that every interleaving of control, reports and deadlines can be tried. What
lands is compared with what was stored; after every step everything adds up, and at the end nothing is left.
"""

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from depth import examples
from fakes.fabric import BLUE, RED, Rig, but_no_lies_in_place, chain_of
from kvist.base.errors import TierFullError, TierTimeoutError, TierUnavailableError
from kvist.base.ids import BlockHash
from kvist.blocks.keys import TenantTag
from kvist.fabric.messages import Landed, Offer, Plan, Room, Ticket
from kvist.tiers.faulty import Fail, Flip, Impostor, Resize, Torn, faulty, seeded
from kvist.tiers.ports import Tier

FAULTS = [
    Fail(error=TierUnavailableError),
    Fail(error=TierTimeoutError, after=True),
    Fail(error=TierFullError),
    Flip(bit=4099),
    Flip(bit=77),
    Resize(by=-1),
    Torn(bytes_kept=700),
    Impostor(),
]
CHAINS = {tenant: [chain_of(f"{name}{tenant[0]}", 12) for name in "ab"] for tenant in (BLUE, RED)}
SECONDS = [0.0, 0.0005, 0.02, 0.3, 2.5, 90.0]

Tenants = st.sampled_from([BLUE, RED])
Lengths = st.integers(1, 12)


class FabricMachine(RuleBasedStateMachine):
    """Does to a fabric whatever can be done to it."""

    operations: ClassVar[Counter[str]] = Counter()

    @initialize(
        seed=st.integers(0, 2**32),
        one_in=st.sampled_from([3, 8, 10**9]),
        staging=st.integers(1, 24),
        places=st.integers(4, 24),
        models=st.tuples(st.booleans(), st.booleans()),
    )
    def start(self, seed: int, one_in: int, staging: int, places: int, models: tuple[bool, bool]) -> None:
        windowed, ttl = models

        def wrap(tier: Tier) -> Tier:
            return faulty(tier, but_no_lies_in_place(seeded(seed + len(tier.name), FAULTS, one_in=one_in)))

        self.rig = Rig(
            staging_records=staging * (2 if windowed else 1),
            payloads=(1024, 640) if windowed else (1024,),
            windows=(None, 40) if windowed else (None,),
            tier_records=places,
            wrap=wrap,
            ttl_s=60.0 if ttl else None,
            settings={"piece_records": 3, "known_max": 16},
        )
        self.tickets: dict[Ticket, list[BlockHash]] = {}
        self.plans: dict[Ticket, Plan] = {}
        self.loading: set[Ticket] = set()
        self.handed: dict[Ticket, list[Landed]] = {}
        self.rooms: list[Room] = []
        self.eras: dict[Ticket, int] = {}

    def count(self, name: str) -> None:
        type(self).operations[name] += 1

    def chain(self, tenant: TenantTag, which: int, blocks: int) -> list[BlockHash]:
        return CHAINS[tenant][which][:blocks]

    def work_some(self, jobs: int) -> None:
        for _ in range(jobs):
            if self.rig.movers.waiting:
                self.rig.movers.do(self.rig.movers.waiting[0])

    @rule(tenant=Tenants, which=st.integers(0, 1), blocks=Lengths, works=st.integers(0, 20))
    def store(self, tenant: TenantTag, which: int, blocks: int, works: int) -> None:
        groups = range(len(self.rig.payloads))
        self.operations["stored"] += len(
            self.rig.store(self.chain(tenant, which, blocks), tenant=tenant, groups=groups)
        )
        self.work_some(works)

    @rule(tenant=Tenants, which=st.integers(0, 1), index=st.integers(0, 11))
    def offer(self, tenant: TenantTag, which: int, index: int) -> None:
        offer = Offer(tenant=tenant, group=0, hash=CHAINS[tenant][which][index], index=index)
        answer = self.rig.fabric.offer(offer)
        if isinstance(answer, Room):
            self.rooms.append(answer)

    @precondition(lambda self: self.rooms)
    @rule()
    def withdraw(self) -> None:
        self.count("withdraw")
        self.rig.fabric.withdraw(self.rooms.pop())

    @rule(tenant=Tenants, which=st.integers(0, 1), blocks=Lengths)
    def begin(self, tenant: TenantTag, which: int, blocks: int) -> None:
        chain = self.chain(tenant, which, blocks)
        self.remember(self.rig.ask(chain, tenant=tenant), chain)

    def remember(self, ticket: Ticket, chain: list[BlockHash]) -> None:
        self.tickets[ticket] = chain
        self.eras[ticket] = self.rig.era

    @rule(
        tenant=Tenants,
        which=st.integers(0, 1),
        works=st.integers(0, 6),
        seconds=st.sampled_from(SECONDS),
        renews=st.sampled_from([False] * 7 + [True]),
    )
    def request(self, tenant: TenantTag, which: int, works: int, seconds: float, renews: bool) -> None:
        """As an engine begins one that was stored before, while movers do some jobs and time goes by."""
        self.store(tenant=tenant, which=which, blocks=12, works=60)
        chain = self.chain(tenant, which, 12)
        ticket = self.rig.ask(chain, tenant=tenant)
        self.remember(ticket, chain)
        self.work_some(works)
        self.plans[ticket] = self.rig.plan(ticket)
        self.rig.fabric.load(ticket, self.plans[ticket])
        self.loading.add(ticket)
        self.count("load")
        self.operations["wanted"] += len(self.plans[ticket].wants)
        self.work_some(works)
        if renews:
            self.renew(stores=True)
        self.pass_time(seconds=seconds)
        self.take_from(ticket)

    @precondition(lambda self: self.tickets.keys() - self.loading)
    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.tickets.keys() - self.loading)))
        chain, fabric = self.tickets[ticket], self.rig.fabric
        fabric.is_answered(ticket)
        resident = [
            data.draw(st.lists(st.booleans(), max_size=len(chain)), label="resident") for _ in self.rig.payloads
        ]
        before = [books.queried for books in fabric.statistics().tiers]
        plan = fabric.plan(ticket, resident)
        if ticket in self.plans:
            assert [books.queried for books in fabric.statistics().tiers] == before, "counted twice"
        assert plan.tokens <= len(chain) * 16
        assert not plan.wants or self.eras[ticket] == self.rig.era, "something is left to find of what is over"
        for want in plan.wants:
            assert not (want.index < len(resident[want.group]) and resident[want.group][want.index]), want
        self.plans[ticket] = plan

    @precondition(lambda self: self.plans.keys() - self.loading)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.plans.keys() - self.loading)))
        self.rig.fabric.load(ticket, self.plans[ticket])
        self.loading.add(ticket)
        self.count("load")

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Sees what has landed, and keeps it for now."""
        ticket = data.draw(st.sampled_from(sorted(self.loading)))
        self.handed.setdefault(ticket, []).extend(self.landed(ticket))

    @precondition(lambda self: self.loading)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.take_from(data.draw(st.sampled_from(sorted(self.loading))))

    def take_from(self, ticket: Ticket) -> None:
        pieces = [*self.handed.pop(ticket, []), *self.landed(ticket)]
        self.rig.check(pieces, self.tickets[ticket], self.eras[ticket])
        self.rig.fabric.taken(ticket, pieces)
        self.operations["taken"] += len(pieces)
        self.count(self.rig.fabric.state(ticket))

    def landed(self, ticket: Ticket) -> list[Landed]:
        pieces = list(self.rig.fabric.landed(ticket))
        assert not pieces or self.eras[ticket] == self.rig.era, "something comes of what is over"
        return pieces

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.tickets)))
        handed = self.handed.pop(ticket, [])  # still there, whatever became of its copy
        self.rig.check(handed, self.tickets.pop(ticket), self.eras[ticket])
        self.plans.pop(ticket, None)
        self.loading.discard(ticket)
        self.rig.fabric.drop(ticket)
        self.rig.fabric.drop(ticket)

    @precondition(lambda self: self.rig.movers.waiting)
    @rule(data=st.data(), hangs=st.sampled_from([False, False, False, True]))
    def work(self, data: st.DataObject, hangs: bool) -> None:
        job = self.rig.movers.waiting[data.draw(st.integers(0, len(self.rig.movers.waiting) - 1))]
        if hangs:
            self.rig.movers.begin(job)
        else:
            self.rig.movers.do(job)

    @rule()
    def work_much(self) -> None:
        self.work_some(30)

    @rule(seconds=st.sampled_from(SECONDS))
    def pass_time(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)
        self.rig.calendar.time_unix_s += seconds
        self.rig.fabric.next_deadline_s()

    @rule(seconds=st.sampled_from([-1e6, -30.0, 30.0, 1e6]))
    def set_the_calendar(self, seconds: float) -> None:
        self.rig.calendar.time_unix_s = max(1.0, self.rig.calendar.time_unix_s + seconds)

    @precondition(lambda self: self.loading or self.rooms)
    @rule(stores=st.booleans())
    def renew(self, stores: bool) -> None:
        """The weights change under whatever goes on."""
        unfinished = [each for each in self.loading if self.rig.fabric.state(each) == "loading"]
        dropped = self.rig.fabric.statistics().stores_dropped
        self.rig.renew()
        assert all(
            self.rig.fabric.state(each) == ("loading" if self.handed.get(each) else "failed") for each in unfinished
        )
        if stores:
            rooms, self.rooms = self.rooms, []
            self.rig.fabric.store(rooms)
            assert self.rig.fabric.statistics().stores_dropped == dropped + len(rooms)
        self.operations["voided"] += len(unfinished)

    @rule(tenant=st.sampled_from([BLUE, RED, None]))
    def purge(self, tenant: TenantTag | None) -> None:
        with self.rig.fabric.inside() as inside:
            for tier in inside.desk.tiers:
                if tier.book is not None:
                    inside.writing.owe(tier, tier.book.purge(tenant))
                    inside.writing.flush(tier)

    @invariant()
    def everything_adds_up(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.fabric.audit()
        statistics = self.rig.fabric.statistics()
        assert statistics.staging_bytes_used <= statistics.staging_bytes
        for books in statistics.tiers:
            gone = books.evicted + books.expired + books.purged + books.quarantined + books.lost
            assert books.stored == books.resident + gone, books
            assert books.bytes_used is None or books.bytes_max is None or books.bytes_used <= books.bytes_max

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        for ticket, chain in self.tickets.items():
            self.rig.check(self.handed.pop(ticket, []), chain, self.eras[ticket])
            self.rig.fabric.drop(ticket)
        for room in self.rooms:
            self.rig.fabric.withdraw(room)
        self.rig.movers.do_all()
        self.rig.fabric.audit()
        statistics = self.rig.fabric.statistics()
        assert (statistics.loads_running, statistics.stores_running, statistics.staging_bytes_used) == (0, 0, 0)
        with self.rig.fabric.inside() as inside:
            for tier in inside.desk.tiers:
                assert (tier.bytes_reading, tier.bytes_writing, tier.bytes_loading) == (0, 0, 0), tier.name
                if tier.book is not None:
                    tier.book.audit(set())
        self.rig.close()


@pytest.mark.timeout(300)
def test_whatever_happens_everything_adds_up_and_nothing_is_left() -> None:
    FabricMachine.operations.clear()
    run_state_machine_as_test(
        FabricMachine, settings=settings(max_examples=examples(80), stateful_step_count=60, deadline=None)
    )
    for needed in ("stored", "taken", "load", "complete", "failed", "loading", "withdraw", "voided"):
        assert FabricMachine.operations[needed], f"nothing was ever {needed}: {FabricMachine.operations}"
