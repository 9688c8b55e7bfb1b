"""Failure as an input: a tier that fails as it is told to, for tests and for the lab.

A plan says which fault, if any, befalls which call. Faults of the whole call (`Fail`, `Wait`) befall any verb. Faults
of a record befall `read`, `lend` and `write`; elsewhere nothing happens. Below the records, in files and in sockets,
faults are the business of the tiers' own ports.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import xxhash

from kvist.base.errors import TierError, TierUnavailableError
from kvist.base.ids import BlockHash
from kvist.blocks.form import FormError, read_header, stamp_record
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import (
    Address,
    Damaged,
    Entry,
    Found,
    Lender,
    Read,
    ReadOutcome,
    Tier,
    TierStatistics,
    Verb,
    Write,
    WriteOutcome,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The call raises.

    Attributes:
        error: which kind: `TierFullError` for ENOSPC, `TierUnavailableError` for EIO or a dead peer, ...
        after: only once the tier has done what was asked: the answer is lost, not the request.
    """

    error: type[TierError]
    after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The call is late: it first waits until `wait` returns, which may be never."""

    wait: Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One bit of the call's last record is inverted; `bit` counts from its beginning, and round and round."""

    bit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """The value of the call's last record has so many bytes too many, or too few where negative."""

    by: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torn:
    """Of the call's last record only the first bytes are there, the rest are zeros.

    A write that is torn raises besides: the tier lists the record, and nobody was told that it is stored, as after a
    loss of power.
    """

    bytes_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Impostor:
    """In place of the call's last record there is a sound one of another key."""


Answer = TypeVar("Answer")

Fault = Fail | Wait | Flip | Resize | Torn | Impostor

Plan = Callable[[Verb, int], Fault | None]
"""Which fault befalls the n-th call of a verb, counted from 0; must give the same answer each time."""


def scripted(faults: Mapping[tuple[Verb, int], Fault]) -> Plan:
    """The plan of exactly these faults, by verb and number of the call."""
    return lambda verb, number: faults.get((verb, number))


def seeded(seed: int, faults: Sequence[Fault], *, one_in: int) -> Plan:
    """A plan that strikes one call in so many on average, with any of some faults; a seed is always the same plan."""
    assert faults, "a plan needs a fault"
    assert one_in > 0, f"one call in {one_in} cannot fail"

    def plan(verb: Verb, number: int) -> Fault | None:
        draw = xxhash.xxh3_64_intdigest(f"{verb} {number}".encode(), seed=seed % 2**64)
        which, left = divmod(draw, one_in)
        return None if left else faults[which % len(faults)]

    return plan


def faulty(tier: Tier, plan: Plan) -> "Faulty":
    """The tier with faults as planned; one that lends still lends."""
    return FaultyLender(tier, tier, plan) if isinstance(tier, Lender) else Faulty(tier, plan)


class Faulty:
    """A tier that fails as planned, and otherwise is the tier within."""

    def __init__(self, tier: Tier, plan: Plan) -> None:
        """Wraps a tier."""
        self._tier = tier
        self._plan = plan
        self._lock = threading.Lock()
        self._calls: Counter[Verb] = Counter()

    @property
    def name(self) -> str:
        """The name of the tier within."""
        return self._tier.name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within, or as planned."""
        fault = self._begin("find")
        return self._end(fault, self._tier.find(addresses))

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """As the tier within, or as planned; what lies in the tier stays as it is."""
        fault = self._begin("read")
        outcomes = list(self._end(fault, self._tier.read(reads)))
        if fault is not None and outcomes and isinstance(outcomes[-1], Found):
            if isinstance(fault, Resize):
                size = reads[-1].into.nbytes
                outcomes[-1] = Damaged(reason=f"{size + fault.by} bytes are there, not {size}")
            _damage(reads[-1].into, fault)
        return outcomes

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """As the tier within, or as planned; the tier then holds the damage, the caller's bytes are left alone."""
        fault = self._begin("write")
        if fault is not None and writes:
            writes = [*writes[:-1], replace(writes[-1], record=_damaged(writes[-1].record, fault))]
        outcomes = self._end(fault, self._tier.write(writes))
        if isinstance(fault, Torn):
            raise TierUnavailableError("the write was torn, as planned", tier=self.name)
        return outcomes

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """As the tier within, or as planned."""
        fault = self._begin("delete")
        return self._end(fault, self._tier.delete(addresses))

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """As the tier within, or as planned."""
        fault = self._begin("keep")
        return self._end(fault, self._tier.keep(addresses, pinned=pinned, expires_unix_s=expires_unix_s))

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """As the tier within, or as planned."""
        fault = self._begin("entries")
        return self._end(fault, self._tier.entries(tenant))

    def statistics(self) -> TierStatistics:
        """Of the tier within."""
        return self._tier.statistics()

    def close(self) -> None:
        """Closes the tier within; never fails."""
        self._tier.close()

    def _begin(self, verb: Verb) -> Fault | None:
        """The fault of this call; what comes before the tier is asked has happened."""
        with self._lock:
            number = self._calls[verb]
            self._calls[verb] += 1
        fault = self._plan(verb, number)
        if isinstance(fault, Wait):
            fault.wait()
        if isinstance(fault, Fail) and not fault.after:
            raise fault.error(f"{verb} failed, as planned", tier=self.name)
        return fault

    def _end(self, fault: Fault | None, answer: Answer) -> Answer:
        """The answer, unless it is lost."""
        if isinstance(fault, Fail):
            raise fault.error("the answer was lost, as planned", tier=self.name)
        return answer


class FaultyLender(Faulty):
    """A faulty tier that lends."""

    def __init__(self, tier: Tier, lender: Lender, plan: Plan) -> None:
        """Wraps a tier and what lends its records, usually itself."""
        super().__init__(tier, plan)
        self._lender = lender

    def lend(self, addresses: Sequence[Address]) -> Sequence[memoryview]:
        """As the tier within, or as planned; the last place is damaged where it lies and stays so."""
        fault = self._begin("lend")
        places = self._end(fault, self._lender.lend(addresses))
        if fault is not None and places:
            _damage(places[-1], fault)
        return places


def _damaged(record: memoryview, fault: Fault) -> memoryview:
    """A copy of a record that has suffered a fault."""
    by = fault.by if isinstance(fault, Resize) else 0
    copy = bytearray(record)[: max(0, record.nbytes + by)] + bytes(max(0, by))
    _damage(memoryview(copy), fault)
    return memoryview(copy)


def _damage(record: memoryview, fault: Fault) -> None:
    """Does to a record where it lies what a fault of its bytes does."""
    match fault:
        case Flip(bit=bit):
            byte, shift = divmod(bit % (record.nbytes * 8), 8)
            record[byte] ^= 1 << shift
        case Torn(bytes_kept=kept):
            record[kept:] = bytes(max(0, record.nbytes - kept))
        case Impostor():
            _replace(record)


def _replace(record: memoryview) -> None:
    """Makes a record one of another key, sound in itself; what is no record stays as it is."""
    try:
        header = read_header(record)
    except FormError:  # an earlier fault was here: it cannot be sound any more
        return
    other = BlockHash(xxhash.xxh3_128_digest(header.key.hash) * 2)
    stamp_record(record[: header.form.record_bytes], replace(header, key=header.key._replace(hash=other)))
