"""The books of a tier as one would say them: one list of rows, searched from end to end, and counters.

`NaiveBook` works out every answer of `kvist.fabric.book.Book` in its own way. Where the books choose (which place,
which extent to empty) the model says whether the choice is right and follows it.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.claims import BookLimits, Claim, Refused, Reserved
from kvist.fabric.messages import Ticket
from kvist.tiers.ports import Address, Entry, Place


@dataclass(slots=True, eq=False)
class NaiveRow:
    """One place in use."""

    address: Address
    record_bytes: int
    expires: float | None
    writer: Ticket | None = None
    created: float | None = None
    pinned: bool = False
    holders: list[Ticket] = field(default_factory=list)
    doomed: str | None = None

    @property
    def place(self) -> Place:
        """Where it is."""
        assert self.address.place is not None
        return self.address.place

    @property
    def kept(self) -> bool:
        """Whether somebody writes or reads it."""
        return self.writer is not None or bool(self.holders)

    @property
    def evictable(self) -> bool:
        """Whether it may be evicted."""
        return not (self.kept or self.pinned or self.doomed)

    def entry(self) -> Entry:
        """What is known of it once it is stored."""
        assert self.created is not None
        return Entry(
            address=self.address,
            record_bytes=self.record_bytes,
            created_unix_s=self.created,
            expires_unix_s=self.expires,
            pinned=self.pinned,
        )


class NaiveBook:
    """Rows, the one used longest ago first."""

    def __init__(self, limits: BookLimits) -> None:
        self.limits = limits
        self.rows: list[NaiveRow] = []
        self.stored = 0
        self.gone: Counter[str] = Counter()

    def row(self, key: BlockKey) -> NaiveRow | None:
        """The row under a key, whatever its state."""
        found = [row for row in self.rows if row.address.key == key]
        assert len(found) <= 1
        return found[0] if found else None

    def seen(self) -> list[NaiveRow]:
        """Rows that are stored and not about to go."""
        return [row for row in self.rows if row.created is not None and not row.doomed]

    def find(self, key: BlockKey, now: float) -> Entry | None:
        """What is stored under the key."""
        return next(
            (row.entry() for row in self.seen() if row.address.key == key and not expired(row.expires, now)), None
        )

    def quota(self, tenant: TenantTag) -> int | None:
        """Bytes that a tenant may use."""
        return self.limits.tenant_bytes_max.get(tenant, self.limits.tenant_bytes_default)

    def bytes_of(self, tenant: TenantTag) -> int:
        """Bytes that a tenant uses."""
        return sum(row.place.length for row in self.rows if row.address.tenant == tenant)

    def length(self, record_bytes: int) -> int:
        """Of the place for a record."""
        return -(-record_bytes // self.limits.alignment) * self.limits.alignment

    def extents(self) -> list[list[NaiveRow]]:
        """Rows by extent."""
        size = self.limits.extent_bytes
        return [
            [row for row in self.rows if start <= row.place.offset < start + size]
            for start in range(0, self.limits.bytes_max - size + 1, size)
        ]

    def has_room(self, length: int) -> bool:
        """Whether a place of this length is free."""
        most = self.limits.extent_bytes // length
        return any(not rows or (rows[0].place.length == length and len(rows) < most) for rows in self.extents())

    def first(self, length: int, tenant: TenantTag | None = None) -> NaiveRow | None:
        """The first that may be evicted, of a length and perhaps of a tenant."""
        rows = [row for row in self.rows if row.evictable and row.place.length == length]
        return next((row for row in rows if tenant in {None, row.address.tenant}), None)

    def must_refuse(self, claim: Claim, now: float) -> bool:
        """Whether there is no way to grant a claim."""
        row, length, quota = self.row(claim.key), self.length(claim.record_bytes), self.quota(claim.tenant)
        if row is not None and (row.kept or row.doomed or not expired(row.expires, now)):
            return True
        if expired(claim.expires_unix_s, now) or not 0 < length <= self.limits.extent_bytes or not self.extents():
            return True
        others = [each for each in self.rows if each is not row]
        if self.is_full(len(others)) and not any(row.evictable for row in self.rows):
            return True
        mine = [row for row in self.rows if row.address.tenant == claim.tenant and not row.evictable]
        if quota is not None and sum(row.place.length for row in mine) + length > quota:
            return True
        emptied = any(rows and all(row.evictable for row in rows) for rows in self.extents())
        return not (self.has_room(length) or self.first(length) or emptied)

    def reserve(self, claim: Claim, owner: Ticket, now: float, answer: Reserved | Refused) -> None:
        """Checks the answer to a claim and follows it."""
        assert isinstance(answer, Refused) == self.must_refuse(claim, now), answer
        if isinstance(answer, Refused):
            assert answer.reason
            return
        evicted, length = list(answer.evicted), self.length(claim.record_bytes)
        old = self.row(claim.key)
        if old is not None:
            assert evicted.pop(0) == old.address
            self.end(old, "expired")
        quota = self.quota(claim.tenant)
        while quota is not None and self.bytes_of(claim.tenant) + length > quota:
            row = self.evict(evicted.pop(0))
            assert row.address.tenant == claim.tenant, "another tenant paid for this one's quota"
            self.end(row, "evicted")
        if not self.has_room(length):
            self.follow_eviction(length, evicted)
        elif self.is_full(len(self.rows)):
            row = self.evict(evicted.pop(0))
            assert row is next(each for each in self.rows if each.evictable), "evicted what was used later"
            assert not evicted, "evicted more than one record for one"
            self.end(row, "evicted")
        else:
            assert not evicted, "evicted although there was room"
        assert self.has_room(length)
        self.rows.append(NaiveRow(answer.address, claim.record_bytes, claim.expires_unix_s, writer=owner))
        assert (answer.address.key, answer.address.tenant) == (claim.key, claim.tenant)
        self.check_places()

    def is_full(self, records: int) -> bool:
        """Whether no more records than these are remembered."""
        return self.limits.records_max is not None and records >= self.limits.records_max

    def evict(self, address: Address) -> NaiveRow:
        """The row that the books have evicted, which was allowed."""
        row = self.row(address.key)
        assert row is not None
        assert row.address == address
        assert row.evictable, f"evicted although it must stay: {row}"
        return row

    def follow_eviction(self, length: int, evicted: list[Address]) -> None:
        """One record of the class went, the first; or all of an extent of others, older than that one."""
        rows, first = [self.evict(address) for address in evicted], self.first(length)
        if first is None or rows != [first]:
            assert any(set(rows) == set(extent) for extent in self.extents()), "evicted more or less than an extent"
            oldest = len(self.rows) if first is None else self.rows.index(first)
            assert all(self.rows.index(row) < oldest for row in rows), "evicted what was used later"
        for row in rows:
            self.end(row, "evicted")

    def check_places(self) -> None:
        """Places are aligned, disjoint, within an extent and of one length within it."""
        for rows in self.extents():
            assert len({row.place.length for row in rows}) <= 1
        ends = sorted((row.place.offset, row.place.offset + row.place.length) for row in self.rows)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends)), ends
        size = self.limits.extent_bytes
        for start, end in ends:
            assert start % self.limits.alignment == 0
            assert start // size == (end - 1) // size < len(self.extents())

    def used(self, row: NaiveRow) -> None:
        """It is the last to be evicted."""
        self.rows.remove(row)
        self.rows.append(row)

    def end(self, row: NaiveRow, cause: str) -> None:
        """It is gone."""
        self.rows.remove(row)
        self.gone[cause] += 1

    def remove(self, row: NaiveRow, cause: str) -> set[Address]:
        """It is gone, or will be; what the tier must delete now."""
        if row.doomed:
            return set()
        if row.kept:
            row.doomed = cause
            return set()
        self.end(row, cause)
        return {row.address}

    def commit(self, row: NaiveRow, created: float) -> Address | None:
        """It is stored; what the tier must delete now."""
        row.writer, row.created = None, created
        self.stored += 1
        self.used(row)
        return self.let_go(row)

    def release(self, row: NaiveRow, owner: Ticket) -> Address | None:
        """One reader less; what the tier must delete now."""
        row.holders.remove(owner)
        if row.evictable:
            self.used(row)
        return self.let_go(row)

    def let_go(self, row: NaiveRow) -> Address | None:
        """The end of what was only waiting for its last reader."""
        if not row.doomed or row.kept:
            return None
        self.end(row, row.doomed)
        return row.address


def expired(expires: float | None, now: float) -> bool:
    """Whether the time has come; a time that is no number has."""
    return expires is not None and not expires > now
