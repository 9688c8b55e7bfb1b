"""What the fabric needs of a tier: single verbs over raw records, combined where they are used.

A tier holds records (`kvist.blocks.form`) and knows nothing of what is in them: headers and checksums are the
business of `kvist.tiers.verified`, metrics and faults of other wrappers. All verbs take many at once, because each
may cost a round trip.

Two kinds of tier:
    * *placed*: bytes that Kvist owns (memory, disk). Who writes says where: the fabric's books hand out places, hold
      what is being read, and evict. The tier never chooses.
    * *keyed*: a store that others share. It finds records by key and evicts by its own rules; `Address.place` is None.

Who may call: `read`, `find`, `lend` and `write` from several threads at once, over different addresses; the fabric
never reads a place while it is written or deleted. `close` may come while others are inside: they end with a
`TierError` or with their result, never with bytes that are not the record's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from kvist.blocks.form import Form, Header
from kvist.blocks.keys import BlockKey, TenantTag


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Bytes [offset, offset + length) of a placed tier; `length` is the record's, rounded up to the alignment."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Which record: by key and tenant, and in a placed tier also where."""

    key: BlockKey
    tenant: TenantTag
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record that a tier says it has.

    Attributes:
        address: what and where.
        record_bytes: its length.
        created_unix_s, expires_unix_s: wall-clock seconds; None: it does not expire.
        pinned: whether it may be evicted; a keyed tier counts a record without expiry as pinned when asked to pin it.
    """

    address: Address
    record_bytes: int
    created_unix_s: float
    expires_unix_s: float | None
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One record to fetch into `into`, which is as long as the record should be.

    Attributes:
        form: what it must look like, where the asker knows; only `kvist.tiers.verified` looks at it.
    """

    address: Address
    into: memoryview
    form: Form | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One record to store; `record` must not change until the call returns."""

    address: Address
    record: memoryview
    created_unix_s: float
    expires_unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The record is in the buffer, all of it.

    Attributes:
        header: what it says of itself; None unless it was verified (`kvist.tiers.verified`).
    """

    header: Header | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """There is no such record (any more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """There is something, and it is not the record: another length, another key, another checksum."""

    reason: str


ReadOutcome = Found | Absent | Damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The record is there and survives the death of this process, in tiers that do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    """The record was not taken, for a reason that concerns this record alone; nothing of it is left.

    Attributes:
        lacks_room: whether the medium has no room for this place, as long as nobody frees some; for others it may have.
    """

    reason: str
    lacks_room: bool = False


WriteOutcome = Stored | NotStored


class Finder(Protocol):
    """Asks which records exist, in one round trip."""

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """Whether each record is there, in order. Reads nothing of the records themselves.

        Raises:
            TierError: the tier cannot be asked.
        """
        ...


class Reader(Protocol):
    """Fetches records."""

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """Fills each buffer, or says why not, in order; a buffer that is not `Found` may hold anything.

        Raises:
            TierError: the tier failed as a whole; every buffer may hold anything.
        """
        ...


@runtime_checkable
class Lender(Protocol):
    """Shows records where they lie, for tiers whose bytes are memory; `isinstance` tells which ones those are."""

    def lend(self, addresses: Sequence[Address]) -> Sequence[memoryview]:
        """The bytes of each place, in order, whatever lies there. The fabric holds them until it no longer looks.

        A record begins where its place does; who looks proves first that it is there (`kvist.tiers.verified`).

        Raises:
            TierError: the tier is closed, or a place is outside it.
        """
        ...


class Writer(Protocol):
    """Stores records."""

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """Stores each record under its address, in order; what was under the key before is replaced.

        When the call returns, each `Stored` record is durable in the sense of its tier: no crash of this process
        loses or tears it.

        Raises:
            TierError: the tier failed as a whole; of each record either all or nothing is there.
        """
        ...


class Deleter(Protocol):
    """Forgets records."""

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """Removes each record; whether there was one, in order. Their places may then be written again.

        Raises:
            TierError: the tier failed as a whole; each record is either there as before or gone.
        """
        ...


class Keeper(Protocol):
    """Says how long records stay."""

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """Sets pin and expiry of each record that is there; whether it was, in order.

        Raises:
            TierError: the tier failed as a whole.
        """
        ...


class Lister(Protocol):
    """Enumerates records."""

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """Every record, or those of one tenant, oldest first where the tier knows ages; changes nothing.

        Records written or removed meanwhile may or may not be seen.

        Raises:
            TierError: the tier cannot be asked.
        """
        ...


Verb = Literal["find", "read", "lend", "write", "delete", "keep", "entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbUse:
    """How often a verb was called, and how many seconds its calls took together, those that raised included."""

    verb: Verb
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatistics:
    """A snapshot of one tier.

    Attributes:
        records, bytes_used: what it holds; None where only the store itself knows.
        bytes_max: the hard bound, all overhead included; None where it is the store's own.
        bytes_overhead: index, alignment and temporary files within bytes_used.
        records_lost: that were stored by an earlier process, and at the start were not there or had no room.
        reads, writes, deletes: records, not calls; bytes_read, bytes_written: of records.
        damaged: reads that met something that was not the record.
        failures: calls that raised.
        verbs: those that were called, where somebody measures.
    """

    records: int | None = None
    bytes_used: int | None = None
    bytes_max: int | None = None
    bytes_overhead: int = 0
    records_lost: int = 0
    reads: int = 0
    writes: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    damaged: int = 0
    failures: int = 0
    verbs: tuple[VerbUse, ...] = ()


class Tier(Finder, Reader, Writer, Deleter, Keeper, Lister, Protocol):
    """A store of records, with everything the fabric asks of one."""

    @property
    def name(self) -> str:
        """What configuration and metrics call it."""
        ...

    def statistics(self) -> TierStatistics:
        """A frozen snapshot; touches no medium."""
        ...

    def close(self) -> None:
        """Ends all use; may be repeated. Later calls raise `TierError`."""
        ...
