"""Writes stamped records to a tier and deletes what has gone from its books, in an order that loses nothing.

Places that the books have freed are deleted at the tier before anything is written again: what is owed goes with every
write until the tier has acknowledged it. Whatever a failed write may have left behind is owed as well. A tier's changes
are done one after the other (`kvist.fabric.ports.Carrier`), so that what is owed twice is deleted before it is written.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kvist.base.errors import TierFullError
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.claims import Claim, Refused
from kvist.fabric.desk import Desk
from kvist.fabric.jobs import Broken, Changed, DeleteJob, Report, StoreJob, StoreOrder, Written
from kvist.fabric.messages import Ticket
from kvist.fabric.parcels import Parcel
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Address, Stored

_DELETIONS = 256
"""Records that one job deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A stamped record in staging, and how long it may be kept."""

    parcel: Parcel
    created_unix_s: float
    expires_unix_s: float | None


class Writing:
    """Running writes and deletions of all tiers. Called under control's lock."""

    def __init__(self, desk: Desk) -> None:
        """Shares the desk."""
        self._desk = desk
        self._keys: dict[tuple[str, BlockKey], Address] = {}
        self._deleting: set[str] = set()

    @property
    def running(self) -> int:
        """Records that are being written, once for each tier."""
        return len(self._keys)

    def is_there(self, tier: TierState, key: BlockKey, now_unix_s: float) -> bool:
        """Whether a tier has a record, or soon will."""
        return (tier.name, key) in self._keys or tier.has(key, now_unix_s)

    def writes_any(self, tier: TierState, keys: Iterable[BlockKey]) -> bool:
        """Whether some of these records are being written to a tier."""
        return any((tier.name, key) in self._keys for key in keys)

    def running_of(self, tier: TierState, tenant: TenantTag | None) -> list[Address]:
        """What is being written to a tier, or what is one tenant's of it."""
        return [
            address
            for (name, _), address in self._keys.items()
            if name == tier.name and tenant in {None, address.tenant}
        ]

    def write(self, tier: TierState, copies: Sequence[Copy]) -> None:
        """Writes those records that the tier does not have, as far as its books find places."""
        desk = self._desk
        ticket = desk.dispatch.new_ticket()
        orders: list[tuple[StoreOrder, Parcel]] = []
        for copy in copies:
            address = self._claim(tier, copy, ticket)
            if address is not None:
                order = StoreOrder(
                    address=address,
                    buffer=copy.parcel.buffer,
                    created_unix_s=copy.created_unix_s,
                    expires_unix_s=copy.expires_unix_s,
                )
                orders.append((order, copy.parcel))
        if orders:
            self._send(tier, ticket, orders)

    def owe(self, tier: TierState, addresses: Iterable[Address]) -> None:
        """What the tier must forget; not what has been written there again since."""
        now_unix_s = self._desk.calendar.now_unix_s()
        for address in addresses:
            entry = None if tier.book is None else tier.book.find(address.key, now_unix_s)
            is_new = self._keys.get((tier.name, address.key)) == address
            if not is_new and (entry is None or entry.address != address):
                tier.undeleted[address] = None

    def flush(self, tier: TierState) -> None:
        """Deletes what is owed, one job at a time."""
        if not tier.undeleted or tier.name in self._deleting or not tier.writes.would_allow(self._desk.clock.now_s()):
            return
        addresses = tuple(address for address, _ in zip(tier.undeleted, range(_DELETIONS), strict=False))
        job = DeleteJob(ticket=self._desk.dispatch.new_ticket(), tier=tier.name, addresses=addresses)

        def deleted(report: Report) -> None:
            self._deleting.discard(tier.name)
            if isinstance(report, Changed):
                self._forget(tier, addresses)

        if self._desk.dispatch.send(job, tier, deleted, now_s=self._desk.clock.now_s()):
            self._deleting.add(tier.name)

    def audit(self, tier: TierState, jobs: Collection[Ticket]) -> None:
        """Proves that writes are those of running jobs, and that nothing is owed of what the books say is there.

        Raises:
            AssertionError: naming what is not.
        """
        now_unix_s = self._desk.calendar.now_unix_s()
        for address in tier.undeleted:
            entry = None if tier.book is None else tier.book.find(address.key, now_unix_s)
            assert entry is None or entry.address != address, f"{tier.name} would delete {address}, which is stored"
        assert jobs or not self._keys, f"{list(self._keys)[:3]} are being written and no job runs"

    def _claim(self, tier: TierState, copy: Copy, ticket: Ticket) -> Address | None:
        """Where to write a record; None: nowhere, or it is there."""
        subject, now_unix_s = copy.parcel.subject, self._desk.calendar.now_unix_s()
        size = subject.record_bytes
        if self.is_there(tier, subject.key, now_unix_s):
            return None
        if tier.book is None:
            address = Address(key=subject.key, tenant=subject.tenant)
        else:
            claim = Claim(key=subject.key, tenant=subject.tenant, record_bytes=size, expires_unix_s=copy.expires_unix_s)
            answer = tier.book.reserve(claim, ticket, now_unix_s)
            if isinstance(answer, Refused):
                tier.tally.declined += 1
                return None
            self.owe(tier, answer.evicted)
            address = answer.address
        self._keys[tier.name, subject.key] = address
        return address

    def _send(self, tier: TierState, ticket: Ticket, orders: Sequence[tuple[StoreOrder, Parcel]]) -> None:
        evicted = tuple(tier.undeleted)
        job = StoreJob(ticket=ticket, tier=tier.name, evicted=evicted, orders=tuple(order for order, _ in orders))
        nbytes = sum(parcel.staged_bytes for _, parcel in orders)

        def written(report: Report) -> None:
            self._written(tier, job, report)
            for _, parcel in orders:
                self._desk.parcels.leave(parcel, ticket)

        now_s = self._desk.clock.now_s()
        if self._desk.dispatch.send(job, tier, written, now_s=now_s, nbytes=nbytes):
            for order, parcel in orders:
                parcel.users.add(ticket)
                tier.undeleted.pop(order.address, None)  # is deleted by this job, and must not be by a later one
        else:
            for order in job.orders:
                self._cancel(tier, order, ticket)

    def _written(self, tier: TierState, job: StoreJob, report: Report) -> None:
        if not isinstance(report, Written):
            is_full = isinstance(report, Broken) and isinstance(report.error, TierFullError)
            for order in job.orders:
                self._cancel(tier, order, job.ticket, is_full=is_full)
            # Of a job that broke nothing is known: what it was to write may be there.
            self.owe(tier, (*job.evicted, *(order.address for order in job.orders if tier.book is not None)))
            return
        self._forget(tier, job.evicted)
        for order, outcome in zip(job.orders, report.outcomes, strict=True):
            if isinstance(outcome, Stored):
                self._commit(tier, order, job.ticket)
            else:
                self._cancel(tier, order, job.ticket, is_full=outcome.lacks_room)

    def _commit(self, tier: TierState, order: StoreOrder, ticket: Ticket) -> None:
        del self._keys[tier.name, order.address.key]
        if tier.book is None:
            tier.tally.stored += 1
            key = order.address.key
            tier.known.add(key.namespace, key.group, (key.hash,))
            return
        removed = tier.book.commit(order.address.key, ticket, order.created_unix_s)
        self.owe(tier, () if removed is None else (removed,))

    def _cancel(self, tier: TierState, order: StoreOrder, ticket: Ticket, *, is_full: bool = False) -> None:
        del self._keys[tier.name, order.address.key]
        tier.tally.declined += 1
        if tier.book is not None:
            full_unix_s = self._desk.calendar.now_unix_s() if is_full else None
            tier.book.cancel(order.address.key, ticket, full_unix_s=full_unix_s)

    @staticmethod
    def _forget(tier: TierState, addresses: Iterable[Address]) -> None:
        for address in addresses:
            tier.undeleted.pop(address, None)
