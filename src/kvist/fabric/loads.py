"""One load: what it wants, what is being read, what has landed, and what it holds for each. Data; decides nothing."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvist.blocks.form import Form
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.messages import Ticket, Want
from kvist.fabric.parcels import Parcel
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Address


class Item:
    """One block that a load wants.

    Attributes:
        tier, address: from where it is to come now.
        is_held: whether that tier's books hold it for the load.
        parcel: where in staging it is read to; None: nowhere yet, or it is looked at in place.
        tried: tiers from which it did not come.
    """

    __slots__ = ("address", "form", "is_held", "key", "parcel", "record_bytes", "tier", "tried", "want")
    tier: TierState
    address: Address

    def __init__(self, want: Want, form: Form | None, record_bytes: int, key: BlockKey) -> None:
        self.want = want
        self.form = form
        self.record_bytes = record_bytes
        self.key = key
        self.is_held = False
        self.parcel: Parcel | None = None
        self.tried: tuple[TierState, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Errand:
    """What an operator asked for: to read records from their tier, whole, and perhaps to write them to another.

    Attributes:
        target: where to write what was read; None: nowhere.
        sound, damaged, absent, unread: what became of the records.
    """

    target: TierState | None = None
    sound: int = 0
    damaged: int = 0
    absent: int = 0
    unread: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Load:
    """One load. An item is in exactly one of the four collections.

    Attributes:
        wanted: by tier: to be read, in the order of positions.
        reading: by job.
        arrived: verified, not told to the engine yet.
        handed: told, and not taken yet.
        failed_index: the first position known not to come; None: all may come.
        is_late: its deadline has passed; nothing that comes now counts.
        is_void: its namespace is over; likewise.
        is_dropped: its ticket is gone; it only waits for I/O to return.
        errand: None: it is an engine's.
    """

    ticket: Ticket
    tenant: TenantTag
    deadline_s: float
    wanted: dict[TierState, deque[Item]] = field(default_factory=dict)
    reading: dict[Ticket, tuple[Item, ...]] = field(default_factory=dict)
    arrived: list[Item] = field(default_factory=list)
    handed: dict[Want, Item] = field(default_factory=dict)
    failed_index: int | None = None
    is_late: bool = False
    is_void: bool = False
    is_dropped: bool = False
    errand: Errand | None = None

    @property
    def is_over(self) -> bool:
        """Whether it holds nothing any more."""
        return not (self.wanted or self.reading or self.arrived or self.handed)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody looks at what comes now."""
        return self.is_dropped or self.is_late or self.is_void

    def want(self, item: Item) -> None:
        """Puts an item into its tier's queue."""
        queue = self.wanted.get(item.tier)
        if queue is None:
            queue = self.wanted[item.tier] = deque()
        queue.append(item)

    def unwanted(self, first_index: int = 0) -> Iterator[Item]:
        """Takes everything from this position on out of the queues."""
        for tier, queue in list(self.wanted.items()):
            kept: deque[Item] = deque()
            for item in queue:
                if item.want.index >= first_index:
                    yield item
                else:
                    kept.append(item)
            if kept:
                self.wanted[tier] = kept
            else:
                del self.wanted[tier]
