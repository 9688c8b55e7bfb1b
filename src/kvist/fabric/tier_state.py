"""What control knows of one tier: its books or what it was seen to have, its speed, its health, its counts.

Knows nothing of jobs. A placed tier has books; of a keyed one a bounded memory remains of what was stored or found
there a moment ago, so that it need not be stored again: an error in it costs a store too few or too many, no more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.cost.load import load_model
from kvist.fabric.book import Book
from kvist.fabric.breaker import Breaker, BreakerState
from kvist.fabric.messages import TierBooks, TierName
from kvist.fabric.settings import TierSettings
from kvist.tiers.ports import Address

FULL_PAUSE_S = 1.0
"""How long a tier that had no room is offered nothing."""


class Known:
    """Which records a keyed tier has, as far as was seen; of each group the newest ones, up to a bound."""

    def __init__(self, most: int) -> None:
        """Starts knowing nothing."""
        self._most = most
        self._seen: dict[tuple[Namespace, GroupId], dict[BlockHash, None]] = {}

    def __contains__(self, key: BlockKey) -> bool:
        return key.hash in self._seen.get((key.namespace, key.group), ())

    def add(self, namespace: Namespace, group: GroupId, hashes: Iterable[BlockHash]) -> None:
        """These were stored or found; there may be thousands, which takes microseconds."""
        seen = self._seen.setdefault((namespace, group), {})
        seen.update(dict.fromkeys(hashes))
        if len(seen) > self._most:
            for block_hash in list(islice(seen, len(seen) - self._most)):
                del seen[block_hash]

    def forget(self, namespace: Namespace, group: GroupId, hashes: Iterable[BlockHash]) -> None:
        """These were looked for and not found: whatever was seen of them is no longer true."""
        seen = self._seen.get((namespace, group))
        if seen:
            for block_hash in hashes:
                seen.pop(block_hash, None)

    def clear(self) -> None:
        """Knows nothing again."""
        self._seen.clear()

    def discard(self, key: BlockKey) -> None:
        """It was not found, or was removed."""
        self._seen.get((key.namespace, key.group), {}).pop(key.hash, None)


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of one tier, in records; those of the ledger are the keyed tier's own, placed ones have books."""

    queried: int = 0
    hit: int = 0
    loaded: int = 0
    load_failures: int = 0
    late: int = 0
    declined: int = 0
    stored: int = 0
    purged: int = 0
    quarantined: int = 0
    lost: int = 0


class TierState:
    """One tier, as control sees it. Called under control's lock.

    Attributes:
        asks, reads, writes: each has a breaker, because a disk that takes no writes can be read, and a pool that
            answers questions may still hang when it should give records.
        speed: of loads, learned.
        question_s: what a question usually takes.
        bytes_loading: that it has to read, whether into staging or in place.
        bytes_reading, bytes_writing: of staging that its jobs keep busy; each at most about `bytes_share`.
        undeleted: what it must delete before it writes again.
        full_until_s: before then it is offered nothing, since it had no room; what it has can be read and deleted.
    """

    def __init__(self, settings: TierSettings, *, known_max: int, bytes_share: int) -> None:
        self.settings = settings
        self.name: TierName = settings.name
        self.book = None if settings.limits is None else Book(settings.limits)
        self.known = Known(known_max)
        self.asks = Breaker()
        self.reads = Breaker()
        self.writes = Breaker()
        self.speed = load_model(settings.kind, lanes=settings.lanes)
        self.question_s = 0.0
        self.tally = Tally()
        self.bytes_share = bytes_share
        self.bytes_reading = 0
        self.bytes_writing = 0
        self.bytes_loading = 0
        self.undeleted: dict[Address, None] = {}
        self.full_until_s = float("-inf")

    @property
    def lends(self) -> bool:
        """Whether its records are looked at where they lie."""
        return self.settings.region is not None

    def readable(self, now_s: float) -> bool:
        """Whether a plan may count on it: it is well, or may be tried and is not filled up with what hangs."""
        return self.reads.would_allow(now_s) and (self.reads.state(now_s) == "closed" or not self.reads_full(1))

    def writable(self, now_s: float) -> bool:
        """Whether to store in it, likewise."""
        if now_s < self.full_until_s:
            return False
        return self.writes.would_allow(now_s) and (self.writes.state(now_s) == "closed" or not self.writes_full(1))

    def reads_full(self, nbytes: int) -> bool:
        """Whether so many bytes more would be too many to read at once; something it may always read."""
        return self.bytes_reading > 0 and self.bytes_reading + nbytes > self.bytes_share

    def writes_full(self, nbytes: int) -> bool:
        """The same for writes."""
        return self.bytes_writing > 0 and self.bytes_writing + nbytes > self.bytes_share

    def has(self, key: BlockKey, now_unix_s: float) -> bool:
        """Whether it has a record, as far as control knows."""
        return key in self.known if self.book is None else self.book.find(key, now_unix_s) is not None

    def have(
        self, namespace: Namespace, group: GroupId, hashes: Sequence[BlockHash], tenant: TenantTag, now_unix_s: float
    ) -> list[bool]:
        """The same of many blocks of a placed tier."""
        assert self.book is not None, f"{self.name} keeps no books here"
        return self.book.have(namespace, group, hashes, tenant, now_unix_s)

    def books(self, now_s: float) -> TierBooks:
        """A frozen snapshot."""
        tally = self.tally
        counts = {
            "queried": tally.queried,
            "hit": tally.hit,
            "miss": tally.queried - tally.hit,
            "loaded": tally.loaded,
            "load_failures": tally.load_failures,
            "late": tally.late,
            "declined": tally.declined,
        }
        breaker = _worst(each.state(now_s) for each in (self.asks, self.reads, self.writes))
        if self.book is None:
            gone = tally.purged + tally.quarantined + tally.lost
            # What others stored and we saw the end of was not counted at its beginning.
            stored = max(tally.stored, gone)
            return TierBooks(
                name=self.name,
                stored=stored,
                resident=stored - gone,
                purged=tally.purged,
                quarantined=tally.quarantined,
                lost=tally.lost,
                breaker=breaker,
                **counts,
            )
        of = self.book.statistics()
        return TierBooks(
            name=self.name,
            stored=of.stored,
            resident=of.resident,
            evicted=of.evicted,
            expired=of.expired,
            purged=of.purged,
            quarantined=of.quarantined,
            lost=of.lost,
            bytes_used=of.bytes_used,
            bytes_max=of.bytes_max,
            breaker=breaker,
            **counts,
        )


def _worst(states: Iterable[BreakerState]) -> BreakerState:
    order: tuple[BreakerState, ...] = ("closed", "half-open", "open")
    return max(states, key=order.index)
