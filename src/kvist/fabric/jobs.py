"""What control asks of movers and what they report: plain values, because the two may be different processes.

Each job names one tier (stamping none) and carries a ticket of its own, under which exactly one report comes back,
whatever happens. Buffers are places in shared memory. Lanes keep apart what must not wait for each other: questions,
reads, an operator's listings, and everything that changes a tier. The last is one queue with one thread, so that a
place is never written before what was there has been deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.form import Form, Header
from kvist.blocks.keys import Namespace, TenantTag
from kvist.fabric.messages import Ticket, TierName
from kvist.tiers.ports import Address, Entry, ReadOutcome, WriteOutcome
from kvist.tiers.regions import Buffer

Lane = Literal["ask", "read", "change", "list"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindJob:
    """Asks a keyed tier which blocks of some groups it has; addresses are made by the mover, there may be thousands."""

    ticket: Ticket
    tier: TierName
    tenant: TenantTag
    namespace: Namespace
    groups: tuple[tuple[GroupId, Sequence[BlockHash]], ...]


class LoadOrder(NamedTuple):
    """One record to fetch into `buffer` and to verify; without a buffer it is verified where the tier lends it."""

    address: Address
    form: Form | None
    buffer: Buffer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Fetches records; skipped if it has not begun by `deadline_s` (monotonic)."""

    ticket: Ticket
    tier: TierName
    orders: tuple[LoadOrder, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StampJob:
    """Writes headers and checksums in front of payloads that lie in staging."""

    ticket: Ticket
    orders: tuple[tuple[Buffer, Header], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOrder:
    """One stamped record to write."""

    address: Address
    buffer: Buffer
    created_unix_s: float
    expires_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreJob:
    """Deletes what gave up its place, then writes."""

    ticket: Ticket
    tier: TierName
    evicted: tuple[Address, ...]
    orders: tuple[StoreOrder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Deletes records."""

    ticket: Ticket
    tier: TierName
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepJob:
    """Sets pin and expiry of records."""

    ticket: Ticket
    tier: TierName
    addresses: tuple[Address, ...]
    pinned: bool
    expires_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJob:
    """Lists the next entries of a tier, at most so many; a tier is gone through once for all of a listing's parts.

    Attributes:
        listing: the ticket of the job that began it: this one, or an earlier one.
        most: 0 ends the listing; a part that is not full has ended it.
    """

    ticket: Ticket
    tier: TierName
    tenant: TenantTag | None
    listing: Ticket
    most: int


Job = FindJob | LoadJob | StampJob | StoreJob | DeleteJob | KeepJob | ListJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Of a `FindJob`: presence by group, in its order."""

    ticket: Ticket
    found: tuple[Sequence[bool], ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Of a `LoadJob`: one outcome per order, `Found` ones with their headers; seconds of work, without the queue."""

    ticket: Ticket
    outcomes: tuple[ReadOutcome, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """Of a `StampJob`."""

    ticket: Ticket


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Of a `StoreJob`: one outcome per order; everything evicted is gone."""

    ticket: Ticket
    outcomes: tuple[WriteOutcome, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Of a `DeleteJob` or a `KeepJob`: whether each record was there."""

    ticket: Ticket
    present: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Of a `ListJob`; fewer entries than asked for: there are no more."""

    ticket: Ticket
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The tier, or the mover itself, failed: nothing is known of the job's effects."""

    ticket: Ticket
    error: KvistError


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """The job never began: its deadline had passed, or movers are closing."""

    ticket: Ticket


Report = Answered | Loaded | Stamped | Written | Changed | Listed | Broken | Skipped


def lane_of(job: Job) -> Lane:
    """Which of its tier's queues a job waits in."""
    match job:
        case FindJob():
            return "ask"
        case LoadJob():
            return "read"
        case ListJob():
            return "list"
        case _:
            return "change"
