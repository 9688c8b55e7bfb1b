"""Records in staging, and who still needs each: the engine that copies it, the tiers that fill or write it.

A record lies in staging once, however many use it; the last one to leave frees the bytes. Users are named by tickets
(of a load, a room, a job), so that a forgotten one can be found.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kvist.base.units import rounded_up
from kvist.blocks.form import HEADER_BYTES
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.messages import Ticket
from kvist.fabric.staging import STAGING_ALIGNMENT, Staging
from kvist.tiers.regions import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Which block of which sequence a record is about; `index` gives its first position."""

    key: BlockKey
    tenant: TenantTag
    index: int
    record_bytes: int


class Parcel:
    """One record's bytes in staging.

    Attributes:
        owner: as which staging knows it.
        users: who needs it; the parcel's own owner is the room that it was offered as.
        stores: whether it came to be stored, and not to be loaded.
    """

    __slots__ = ("buffer", "owner", "stores", "subject", "users")

    def __init__(self, owner: Ticket, subject: Subject, buffer: Buffer) -> None:
        self.owner = owner
        self.subject = subject
        self.buffer = buffer
        self.users: set[Ticket] = set()
        self.stores = False

    @property
    def staged_bytes(self) -> int:
        """Bytes of staging that it takes."""
        return staged_bytes(self.buffer.length)


def payload_of(record: Buffer) -> Buffer:
    """The part of a record's bytes that is behind its header."""
    return Buffer(region=record.region, offset=record.offset + HEADER_BYTES, length=record.length - HEADER_BYTES)


def staged_bytes(record_bytes: int) -> int:
    """Bytes of staging that a record takes."""
    return rounded_up(record_bytes, STAGING_ALIGNMENT)


class Parcels:
    """All records in staging.

    Attributes:
        bytes_storing: of records that came to be stored.
    """

    def __init__(self, staging: Staging, new_ticket: Callable[[], Ticket]) -> None:
        """Starts with everything free."""
        self._staging = staging
        self._new_ticket = new_ticket
        self._parcels: dict[Ticket, Parcel] = {}
        self.bytes_storing = 0

    @property
    def bytes_used(self) -> int:
        """Of staging."""
        return self._staging.bytes_used

    @property
    def bytes_max(self) -> int:
        """Of staging."""
        return self._staging.bytes_max

    def can_ever_hold(self, record_bytes: int) -> bool:
        """Whether a record would fit if staging were empty."""
        return self._staging.why_never(record_bytes) is None

    def to_load(self, subject: Subject, load: Ticket) -> Parcel | None:
        """Bytes for a record that a load wants, or None while there is no room."""
        parcel = self._take(subject)
        if parcel is not None:
            parcel.users.add(load)
        return parcel

    def to_store(self, subject: Subject) -> Parcel | None:
        """Bytes for a record that will be stored, used by the room itself, or None while there is no room."""
        parcel = self._take(subject)
        if parcel is not None:
            parcel.users.add(parcel.owner)
            parcel.stores = True
            self.bytes_storing += parcel.staged_bytes
        return parcel

    def leave(self, parcel: Parcel, user: Ticket) -> None:
        """Ends one user's interest; the last one frees the bytes."""
        parcel.users.remove(user)
        if not parcel.users:
            del self._parcels[parcel.owner]
            self._staging.give(parcel.buffer, parcel.owner)
            self.bytes_storing -= parcel.staged_bytes if parcel.stores else 0

    def audit(self, live: Collection[Ticket]) -> None:
        """Proves that every parcel is needed by somebody alive, and that staging agrees.

        Raises:
            AssertionError: naming the parcel.
        """
        for parcel in self._parcels.values():
            dead = parcel.users - set(live)
            assert parcel.users, f"{parcel.buffer} is nobody's"
            assert not dead, f"{parcel.buffer} is used by {dead}, who are gone"
        storing = sum(parcel.staged_bytes for parcel in self._parcels.values() if parcel.stores)
        assert storing == self.bytes_storing, (
            f"{self.bytes_storing} bytes to be stored are counted, there are {storing}"
        )
        self._staging.audit(self._parcels.keys())

    def _take(self, subject: Subject) -> Parcel | None:
        owner = self._new_ticket()
        buffer = self._staging.take(owner, subject.record_bytes)
        if buffer is None:
            return None
        parcel = self._parcels[owner] = Parcel(owner, subject, buffer)
        return parcel
