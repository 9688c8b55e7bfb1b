"""The life of loads, as the engine sees it: begun, handed over piece by piece, taken back, given up.

    reading ── verified ──▶ arrived ── landed ──▶ handed ── taken ──▶ over
       └── deadline, drop, end of the namespace ──▶ given up

A load stays here until everything it holds has been given back, also when its ticket was dropped long before: records
under I/O keep their place and their staging until the I/O returns.
"""

import math
from collections.abc import Collection, Sequence

from kvist.blocks.form import HEADER_BYTES
from kvist.fabric.desk import Desk
from kvist.fabric.loads import Errand, Item, Load
from kvist.fabric.messages import Landed, LoadState, Plan, Query, Ticket
from kvist.fabric.parcels import payload_of
from kvist.fabric.reading import Reading
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Entry
from kvist.tiers.regions import Buffer


class Loading:
    """All loads. Called under control's lock."""

    def __init__(self, desk: Desk, reading: Reading) -> None:
        """Shares the desk, and reads through `reading`."""
        self._desk = desk
        self._reading = reading
        self._loads: dict[Ticket, Load] = {}
        self._due_s = math.inf  # no load is late before then, so that most turns look at none of them

    @property
    def running(self) -> int:
        """Loads that somebody waits for."""
        return sum(not load.is_dropped for load in self._loads.values())

    def live(self) -> set[Ticket]:
        """Loads that hold something, or that somebody may ask about."""
        return set(self._loads)

    def begin(self, ticket: Ticket, query: Query, plan: Plan, *, is_void: bool = False) -> None:
        """Holds what the plan wants, and reads as much as there is room for.

        A void plan, of a namespace that is over, has failed as soon as it has begun, if it wants anything.
        """
        assert ticket not in self._loads, f"{ticket} loads already"
        load = self._loads[ticket] = Load(ticket=ticket, tenant=query.tenant, deadline_s=plan.deadline_s)
        if is_void:
            load.is_void = bool(plan.wants)
            return
        self._due_s = min(self._due_s, plan.deadline_s)
        self._reading.want(load, plan.wants, query.chain)
        self.pump()

    def run(self, errand: Errand, entries: Sequence[Entry], tier: TierState, deadline_s: float) -> Load:
        """Reads records of one tenant for an errand; over when the load is. `drop` it then."""
        ticket = self._desk.dispatch.new_ticket()
        tenant = entries[0].address.tenant
        load = self._loads[ticket] = Load(ticket=ticket, tenant=tenant, deadline_s=deadline_s, errand=errand)
        self._due_s = min(self._due_s, deadline_s)
        self._reading.fetch(load, tier, entries)
        self.pump()
        return load

    def landed(self, ticket: Ticket) -> Sequence[Landed]:
        """See `kvist.fabric.control.Fabric.landed`."""
        load = self._loads.get(ticket)
        if load is None:
            return ()
        items, load.arrived = load.arrived, []
        for item in items:
            item.want = item.want._replace(tier=item.tier.name)  # it may have come from another one than was planned
        load.handed.update((item.want, item) for item in items)
        return [Landed(item.want, _payload(item)) for item in items]

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:
        """See `kvist.fabric.control.Fabric.taken`."""
        load = self._loads.get(ticket)
        if load is None:
            assert not pieces, f"{ticket} loads nothing, and {len(pieces)} pieces of it were taken"
            return
        for piece in pieces:
            self._reading.give_back(load, load.handed.pop(piece.want))
        self.pump()

    def state(self, ticket: Ticket) -> LoadState:
        """See `kvist.fabric.control.Fabric.state`."""
        load = self._loads.get(ticket)
        if load is None:
            return "complete"
        self._check(load, self._desk.clock.now_s())
        if load.arrived or load.handed:
            return "loading"
        if load.is_late or load.is_void:
            return "failed"
        if load.wanted or load.reading:
            return "loading"
        return "complete" if load.failed_index is None else "failed"

    def drop(self, ticket: Ticket) -> None:
        """Gives back all that is not under I/O; the rest follows."""
        load = self._loads.get(ticket)
        if load is None or load.is_dropped:
            return
        load.is_dropped = True
        for item in (*load.unwanted(), *load.arrived, *load.handed.values()):
            self._reading.give_back(load, item)
        load.arrived.clear()
        load.handed.clear()
        self._withdraw(load, self._desk.clock.now_s())
        self.pump()

    def void(self) -> None:
        """Engines' loads that run have failed: what is not handed over yet never is, and what has been is given back.

        What operators began knows the namespace of each of its records, and goes on.
        """
        for load in self._loads.values():
            if load.errand is None and not load.is_over:
                load.is_void = True
                for item in (*load.unwanted(), *load.arrived):
                    self._reading.give_back(load, item)
                load.arrived.clear()
                self._withdraw(load, self._desk.clock.now_s())
        self.pump()

    def check(self) -> None:
        """Gives up what is late."""
        now_s = self._desk.clock.now_s()
        if now_s < self._due_s:
            return
        for load in list(self._loads.values()):
            self._check(load, now_s)
        next_s = self.next_deadline_s()
        self._due_s = math.inf if next_s is None else next_s

    def next_deadline_s(self) -> float | None:
        """When the next load is late; None: nothing is waited for."""
        loads = self._loads.values()
        waiting = (load.deadline_s for load in loads if not load.is_given_up and (load.wanted or load.reading))
        return min(waiting, default=None)

    def pump(self) -> None:
        """Sends what there is room for, the oldest load first, and forgets loads that are over.

        What one load finds no room for, those behind it are not asked about: there may be hundreds.
        """
        now_s = self._desk.clock.now_s()
        full = set[tuple[TierState, bool]]()
        for load in list(self._loads.values()):
            for tier in list(load.wanted):
                way = (tier, tier.lends and load.errand is None)
                while way not in full and self._reading.send_piece(load, tier, now_s):
                    pass
                if tier in load.wanted:
                    full.add(way)
            if load.is_dropped and load.is_over:
                del self._loads[load.ticket]

    def audit(self, asked: Collection[Ticket], jobs: Collection[Ticket]) -> None:
        """Proves that every load belongs to a live ticket or waits for running jobs only.

        Raises:
            AssertionError: naming the load that does not.
        """
        for load in self._loads.values():
            if load.errand is not None:
                continue
            assert load.is_dropped != (load.ticket in asked), f"{load.ticket} was dropped and is waited for, or neither"
            assert load.reading.keys() <= set(jobs), f"{load.ticket} waits for jobs that nobody does"
            assert not load.is_dropped or load.reading, f"{load.ticket} was dropped and waits for nothing"

    def _check(self, load: Load, now_s: float) -> None:
        if load.is_given_up or now_s < load.deadline_s or not (load.wanted or load.reading):
            return
        load.is_late = True
        for items in load.reading.values():
            for item in items:
                item.tier.tally.late += 1
        for item in load.unwanted():
            item.tier.tally.late += 1
            self._reading.give_back(load, item)
        self._withdraw(load, now_s)

    def _withdraw(self, load: Load, now_s: float) -> None:
        """Takes back what has not begun; what has, and is late, speaks against its tier."""
        for job in list(load.reading):
            if not self._desk.dispatch.withdraw(job, now_s) and load.is_late:
                self._desk.dispatch.blame(job, now_s)


def _payload(item: Item) -> Buffer:
    """Where an item's payload can be read."""
    if item.parcel is not None:
        return payload_of(item.parcel.buffer)
    place, region = item.address.place, item.tier.settings.region
    assert place is not None and region is not None, f"{item.tier.name} shows no records in place"  # noqa: PT018  one fact
    return Buffer(region=region, offset=place.offset + HEADER_BYTES, length=item.record_bytes - HEADER_BYTES)
