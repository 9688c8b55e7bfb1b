"""The engine's face of everything below it: ask, plan, load, land; offer, store.

One lock; no I/O, no copies, nothing that blocks but `wait`. Safe to call from any thread; movers report into it.

    begin ─▶ is_answered ─▶ plan ─▶ load ─▶ (landed ─▶ taken)* ─▶ drop        drop at any time, as often as you like
    offer ─▶ Room ─▶ store | withdraw
"""

from collections.abc import Callable, Sequence

from kvist.base.clock import Calendar, Clock
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
from kvist.fabric.ports import Carrier
from kvist.fabric.settings import FabricSettings


class Fabric:
    """Decides what is kept, where, and what is loaded; moves nothing itself.

    Attributes:
        on_change: called without the lock, from a mover's thread, after anything that a waiting engine might want to
            know: a question answered, a piece landed, a load failed, staging freed. Must be short and must not raise.
    """

    def __init__(self, settings: FabricSettings, movers: Carrier, clock: Clock, calendar: Calendar) -> None:
        """Binds control to its movers and starts them."""
        self.on_change: Callable[[], None] | None = None
        raise NotImplementedError

    def begin(self, query: Query) -> Ticket:
        """Asks the keyed tiers about a sequence, in one batched question each; cheap where there are none.

        The ticket must be given to `drop` in the end, whatever became of it.
        """
        raise NotImplementedError

    def is_answered(self, ticket: Ticket) -> bool:
        """Whether `plan` has nothing more to wait for: no question is open, or its deadline has passed."""
        raise NotImplementedError

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:
        """Says how the sequence should begin; may be repeated, and is counted once. Holds nothing.

        Args:
            ticket: from `begin`.
            resident: `[group][index]`: which blocks of the chain G1 has; shorter lists end with False.
        """
        raise NotImplementedError

    def load(self, ticket: Ticket, plan: Plan) -> None:
        """Begins to load what the plan wants, which must be something; at most once per ticket."""
        raise NotImplementedError

    def landed(self, ticket: Ticket) -> Sequence[Landed]:
        """Pieces that have landed since the last call, in no particular order; each is told once."""
        raise NotImplementedError

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:
        """The engine has copied these pieces and looks at their buffers no more."""
        raise NotImplementedError

    def state(self, ticket: Ticket) -> LoadState:
        """How a load is doing.

        "complete": everything landed and was taken. "failed": more will not come, or not in time, and what came was
        taken. Until then "loading". A ticket that loads nothing is complete.
        """
        raise NotImplementedError

    def drop(self, ticket: Ticket) -> None:
        """Forgets a ticket in whatever state; unknown ones are ignored. Staging under I/O stays until that returns."""
        raise NotImplementedError

    def offer(self, offer: Offer) -> Room | Declined:
        """Asks for room to copy a block to, which is then to be stored in every tier that should have it."""
        raise NotImplementedError

    def store(self, rooms: Sequence[Room]) -> None:
        """The payloads lie in their rooms: begin to write them. The rooms are no longer the caller's."""
        raise NotImplementedError

    def withdraw(self, room: Room) -> None:
        """Gives back a room that was not stored."""
        raise NotImplementedError

    def has_copy(self, group: GroupId, block_hash: BlockHash) -> bool:
        """Whether some tier has the block, as far as control knows; about a microsecond."""
        raise NotImplementedError

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        """A step that did nothing but compute tokens [start, end) of one sequence took so long."""
        raise NotImplementedError

    def next_deadline_s(self) -> float | None:
        """When, by the monotonic clock, the next open question or running load is late; None: nothing waits."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until something has changed since the last `wait`, or so long; whether something has."""
        raise NotImplementedError

    def statistics(self) -> FabricStatistics:
        """A frozen snapshot."""
        raise NotImplementedError

    def audit(self) -> None:
        """Proves that holders, staging, books and jobs agree with the live tickets.

        Raises:
            AssertionError: naming what does not add up.
        """
        raise NotImplementedError

    def close(self, timeout_s: float) -> bool:
        """Lets running stores end, at most so long, then ends the movers; whether all of it ended in time."""
        raise NotImplementedError
