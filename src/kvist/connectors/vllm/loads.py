"""Requests that are parked while their beginning is loaded.

    loading ── landed ──▶ ordered ── acknowledged by all workers ──▶ taken
       └── all ordered, or no more will come, or the request is gone ──▶ ended, told once with a `LoadEnd`

Laws:
    * Whoever was given blocks for a load is told its end exactly once: without it vLLM waits for ever, and a second
      time ends it.
    * An ended load stays here until nothing of it stands in an order.
    * A load is tried once: a request whose load failed computes what it lacks, unless it is preempted later.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from kvist.base.clock import Clock
from kvist.base.units import rounded_up
from kvist.connectors.vllm.orders import CopyOrder, InOrder, LoadEnd
from kvist.connectors.vllm.outstanding import Outstanding
from kvist.connectors.vllm.parked import Load, Piece, Tables
from kvist.connectors.vllm.settings import SchedulerSettings
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Landed, Room, Ticket

Outcome = Literal["complete", "failed", "late", "aborted", "reset"]


class Loads:
    """All loads.

    Attributes:
        outcomes: what became of those that have ended.
    """

    def __init__(
        self, fabric: Fabric, settings: SchedulerSettings, clock: Clock, outstanding: Outstanding[Piece | Room]
    ) -> None:
        """Loads from a fabric; its orders are numbered and remembered by `outstanding`."""
        self.outcomes: Counter[str] = Counter()
        self._fabric = fabric
        self._settings = settings
        self._clock = clock
        self._outstanding = outstanding
        self._loading: dict[str, Load] = {}
        self._ending: dict[Ticket, Load] = {}
        self._untold: set[str] = set()

    @property
    def running(self) -> int:
        """Loads that have not ended."""
        return len(self._loading)

    @property
    def tickets(self) -> list[Ticket]:
        """Of all that the fabric still has to know of."""
        return [*(load.ticket for load in self._loading.values()), *self._ending]

    def begin(self, load: Load, tables: Tables, tokens: int) -> None:
        """Begins to load the first so many tokens of what was claimed, into the blocks that vLLM gave for them."""
        assert load.request not in self._loading, f"{load.request} loads already"
        load.tables = tuple(tuple(table) for table in tables)
        size = self._settings.block_tokens
        load.end = rounded_up(load.claim.computed + tokens, size) // size
        for want in load.claim.plan.wants:
            blocks = self._blocks(load, want.group, want.index)
            if want.index < load.end and any(blocks):
                load.targets[want.group, want.index] = blocks
        self._loading[load.request] = load
        plan = load.claim.plan_from(self._clock.now_s())
        load.deadline_s = plan.deadline_s
        self._fabric.load(load.ticket, plan)

    def step(self, bytes_max: int | None) -> tuple[list[InOrder], list[LoadEnd], int]:
        """What is to be copied in now, about so much at most; which loads end with that; and the bytes of it."""
        orders: list[InOrder] = []
        ends: list[LoadEnd] = []
        copied = 0
        for load in list(self._loading.values()):
            if not (load.is_gone or load.is_void):
                self._collect(load)
                while load.arrived and (bytes_max is None or copied < bytes_max):
                    landed, blocks = load.arrived.popleft()
                    orders.append(self._order(load, landed, blocks))
                    copied += landed.buffer.length
            outcome = self._outcome(load)
            if outcome is not None:
                ends.append(self._end(load, outcome))
        return orders, ends, copied

    def acknowledged(self, pieces: Iterable[tuple[Piece, bool]]) -> None:
        """All workers are done with these pieces; whether each of them carried it out."""
        by_load: dict[Ticket, list[Piece]] = defaultdict(list)
        for piece, is_sound in pieces:
            by_load[piece.load.ticket].append(piece)
            if not is_sound:
                load, index = piece.load, piece.landed.want.index
                load.failed_index = index if load.failed_index is None else min(index, load.failed_index)
                load.life.may_load = False
        for ticket, taken in by_load.items():
            load = taken[0].load
            load.ordered -= len(taken)
            self._fabric.taken(ticket, [piece.landed for piece in taken])
            if not load.ordered and self._ending.pop(ticket, None) is not None:
                self._fabric.drop(ticket)

    def told(self, request_ids: Iterable[str]) -> None:
        """The ends of their loads have reached vLLM."""
        self._untold.difference_update(request_ids)

    def is_loading(self, request_id: str) -> bool:
        """Whether a request is parked."""
        return request_id in self._loading

    def leave(self, request_id: str) -> bool:
        """A request has ended; whether vLLM keeps its blocks until it is told the end of its load."""
        load = self._loading.get(request_id)
        if load is not None:
            load.is_gone = True
        return load is not None or request_id in self._untold

    def void(self) -> None:
        """The cache was reset: what is being loaded is of no use."""
        for load in self._loading.values():
            load.is_void = True

    def close(self) -> None:
        """Nobody waits any more."""
        for ticket in self.tickets:
            self._fabric.drop(ticket)
        self._loading.clear()
        self._ending.clear()

    def audit(self, owners: Collection[Piece | Room]) -> None:
        """Proves that every load is waited for, and that what stands in orders is in some load.

        Raises:
            AssertionError: naming the load.
        """
        loads = [*self._loading.values(), *self._ending.values()]
        ordered = Counter(piece.load.ticket for piece in owners if isinstance(piece, Piece))
        assert ordered.keys() <= {load.ticket for load in loads}, f"{ordered} are in orders, {self.tickets} are known"
        for load in loads:
            assert load.ordered == ordered[load.ticket], f"{load.request} counts {load.ordered} orders"
        for load in self._ending.values():
            assert load.ordered, f"the load of {load.request} has ended and waits for nothing"

    def _blocks(self, load: Load, group: int, index: int) -> tuple[int, ...]:
        """Where a block of the fabric goes; 0 stands where there is nothing to fill."""
        size = self._settings.shapes[group].engine_blocks
        blocks: Sequence[int] = load.tables[self._settings.groups[group].index][index * size : (index + 1) * size]
        return tuple(blocks) if len(blocks) == size else ()

    def _collect(self, load: Load) -> None:
        """Takes note of what has landed, and gives back at once what has no place."""
        useless: list[Landed] = []
        for landed in self._fabric.landed(load.ticket):
            blocks = load.targets.pop((landed.want.group, landed.want.index), None)
            if blocks is None:
                useless.append(landed)
            else:
                load.arrived.append((landed, blocks))
        if useless:
            self._fabric.taken(load.ticket, useless)

    def _order(self, load: Load, landed: Landed, blocks: tuple[int, ...]) -> InOrder:
        number = self._outstanding.give(Piece(load, landed))
        load.ordered += 1
        return InOrder(load.request, CopyOrder(number, landed.want.group, blocks, landed.buffer))

    def _outcome(self, load: Load) -> Outcome | None:
        """What has become of a load; None: nothing yet."""
        outcome: Outcome | None = None
        if load.is_gone:
            outcome = "aborted"
        elif load.is_void:
            outcome = "reset"
        elif load.failed_index is not None:
            outcome = "failed"
        elif not load.arrived and not load.targets:
            outcome = "complete"
        elif not load.arrived and self._fabric.state(load.ticket) != "loading":
            outcome = "late" if self._clock.now_s() >= load.deadline_s else "failed"
        return outcome

    def _end(self, load: Load, outcome: Outcome) -> LoadEnd:
        del self._loading[load.request]
        self.outcomes[outcome] += 1
        self._untold.add(load.request)
        if load.ordered:
            self._ending[load.ticket] = load
        else:
            self._fabric.drop(load.ticket)
        if outcome in {"complete", "aborted"}:
            return LoadEnd(request=load.request, failed=False)
        load.life.may_load = False
        return LoadEnd(request=load.request, failed=True, invalid=self._invalid(load))

    def _invalid(self, load: Load) -> tuple[int, ...]:
        """The blocks from the first one on that did not come; none where whole requests are recomputed."""
        if len(load.tables) > 1:
            return ()
        size, per_block = self._settings.block_tokens, self._settings.groups[0].block_tokens
        first = load.first_missing(load.claim.computed // size)
        return tuple(load.tables[0][first * size // per_block : load.end * size // per_block])
