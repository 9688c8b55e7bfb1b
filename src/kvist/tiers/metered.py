"""Counts and times what a tier does, so that no tier has to.

Law: the counters say what happened, whatever happened: a call that raises is counted, with its seconds.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from kvist.base.clock import Clock
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import (
    Address,
    Damaged,
    Entry,
    Found,
    Lender,
    Read,
    ReadOutcome,
    Stored,
    Tier,
    TierStatistics,
    Verb,
    VerbUse,
    Write,
    WriteOutcome,
)


def metered(tier: Tier, clock: Clock) -> "Metered":
    """The tier with its use counted and timed; one that lends still lends."""
    return MeteredLender(tier, tier, clock) if isinstance(tier, Lender) else Metered(tier, clock)


class Metered:
    """A tier whose statistics tell how it was used; its answers are those of the tier within."""

    def __init__(self, tier: Tier, clock: Clock) -> None:
        """Wraps a tier.

        Args:
            tier: must not be used directly any more.
            clock: the calls are timed by it.
        """
        self._tier = tier
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = TierStatistics()
        self._uses: dict[Verb, VerbUse] = {}

    @property
    def name(self) -> str:
        """The name of the tier within."""
        return self._tier.name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within."""
        with self._measured("find"):
            return self._tier.find(addresses)

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """As the tier within; counts what was found, and what was damaged."""
        with self._measured("read"):
            outcomes = self._tier.read(reads)
        found = [each.into.nbytes for each, outcome in zip(reads, outcomes, strict=True) if isinstance(outcome, Found)]
        damaged = sum(isinstance(outcome, Damaged) for outcome in outcomes)
        self._count(reads=len(found), bytes_read=sum(found), damaged=damaged)
        return outcomes

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """As the tier within; counts what was stored."""
        with self._measured("write"):
            outcomes = self._tier.write(writes)
        pairs = zip(writes, outcomes, strict=True)
        stored = [each.record.nbytes for each, outcome in pairs if isinstance(outcome, Stored)]
        self._count(writes=len(stored), bytes_written=sum(stored))
        return outcomes

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within; counts what was there."""
        with self._measured("delete"):
            gone = self._tier.delete(addresses)
        self._count(deletes=sum(gone))
        return gone

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """As the tier within."""
        with self._measured("keep"):
            return self._tier.keep(addresses, pinned=pinned, expires_unix_s=expires_unix_s)

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """As the tier within; the time that the caller takes between two entries is not counted."""
        with self._measured("entries"):
            entries = iter(self._tier.entries(tenant))
        return self._measured_steps(entries)

    def statistics(self) -> TierStatistics:
        """What the tier within holds, and how it was used through this wrapper."""
        held = self._tier.statistics()
        with self._lock:
            return replace(
                self._counts,
                records=held.records,
                bytes_used=held.bytes_used,
                bytes_max=held.bytes_max,
                bytes_overhead=held.bytes_overhead,
                records_lost=held.records_lost,
                verbs=tuple(self._uses.values()),
            )

    def close(self) -> None:
        """Closes the tier within."""
        self._tier.close()

    def _measured_steps(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        while True:
            with self._measured("entries", calls=0):
                entry = next(entries, None)
            if entry is None:
                return
            yield entry

    @contextmanager
    def _measured(self, verb: Verb, *, calls: int = 1) -> Iterator[None]:
        """Adds to the seconds of a verb what happens within, and a failure if it raises."""
        begun_s, ended = self._clock.now_s(), False
        try:
            yield
            ended = True
        finally:
            took_s = self._clock.now_s() - begun_s
            with self._lock:
                use = self._uses.get(verb, VerbUse(verb=verb, calls=0, seconds=0.0))
                self._uses[verb] = replace(use, calls=use.calls + calls, seconds=use.seconds + took_s)
            if not ended:
                self._count(failures=1)

    def _count(self, **more: int) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + count for name, count in more.items()}
            self._counts = replace(self._counts, **sums)


class MeteredLender(Metered):
    """A metered tier that lends."""

    def __init__(self, tier: Tier, lender: Lender, clock: Clock) -> None:
        """Wraps a tier and what lends its records, usually itself."""
        super().__init__(tier, clock)
        self._lender = lender

    def lend(self, addresses: Sequence[Address]) -> Sequence[memoryview]:
        """As the tier within; each lent place counts as a read of its bytes."""
        with self._measured("lend"):
            places = self._lender.lend(addresses)
        self._count(reads=len(places), bytes_read=sum(place.nbytes for place in places))
        return places
