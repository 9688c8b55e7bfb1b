"""What tiers hold that no engine uses: opened by this process, for an operator's verbs.

Knows no model: records are whatever is there, of whatever namespace. Books are made from what the tiers say they have,
and kept as carefully as a server keeps them, so that budget and quotas hold here too.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kvist.app.tiers import OpenTier
from kvist.base.clock import Calendar, Clock
from kvist.base.errors import ConfigError
from kvist.blocks.keys import TenantTag
from kvist.fabric.book import Book
from kvist.fabric.claims import Claim, Reserved
from kvist.fabric.messages import Ticket, TierBooks, TierName
from kvist.fabric.outcome import Outcome
from kvist.server.administration_ports import Means, everything
from kvist.tiers.ports import Absent, Address, Damaged, Entry, Found, Read, Stored, Tier, Write

_BATCH = 16

_READ_BYTES = 64 * 2**20
"""Of records worked on at once; one that is longer comes alone."""

_RECORD_BYTES_MAX = 512 * 2**20
"""No record of any model is longer; what says that it is, is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One open tier and its books."""

    tier: Tier
    book: Book | None


class OfflineStock:
    """The `kvist.server.administration_ports.Stock` of tiers that no engine uses. Waits for the tiers' own time-outs.

    `timeout_s` of its verbs bounds when the last batch begins.
    """

    def __init__(self, tiers: Mapping[TierName, OpenTier], clock: Clock, calendar: Calendar) -> None:
        """Takes over what the tiers have; what has expired is deleted."""
        self._clock = clock
        self._calendar = calendar
        self._tickets = itertools.count(1)
        self._lock = threading.RLock()
        self._held: dict[TierName, _Held] = {}
        for name, each in tiers.items():
            book = None if each.settings.limits is None else Book(each.settings.limits)
            if book is not None:
                each.tier.delete(book.restore(each.tier.entries(), calendar.now_unix_s()))
            self._held[name] = _Held(tier=each.tier, book=book)

    def tiers(self) -> Sequence[TierBooks]:
        """See `Stock.tiers`; nothing is known of keyed ones, nor of what was looked for."""
        with self._lock:
            return [_books(name, held.book) for name, held in self._held.items()]

    def entries(
        self, tier: TierName, tenant: TenantTag | None, most: int, timeout_s: float, means: Means = everything
    ) -> Sequence[Entry]:
        """See `Stock.entries`."""
        del timeout_s  # a tier has its own
        held = self._one(tier)
        with self._lock:
            source = held.tier if held.book is None else held.book
            return list(itertools.islice(filter(means, source.entries(tenant)), most))

    def pin(self, tier: TierName, entries: Sequence[Entry], timeout_s: float, *, pinned: bool) -> Outcome:
        """See `Stock.pin`."""
        return self._batched(entries, timeout_s, partial(self._pin, self._one(tier), pinned=pinned))

    def copy(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.copy`."""
        return self._batched(entries, timeout_s, partial(self._copy, self._one(source), self._one(target)))

    def move(self, source: TierName, target: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.move`."""
        here, there = self._one(source), self._one(target)

        def move(batch: Sequence[Entry]) -> Outcome:
            outcome = self._copy(here, there, batch)
            missing = self._missing(there, batch)
            self._remove(here, [entry for entry in batch if entry not in missing])
            return outcome

        return self._batched(entries, timeout_s, move)

    def remove(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.remove`."""
        return self._batched(entries, timeout_s, partial(self._remove, self._one(tier)))

    def purge(self, tier: TierName, tenant: TenantTag | None, timeout_s: float) -> Outcome:
        """See `Stock.purge`."""
        return self.remove(tier, self.entries(tier, tenant, 2**31, timeout_s), timeout_s)

    def verify(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """See `Stock.verify`."""
        held = self._one(tier)
        return self._batched(entries, timeout_s, lambda batch: self._read(held, batch).outcome)

    # ---- steps

    def _one(self, name: TierName) -> _Held:
        held = self._held.get(name)
        if held is None:
            raise ConfigError(f"there is no tier called {name!r}; there are {', '.join(self._held)}")
        return held

    def _batched(
        self, entries: Sequence[Entry], timeout_s: float, work: Callable[[Sequence[Entry]], Outcome]
    ) -> Outcome:
        until_s, outcome = self._clock.now_s() + timeout_s, Outcome()
        for batch in _batches(entries):
            if self._clock.now_s() >= until_s:
                outcome += Outcome(left=len(batch))
                continue
            with self._lock:
                outcome += work(batch)
        return outcome

    def _pin(self, held: _Held, batch: Sequence[Entry], *, pinned: bool) -> Outcome:
        """A keyed tier forgets when what it pins should expire; the record itself knows."""
        entries, outcome = list(batch), Outcome()
        if held.book is None and not pinned:
            found = self._read(held, [entry for entry in batch if entry.pinned])
            outcome = replace(found.outcome, done=0)
            entries = [entry for entry in batch if not entry.pinned] + [entry for entry, _ in found.sound]
        for expires, group in itertools.groupby(entries, lambda entry: entry.expires_unix_s):
            addresses = [entry.address for entry in group]
            never = pinned and held.book is None
            there = held.tier.keep(addresses, pinned=pinned, expires_unix_s=None if never else expires)
            for address in addresses:
                if held.book is not None:
                    held.book.pin(address.key, pinned=pinned)
            outcome += Outcome(done=sum(there), absent=len(there) - sum(there))
        return outcome

    def _read(self, held: _Held, batch: Sequence[Entry]) -> "_Records":
        """Reads records whole; the tier proves them. What is not as it should be is taken out.

        What is longer than a record can be is left.
        """
        found = _Records(left=sum(entry.record_bytes > _RECORD_BYTES_MAX for entry in batch))
        batch = [entry for entry in batch if entry.record_bytes <= _RECORD_BYTES_MAX]
        reads = [Read(address=each.address, into=memoryview(bytearray(each.record_bytes))) for each in batch]
        for entry, read, outcome in zip(batch, reads, held.tier.read(reads), strict=True):
            match outcome:
                case Found(header=header):
                    assert header is not None, f"{held.tier.name} does not prove what it reads"
                    # What the record says of itself: a pin may have changed what its tier says.
                    created, expires = header.created_unix_s, header.expires_unix_s
                    found.sound.append((replace(entry, created_unix_s=created, expires_unix_s=expires), read.into))
                case Damaged():
                    found.damaged.append(entry)
                case Absent():
                    found.absent.append(entry)
        book, wrong = held.book, [*found.damaged, *found.absent]
        for entry in wrong if book is not None else ():
            assert book is not None
            (book.quarantine if entry in found.damaged else book.lose)(entry.address.key)
        held.tier.delete([entry.address for entry in wrong])
        return found

    def _remove(self, held: _Held, batch: Sequence[Entry]) -> Outcome:
        there = held.tier.delete([entry.address for entry in batch])
        for entry in batch:
            if held.book is not None:
                held.book.remove(entry.address.key)
        return Outcome(done=sum(there), absent=len(there) - sum(there))

    def _copy(self, source: _Held, target: _Held, batch: Sequence[Entry]) -> Outcome:
        missing = self._missing(target, batch)
        found = self._read(source, missing)
        owner = Ticket(next(self._tickets))
        claimed = [(entry, record, self._claim(target, entry, owner)) for entry, record in found.sound]
        placed = [(entry, record, address) for entry, record, address in claimed if address is not None]
        stored = self._write(target, placed, owner)
        done = len(batch) - len(missing) + stored
        return replace(found.outcome, done=done, left=found.left + len(found.sound) - stored)

    def _claim(self, target: _Held, entry: Entry, owner: Ticket) -> Address | None:
        """Where a record goes; what must make room for it is deleted first."""
        if target.book is None:
            return replace(entry.address, place=None)
        claim = Claim(
            key=entry.address.key,
            tenant=entry.address.tenant,
            record_bytes=entry.record_bytes,
            expires_unix_s=entry.expires_unix_s,
        )
        answer = target.book.reserve(claim, owner, self._calendar.now_unix_s())
        if not isinstance(answer, Reserved):
            return None
        target.tier.delete(answer.evicted)
        return answer.address

    def _write(self, target: _Held, placed: Sequence[tuple[Entry, memoryview, Address]], owner: Ticket) -> int:
        """Writes records where they were given places; how many are stored."""
        book, stored = target.book, 0
        writes = [
            Write(
                address=address,
                record=record,
                created_unix_s=entry.created_unix_s,
                expires_unix_s=entry.expires_unix_s,
            )
            for entry, record, address in placed
        ]
        outcomes = target.tier.write(writes)
        for (entry, _, address), outcome in zip(placed, outcomes, strict=True):
            is_stored = isinstance(outcome, Stored)
            stored += is_stored
            if book is not None and is_stored:
                book.commit(address.key, owner, entry.created_unix_s)
            elif book is not None:
                book.cancel(address.key, owner)
        return stored

    def _missing(self, held: _Held, batch: Sequence[Entry]) -> list[Entry]:
        """Those of some records that a tier does not have."""
        now_unix_s, book = self._calendar.now_unix_s(), held.book
        if book is not None:
            return [entry for entry in batch if book.find(entry.address.key, now_unix_s) is None]
        there = held.tier.find([replace(entry.address, place=None) for entry in batch])
        return [entry for entry, is_in in zip(batch, there, strict=True) if not is_in]


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Entries, so many at once as need little memory, however long they say they are."""
    batch: list[Entry] = []
    nbytes = 0
    for entry in entries:
        if batch and (len(batch) == _BATCH or nbytes + entry.record_bytes > _READ_BYTES):
            yield batch
            batch, nbytes = [], 0
        batch.append(entry)
        nbytes += entry.record_bytes
    if batch:
        yield batch


def _books(name: TierName, book: Book | None) -> TierBooks:
    if book is None:
        return TierBooks(name=name)
    of = book.statistics()
    return TierBooks(
        name=name,
        stored=of.stored,
        resident=of.resident,
        evicted=of.evicted,
        expired=of.expired,
        purged=of.purged,
        quarantined=of.quarantined,
        lost=of.lost,
        bytes_used=of.bytes_used,
        bytes_max=of.bytes_max,
    )


@dataclass(slots=True, kw_only=True)
class _Records:
    """What reading some records came to."""

    sound: list[tuple[Entry, memoryview]] = field(default_factory=list)
    damaged: list[Entry] = field(default_factory=list)
    absent: list[Entry] = field(default_factory=list)
    left: int = 0

    @property
    def outcome(self) -> Outcome:
        return Outcome(done=len(self.sound), damaged=len(self.damaged), absent=len(self.absent), left=self.left)
