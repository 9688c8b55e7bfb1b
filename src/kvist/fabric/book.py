"""The books of one placed tier: what lies where, who reads it, what goes next, and what became of everything.

    reserve ──▶ writing ──commit──▶ resident ──hold──▶ held ──release──▶ resident
                writing ──cancel──▶ (free)    resident ──evict, expire, purge, quarantine, lose──▶ (free)
                writing, held ──the same──▶ doomed ──last of writer and holders──▶ (free)

Knows keys, places, owners and the time it is told; reads no clock and moves no bytes. What it says is gone must be
deleted at the tier by whoever asked. A doomed record is found by nobody, keeps its place, and its key is not given
again before that place is free.

Laws:
    * stored = resident + evicted + expired + purged + quarantined + lost; each record leaves by one cause, once.
    * A record that is written or held keeps its place and its bytes; a pinned one is not evicted.
    * Places never exceed `bytes_max`, nor records `records_max`, nor a tenant's places its quota; a tenant over its
      quota evicts only its own.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import get_args

from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import format_bytes
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.fabric.audit import audit_ledger, audit_rows
from kvist.fabric.claims import BookLimits, BookStatistics, Cause, Claim, Refused, Reserved
from kvist.fabric.messages import Ticket
from kvist.fabric.policies import EvictionOrder, LongestUnused
from kvist.fabric.quotas import Quotas
from kvist.fabric.rows import Row
from kvist.fabric.shelf import Shelf
from kvist.fabric.space import Space
from kvist.fabric.turns import Turns
from kvist.tiers.ports import Address, Entry


class Book:
    """Entries, places, turns, quotas and ledger of one placed tier. Called under one lock.

    A call costs a few microseconds, apart from those that name many records.
    """

    def __init__(self, limits: BookLimits, make_order: Callable[[], EvictionOrder] = LongestUnused) -> None:
        """Starts empty; `make_order` makes one order per class and tenant."""
        self._limits = limits
        self._space = Space(bytes_max=limits.bytes_max, extent_bytes=limits.extent_bytes, alignment=limits.alignment)
        self._quotas = Quotas(limits)
        self._turns = Turns(self._space.extents, make_order, lambda tenant: self._quotas.of(tenant) is not None)
        self._rows: dict[BlockKey, Row] = {}
        self._at: dict[int, Row] = {}
        self._shelf = Shelf()
        self._stored = self._resident = self._pinned = 0
        self._gone: dict[Cause, int] = dict.fromkeys(get_args(Cause), 0)

    # ---- questions: these change nothing

    def find(self, key: BlockKey, now_unix_s: float) -> Entry | None:
        """What is stored under the key; None when nothing is, it is being written or removed, or it has expired."""
        row = self._rows.get(key)
        return row.entry if row is not None and row.doomed is None and row.alive(now_unix_s) else None

    def have(
        self, namespace: Namespace, group: GroupId, hashes: Sequence[BlockHash], tenant: TenantTag, now_unix_s: float
    ) -> list[bool]:
        """Whether `find` would find each prefix block of one group and tenant, in order."""
        return self._shelf.have((namespace, group, tenant), hashes, now_unix_s)

    def entries(self, whose: TenantTag | None = None) -> Iterator[Entry]:
        """All that is stored, or what is one tenant's; a snapshot, oldest first within a group."""
        return self._shelf.entries(whose)

    def statistics(self) -> BookStatistics:
        """A frozen snapshot of the ledger."""
        return BookStatistics(
            stored=self._stored,
            resident=self._resident,
            evicted=self._gone["evicted"],
            expired=self._gone["expired"],
            purged=self._gone["purged"],
            quarantined=self._gone["quarantined"],
            lost=self._gone["lost"],
            writing=len(self._rows) - self._resident,
            pinned=self._pinned,
            bytes_used=self._space.bytes_used,
            bytes_max=self._limits.bytes_max,
            bytes_by_tenant=self._quotas.all_held(),
        )

    # ---- writing

    def reserve(self, claim: Claim, owner: Ticket, now_unix_s: float) -> Reserved | Refused:
        """Finds a place for a record, evicting what may go.

        Of the same class the first in order goes, unless an extent of another class was last used before that one:
        then all of that extent. A tenant at its quota makes room among its own first. If there is a place and only
        `records_max` is in the way, the record used longest ago goes.
        """
        self._space.retry(now_unix_s)
        reason = self._why_not(claim, now_unix_s)
        if reason is not None:
            return Refused(reason=reason)
        evicted: list[Address] = []
        expired = self._rows.get(claim.key)
        if expired is not None:
            evicted += self._remove(expired, "expired")
        length = self._space.length_of(claim.record_bytes)
        self._evict_for_quota(claim.tenant, length, evicted)
        if not self._space.has_room(length):
            self._evict_for_place(length, evicted)
        elif self._is_full(len(self._rows)):
            first = min((self._rows[key] for key in self._turns.firsts()), key=lambda row: row.used)
            evicted += self._remove(first, "evicted")
        place = self._space.take(length)
        assert place is not None, f"no place of {length} bytes after {len(evicted)} evictions"
        address = Address(key=claim.key, tenant=claim.tenant, place=place)
        self._enter(address, claim.record_bytes, claim.expires_unix_s, owner)
        return Reserved(address=address, evicted=tuple(evicted))

    def commit(self, key: BlockKey, owner: Ticket, created_unix_s: float) -> Address | None:
        """The tier acknowledged the write: the record is stored.

        Returns:
            What the tier must delete, when the record was removed while it was written; None otherwise.
        """
        row = self._written(key, owner)
        row.writer = None
        self._space.prove(row.place)
        self._list(row, created_unix_s, pinned=False)
        return self._end_if_doomed(row)

    def cancel(self, key: BlockKey, owner: Ticket, *, full_unix_s: float | None = None) -> None:
        """The write failed or never began: the place is free, and nothing counts as stored.

        Where nobody knows whether something of it is at the tier, delete it there first. `full_unix_s`: it failed at
        this time because the medium had no room (see `Space.shut`).
        """
        row = self._written(key, owner)
        if full_unix_s is not None:
            self._space.shut(row.place, full_unix_s)
        self._turns.leave(row)
        self._free(row)

    # ---- reading

    def hold(self, key: BlockKey, owner: Ticket) -> None:
        """Adds a reader to a record that `find` has found; its place and bytes stay until the reader lets go."""
        row = self._rows.get(key)
        assert row is not None, f"nothing is stored under {key}"
        assert row.entry is not None, f"{key} is being written"
        assert row.doomed is None, f"{key} is being removed"
        assert owner not in row.holders, f"{owner} holds {key} already"
        if row.evictable:
            self._turns.forbid(row)
        row.holders = (*row.holders, owner)

    def release(self, key: BlockKey, owner: Ticket) -> Address | None:
        """Ends a reader's hold. The last one puts the record behind all others in its order.

        Returns:
            What the tier must delete, when the record was only waiting for this; None otherwise.
        """
        row = self._rows.get(key)
        assert row is not None, f"nothing is stored under {key}"
        assert owner in row.holders, f"{owner} does not hold {key}"
        row.holders = tuple(holder for holder in row.holders if holder != owner)
        if row.evictable:
            self._turns.allow(row)
        return self._end_if_doomed(row)

    def touch(self, key: BlockKey) -> None:
        """Somebody wanted the record without reading it here; does nothing when it is not there."""
        row = self._rows.get(key)
        if row is not None and row.evictable:
            self._turns.touch(row)

    def pin(self, key: BlockKey, *, pinned: bool) -> Entry | None:
        """Says whether a record may be evicted; it may expire and be purged all the same.

        Returns:
            The entry as it is now; None when nothing is stored under the key.
        """
        row = self._rows.get(key)
        if row is None or row.entry is None or row.doomed is not None:
            return None
        if row.entry.pinned != pinned:
            if row.evictable:
                self._turns.forbid(row)
            row.entry = replace(row.entry, pinned=pinned)
            self._pinned += 1 if pinned else -1
            if row.evictable:
                self._turns.allow(row)
        return row.entry

    # ---- removing: each answers what the tier must delete now; the rest follows from `release` and `commit`

    def remove(self, key: BlockKey) -> tuple[Address, ...]:
        """Somebody asked for the record to go: purged."""
        return self._remove_key(key, "purged")

    def quarantine(self, key: BlockKey) -> tuple[Address, ...]:
        """The tier has something else there than the record."""
        return self._remove_key(key, "quarantined")

    def lose(self, key: BlockKey) -> tuple[Address, ...]:
        """The tier has nothing there."""
        return self._remove_key(key, "lost")

    def purge(self, tenant: TenantTag | None = None) -> tuple[Address, ...]:
        """Everything goes, or all that is one tenant's; what is being written goes when it is acknowledged."""
        rows = [row for row in self._rows.values() if tenant in {None, row.tenant}]
        return tuple(address for row in rows for address in self._remove(row, "purged"))

    def expire(self, now_unix_s: float, most: int | None = None) -> tuple[Address, ...]:
        """What has expired by now goes, pinned or not; at most so many records, which may be fewer addresses."""
        rows = self._shelf.expired(now_unix_s, most)
        return tuple(address for row in rows for address in self._remove(row, "expired"))

    # ---- starting

    def restore(self, entries: Iterable[Entry], now_unix_s: float) -> tuple[Address, ...]:
        """Takes over what a tier says it has, once, before anything else is asked.

        Pinned ones first, then the youngest: of two that overlap or do not both fit, those stay. Each entry counts as
        stored; what is not kept counts as expired, evicted (bounds or quota), or lost (it cannot be right).

        Returns:
            What the tier must delete.
        """
        assert not self._rows, "the books are in use"
        refused: list[Address] = []
        kept: list[Entry] = []
        for entry in sorted(entries, key=lambda each: (each.pinned, each.created_unix_s), reverse=True):
            cause = self._why_not_restored(entry, now_unix_s)
            if cause is None:
                kept.append(entry)
                self._enter(entry.address, entry.record_bytes, entry.expires_unix_s, None)
            else:
                self._stored += 1
                self._gone[cause] += 1
                refused.append(entry.address)
        for entry in sorted(kept, key=lambda each: each.created_unix_s):
            self._list(self._rows[entry.address.key], entry.created_unix_s, pinned=entry.pinned)
        return tuple(refused)

    def audit(self, live: Collection[Ticket]) -> None:
        """Proves that everything adds up.

        Args:
            live: owners that may be writing or reading.

        Raises:
            AssertionError: naming what does not.
        """
        rows = list(self._rows.values())
        assert {row.place.offset: row for row in rows} == self._at, "places differ"
        audit_rows(rows, live)
        audit_ledger(rows, self.statistics(), self._quotas.of)
        self._space.audit(row.place for row in rows)
        self._turns.audit(rows)
        self._shelf.audit([row for row in rows if row.entry is not None and row.doomed is None])

    # ---- steps

    def _why_not(self, claim: Claim, now_unix_s: float) -> str | None:
        """Why a claim cannot be granted whatever is evicted."""
        row = self._rows.get(claim.key)
        if row is not None and (row.writer is not None or row.doomed is not None or row.holders):
            return "the block is being written" if row.writer is not None else "the block is still being read"
        if row is not None and row.alive(now_unix_s):
            return "the block is stored already"
        if claim.expires_unix_s is not None and not claim.expires_unix_s > now_unix_s:
            return "the record would be expired at once"
        never = self._space.why_never(claim.record_bytes)
        if never is not None:
            return never
        if self._is_full(len(self._rows) - (row is not None)) and not self._turns.firsts():
            return f"all {len(self._rows)} records that the tier can remember are held, pinned or being written"
        return self._why_no_room(claim.tenant, self._space.length_of(claim.record_bytes))

    def _why_no_room(self, tenant: TenantTag, length: int) -> str | None:
        turns = self._turns
        quota = self._quotas.of(tenant)
        if quota is not None and self._quotas.exceeded(tenant, length - turns.bytes_of_tenant(tenant)):
            return f"the tenant's quota of {format_bytes(quota)} has no {length} bytes that may be evicted"
        if self._space.has_room(length) or turns.first_of_class(length) is not None:
            return None
        if turns.oldest_extent() is not None:
            return None
        return f"all {format_bytes(self._space.bytes_used)} in use are held, pinned or being written"

    def _is_full(self, records: int) -> bool:
        """Whether the tier can remember no more than so many records."""
        return self._limits.records_max is not None and records >= self._limits.records_max

    def _evict_for_quota(self, tenant: TenantTag, length: int, evicted: list[Address]) -> None:
        while self._quotas.exceeded(tenant, length):
            evicted += self._remove(self._rows[self._turns.first_of_tenant(tenant, length)], "evicted")

    def _evict_for_place(self, length: int, evicted: list[Address]) -> None:
        """Evicts the first record of the class, or an extent whose last use is longer ago."""
        own, extent = self._turns.first_of_class(length), self._turns.oldest_extent()
        row = None if own is None else self._rows[own]
        if extent is not None and (row is None or self._turns.used(extent) < row.used):
            for offset in self._space.places(extent):
                evicted += self._remove(self._at[offset], "evicted")
        elif row is not None:
            evicted += self._remove(row, "evicted")

    def _why_not_restored(self, entry: Entry, now_unix_s: float) -> Cause | None:
        place, key = entry.address.place, entry.address.key
        if not (entry.expires_unix_s is None or entry.expires_unix_s > now_unix_s):
            return "expired"
        if place is None or key in self._rows or place.length != self._space.length_of(entry.record_bytes):
            return "lost"
        if self._quotas.exceeded(entry.address.tenant, place.length):
            return "evicted"
        if self._is_full(len(self._rows)) or self._space.extent_of(place.offset) >= self._space.extents:
            return "evicted"
        return None if self._space.claim(place) is None else "lost"

    def _enter(self, address: Address, record_bytes: int, expires_unix_s: float | None, writer: Ticket | None) -> None:
        """Enters a record under its key, at a place that is in use for it already."""
        place = address.place
        assert place is not None, f"{address} has no place"
        row = Row(
            key=address.key,
            tenant=address.tenant,
            place=place,
            address=address,
            extent=self._space.extent_of(place.offset),
            record_bytes=record_bytes,
            expires_unix_s=expires_unix_s,
            writer=writer,
        )
        self._rows[address.key] = self._at[place.offset] = row
        self._quotas.change(address.tenant, place.length)
        self._turns.enter(row)

    def _list(self, row: Row, created_unix_s: float, *, pinned: bool) -> None:
        """Enters a record as stored, to be found and in its turn, unless it is to be removed."""
        row.entry = Entry(
            address=row.address,
            record_bytes=row.record_bytes,
            created_unix_s=created_unix_s,
            expires_unix_s=row.expires_unix_s,
            pinned=pinned,
        )
        self._stored += 1
        self._resident += 1
        self._pinned += pinned
        if row.doomed is None:
            self._shelf.put(row)
        if row.evictable:
            self._turns.allow(row)

    def _remove_key(self, key: BlockKey, cause: Cause) -> tuple[Address, ...]:
        row = self._rows.get(key)
        return () if row is None else self._remove(row, cause)

    def _remove(self, row: Row, cause: Cause) -> tuple[Address, ...]:
        """Takes a record out of sight, and frees its place unless somebody is writing or reading there."""
        if row.doomed is not None:
            return ()
        if row.entry is not None:
            self._shelf.take(row)
        had_turn = row.evictable
        row.doomed = cause
        if had_turn:
            self._turns.drop(row)
            return (self._end(row, cause),)
        ended = self._end_if_doomed(row)
        return () if ended is None else (ended,)

    def _end_if_doomed(self, row: Row) -> Address | None:
        """Ends a record that is to go, once nobody writes or reads it."""
        if row.doomed is None or row.writer is not None or row.holders:
            return None
        self._turns.leave(row)
        return self._end(row, row.doomed)

    def _end(self, row: Row, cause: Cause) -> Address:
        """Counts a stored record as gone and frees its place."""
        self._gone[cause] += 1
        self._resident -= 1
        self._pinned -= row.entry is not None and row.entry.pinned
        self._free(row)
        return row.address

    def _free(self, row: Row) -> None:
        """Gives back the place of a record that has left its turn."""
        self._space.give(row.place)
        del self._rows[row.key], self._at[row.place.offset]
        self._quotas.change(row.tenant, -row.place.length)

    def _written(self, key: BlockKey, owner: Ticket) -> Row:
        row = self._rows.get(key)
        assert row is not None, f"nothing is being written under {key}"
        assert row.writer == owner, f"{owner} is not writing {key}"
        return row
