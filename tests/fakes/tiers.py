"""A tier as one would say it, and the makers of every tier that the contract suite and the state machine run over.

An implementation joins with one entry in TIERS: a function without arguments that opens a fresh, empty tier for the
length of a `with`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3

from fakes.clock import HandClock
from kvist.base.errors import TierUnavailableError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.form import HEADER_BYTES, Form, Header, Part, Plane, stamp_record
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.faulty import faulty, scripted
from kvist.tiers.memory import MemoryTier
from kvist.tiers.metered import metered
from kvist.tiers.ports import (
    Absent,
    Address,
    Damaged,
    Entry,
    Found,
    Place,
    Read,
    ReadOutcome,
    Stored,
    Tier,
    TierStatistics,
    Write,
    WriteOutcome,
)
from kvist.tiers.regions import Region, RegionId
from kvist.tiers.verified import verified
from real.redis import shared_server

BLUE, RED = TenantTag(b"blue".ljust(16)), TenantTag(b"red".ljust(16))
NOW_UNIX_S, PAST_UNIX_S, FUTURE_UNIX_S = 1_800_000_000.0, 1_000_000_000.0, 4_000_000_000.0
"""Now for tiers whose calendar we hold; the past and the future are so for real calendars as well."""


def key_of(number: int, tenant: TenantTag = BLUE) -> BlockKey:
    """One of many keys; a tenant's are its own, since hashes are."""
    block_hash = blake3(number.to_bytes(8, "little") + tenant).digest()
    return BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", BlockHash(block_hash))


def form_of(record_bytes: int) -> Form:
    """The form of records of so many bytes: one plane of numbers of 2 bytes."""
    numbers, odd = divmod(record_bytes - HEADER_BYTES, 2)
    assert numbers >= 0, f"{record_bytes} bytes are too few for a header"
    assert not odd, f"{record_bytes} bytes are no header and numbers of 2 bytes"
    planes = (Plane("kv", "bfloat16", (numbers,)),)
    return Form(planes=planes, part=Part(0, 1, 0, 1))


def record_of(address: Address, record_bytes: int, version: int = 0) -> memoryview:
    """A whole record as the fabric would make it; another version has another payload."""
    record = memoryview(bytearray(record_bytes))
    seed = blake3(address.key.hash + version.to_bytes(8, "little"))
    record[HEADER_BYTES:] = seed.digest(length=record_bytes - HEADER_BYTES)
    header = Header(
        key=address.key,
        tenant=address.tenant,
        form=form_of(record_bytes),
        first_position=16,
        tokens_valid=16,
        created_unix_s=NOW_UNIX_S,
    )
    stamp_record(record, header)
    return record


def write_of(address: Address, record_bytes: int = 600, version: int = 0, expires: float | None = None) -> Write:
    """To store the record of an address; later versions are younger."""
    record = record_of(address, record_bytes, version)
    created = NOW_UNIX_S + version
    return Write(address=address, record=record, created_unix_s=created, expires_unix_s=expires)


def read_of(address: Address, record_bytes: int = 600) -> Read:
    """To fetch a record into a buffer that is full of something else."""
    into = memoryview(bytearray(b"\xee" * record_bytes))
    return Read(address=address, into=into, form=form_of(record_bytes))


class DictTier:
    """A keyed tier made of one dict; expires by a calendar that stands at NOW_UNIX_S."""

    def __init__(self, name: str = "dict") -> None:
        self.name = name
        self._rows: dict[Address, tuple[bytes, Entry]] = {}
        self._is_closed = False

    def _row(self, address: Address) -> tuple[bytes, Entry] | None:
        if self._is_closed:
            raise TierUnavailableError("it is closed", tier=self.name)
        assert address.place is None, f"{address} has a place, and this is no placed tier"
        row = self._rows.get(address)
        return row if row is not None and (row[1].expires_unix_s or FUTURE_UNIX_S) > NOW_UNIX_S else None

    def _check_open(self) -> None:
        if self._is_closed:
            raise TierUnavailableError("it is closed", tier=self.name)

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        self._check_open()
        return [self._row(address) is not None for address in addresses]

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        self._check_open()
        return [self._read(each) for each in reads]

    def _read(self, read: Read) -> ReadOutcome:
        row = self._row(read.address)
        if row is None:
            return Absent()
        if len(row[0]) != read.into.nbytes:
            return Damaged(reason=f"{len(row[0])} bytes, not {read.into.nbytes}")
        read.into[:] = row[0]
        return Found()

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        self._check_open()
        for each in writes:
            entry = Entry(
                address=each.address,
                record_bytes=each.record.nbytes,
                created_unix_s=each.created_unix_s,
                expires_unix_s=each.expires_unix_s,
                pinned=False,
            )
            self._rows[each.address] = (bytes(each.record), entry)
        return [Stored() for _ in writes]

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        self._check_open()
        found = []
        for address in addresses:
            found.append(self._row(address) is not None)
            self._rows.pop(address, None)
        return found

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        found = self.find(addresses)
        for address in (address for address, there in zip(addresses, found, strict=True) if there):
            record, entry = self._rows[address]
            self._rows[address] = (record, replace(entry, pinned=pinned, expires_unix_s=expires_unix_s))
        return found

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        self._check_open()
        entries = [entry for address, (_, entry) in list(self._rows.items()) if self._row(address) is not None]
        mine = [entry for entry in entries if tenant in (None, entry.address.tenant)]
        return iter(sorted(mine, key=lambda entry: entry.created_unix_s))

    def statistics(self) -> TierStatistics:
        return TierStatistics(records=None if self._is_closed else len(list(self.entries())))

    def close(self) -> None:
        self._is_closed = True


@dataclass(slots=True, kw_only=True)
class Trial:
    """A tier under test, and what a test must know of it.

    Attributes:
        tier: fresh and empty.
        alignment: of its places in bytes; None: it is keyed.
        bytes_max: bytes that its places may take.
        knows_ages: whether its entries tell when a record was made.
    """

    tier: Tier
    alignment: int | None = None
    bytes_max: int = 48 * 2**20
    knows_ages: bool = True
    _taken: int = field(default=0, init=False)

    @property
    def placed(self) -> bool:
        """Whether addresses have places."""
        return self.alignment is not None

    def place(self, record_bytes: int) -> Place | None:
        """A place for such a record that no other has had yet; None in a keyed tier."""
        if self.alignment is None:
            return None
        place = Place(offset=self._taken, length=-(-record_bytes // self.alignment) * self.alignment)
        self._taken += place.length
        assert self._taken <= self.bytes_max, f"the test takes more than {self.bytes_max} bytes"
        return place

    def address(self, number: int, record_bytes: int = 600, tenant: TenantTag = BLUE) -> Address:
        """The address of a key, at a place of its own."""
        return Address(key=key_of(number, tenant), tenant=tenant, place=self.place(record_bytes))

    def addresses(self, count: int, record_bytes: int = 600, tenant: TenantTag = BLUE) -> list[Address]:
        """Addresses of the keys 0, 1, ..."""
        return [self.address(number, record_bytes, tenant) for number in range(count)]


Maker = Callable[[], AbstractContextManager[Trial]]


@contextmanager
def dict_trial() -> Iterator[Trial]:
    """The tier made of a dict."""
    yield Trial(tier=DictTier())


@cache
def _region() -> Region:
    """One for all trials: a tier begins empty, whatever its region holds."""
    return Region(RegionId("trial"), 48 * 2**20)


@contextmanager
def memory_trial() -> Iterator[Trial]:
    """Host memory."""
    tier = MemoryTier("memory", _region(), alignment=64)
    yield Trial(tier=tier, alignment=64)
    tier.close()


def wrapped(maker: Maker, *wrappers: Callable[[Tier], Tier]) -> Maker:
    """The trials of a tier within wrappers, the innermost first."""

    @contextmanager
    def trial() -> Iterator[Trial]:
        with maker() as made:
            for wrap in wrappers:
                made.tier = wrap(made.tier)
            yield made

    return trial


def timed(tier: Tier) -> Tier:
    """Metered by a clock that stands still."""
    return metered(tier, HandClock())


def faultless(tier: Tier) -> Tier:
    """Faulty by a plan without a fault."""
    return faulty(tier, scripted({}))


@contextmanager
def redis_trial() -> Iterator[Trial]:
    """A real server, emptied before; it tells ages, but lists in no order."""
    server = shared_server()
    server.ask("FLUSHALL")
    tier = server.tier()
    yield Trial(tier=tier, knows_ages=False)
    tier.close()


@contextmanager
def disk_trial() -> Iterator[Trial]:
    """A directory; one segment holds all, since the places of a trial follow each other without regard to segments."""
    with TemporaryDirectory(prefix="kvist-disk-") as directory:
        settings = DiskSettings(
            directory=Path(directory),
            bytes_max=80 * 2**20,
            bytes_free_min=0,
            record_bytes_min=4096,
            segment_bytes=64 * 2**20,
        )
        tier = DiskTier("disk", settings)
        yield Trial(tier=tier, alignment=tier.alignment)
        tier.close()


TIERS: dict[str, Maker] = {"dict": dict_trial, "memory": memory_trial, "disk": disk_trial, "redis": redis_trial}
"""Every tier, by the name that a test run shows."""

WRAPPERS: dict[str, Callable[[Tier], Tier]] = {"verified": verified, "metered": timed, "faulty": faultless}

MAKERS: dict[str, Maker] = {
    **TIERS,
    **{f"{name} {tier}": wrapped(TIERS[tier], wrap) for name, wrap in WRAPPERS.items() for tier in ("dict", "memory")},
    "all over memory": wrapped(memory_trial, faultless, verified, timed),
}
"""Every tier, and every wrapper over one tier of each kind."""
