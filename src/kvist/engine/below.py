"""What the engine asks of the tiers below its own memory, and what it asks when there are none.

The verbs and their values are the fabric's (`kvist.fabric.messages`); the engine owns what it may rely on. Each call
returns at once: nothing here waits, copies a block or raises because of a tier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvist.base.ids import BlockHash, GroupId
from kvist.fabric.messages import (
    Declined,
    FabricStatistics,
    Landed,
    LoadState,
    Offer,
    Plan,
    Query,
    Room,
    Ticket,
)
from kvist.tiers.regions import Buffer


class Loads(Protocol):
    """Blocks from below, for sequences that have not begun; one ticket per sequence.

    begin, then `is_answered` until it is, then `plan` as often as wanted, then perhaps `load`, then `landed` and
    `taken` until `state` is final; `drop` at any time and in the end.
    """

    def begin(self, query: Query) -> Ticket | None:
        """Begins to find out what the tiers have of a sequence; None: there is nothing to find."""
        ...

    def is_answered(self, ticket: Ticket) -> bool:
        """Whether planning now is as good as planning later; becomes True within a bounded time."""
        ...

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:
        """How the sequence should begin, given which blocks of each group G1 has; holds nothing."""
        ...

    def load(self, ticket: Ticket, plan: Plan) -> None:
        """Begins to load what a plan wants, which must be something; once per ticket."""
        ...

    def landed(self, ticket: Ticket) -> Sequence[Landed]:
        """What has landed since the last call; the buffers stay as they are until `taken`, or `drop`."""
        ...

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:
        """These buffers are looked at no more."""
        ...

    def state(self, ticket: Ticket) -> LoadState:
        """Final once everything that will land was taken; becomes final within a bounded time."""
        ...

    def drop(self, ticket: Ticket) -> None:
        """Ends a ticket in whatever state; may be repeated."""
        ...


class Stores(Protocol):
    """Copies of blocks on their way down."""

    def offer(self, offer: Offer) -> Room | Declined:
        """Where to copy a block, or why not."""
        ...

    def store(self, rooms: Sequence[Room]) -> None:
        """The payloads lie in these rooms."""
        ...

    def withdraw(self, room: Room) -> None:
        """Nothing will be stored from this room."""
        ...

    def has_copy(self, group: GroupId, block_hash: BlockHash) -> bool:
        """Whether some tier has this block, as far as is known; about a microsecond."""
        ...


class Tiers(Loads, Stores, Protocol):
    """Everything below G1.

    Attributes:
        on_change: called from any thread after anything that may change an answer given above; must not block.
    """

    on_change: Callable[[], None] | None

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        """A step that computed nothing but tokens [start, end) of one sequence took so long."""
        ...

    def next_deadline_s(self) -> float | None:
        """When an answer may change by time alone; None: not before something else does."""
        ...

    def statistics(self) -> FabricStatistics | None:
        """A frozen snapshot; None where there are no tiers."""
        ...


class NoTiers:
    """Nothing below G1: there is nothing to find and nobody takes anything."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] | None = None

    def begin(self, query: Query) -> None:
        """There is nothing to find."""

    def is_answered(self, ticket: Ticket) -> bool:
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:  # noqa: ARG002  likewise
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def load(self, ticket: Ticket, plan: Plan) -> None:  # noqa: ARG002  likewise
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def landed(self, ticket: Ticket) -> Sequence[Landed]:
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:  # noqa: ARG002  likewise
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def state(self, ticket: Ticket) -> LoadState:
        """No ticket was ever given."""
        raise AssertionError(f"ticket {ticket} was not given here")

    def drop(self, ticket: Ticket) -> None:
        """Unknown tickets are ignored, and all are unknown."""

    def offer(self, offer: Offer) -> Declined:  # noqa: ARG002  the same for every offer
        """Nobody takes it."""
        return Declined(reason="no tier")

    def store(self, rooms: Sequence[Room]) -> None:
        """No room was ever given."""
        assert not rooms, f"{rooms} were not given here"

    def withdraw(self, room: Room) -> None:
        """No room was ever given."""
        raise AssertionError(f"{room} was not given here")

    def has_copy(self, group: GroupId, block_hash: BlockHash) -> bool:  # noqa: ARG002  the same for every block
        """There is nowhere to have one."""
        return False

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        """Nobody needs to know."""

    def next_deadline_s(self) -> float | None:
        """Nothing is waited for."""
        return None

    def statistics(self) -> None:
        """There are none."""


def _no_memory(buffer: Buffer) -> memoryview:
    raise AssertionError(f"{buffer} is in no memory known here")


def _no_time() -> float:
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The tiers, and what the engine needs to work with them; nothing at all by default.

    Attributes:
        tiers: to ask.
        view: the bytes of a buffer that the tiers named.
        time_s: reads the monotonic clock of their deadlines.
    """

    tiers: Tiers = field(default_factory=NoTiers)
    view: Callable[[Buffer], memoryview] = _no_memory
    time_s: Callable[[], float] = _no_time

    @property
    def is_nothing(self) -> bool:
        """Whether there are no tiers, and so nobody to offer anything to."""
        return isinstance(self.tiers, NoTiers)
