"""Sequences whose beginning is being loaded from below.

    asked ── answered, planned ──▶ loading ── complete ──▶ runs
                     │                │
                     ▼                └── failed, late ──▶ waits again, and begins from what G1 has by then
               nothing to load: runs

A loading sequence holds all blocks of its beginning in G1; those that are to come are nobody else's until they have
landed. Only the engine's thread copies them in, at the boundaries of steps.

Laws:
    * Whoever was asked about has a ticket, and whoever leaves has none: aborted, failed, preempted or running.
    * What landed is sealed under its key whatever becomes of the rest.
    * A load is tried once: a sequence whose load failed computes what it lacks.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.engine.backend import Backend, BackendError
from kvist.engine.below import Below
from kvist.engine.sequence import Sequence
from kvist.fabric.messages import Decision, Landed, Plan, Query, Ticket, Want

_ASKED_MAX = 32
"""Sequences that are asked about before it is their turn; the others are when it is."""

_PIECE_BLOCKS = 16
"""Blocks per copy at most: enough to be one call, few enough that their buffers are free again soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a sequence may begin.

    Attributes:
        hit: the blocks that it takes, or loads.
        plan: of the tiers; None where nobody was asked.
        blocks_gained: how many blocks longer the hit is than what G1 alone has.
    """

    hit: Hit
    plan: Plan | None = None
    blocks_gained: int = 0

    @property
    def decision(self) -> Decision | None:
        """Why so much; None where nobody was asked."""
        return None if self.plan is None else self.plan.decision


@dataclass(slots=True, kw_only=True)
class Load:
    """One sequence that loads.

    Attributes:
        beginning: what it will have once complete.
        ticket: under which it loads.
        arrived: landed and not copied yet, in the order of arrival.
        bytes_loaded: copied so far, by tier; served: what was copied, and from which tier it came in the end.
    """

    sequence: Sequence
    beginning: Beginning
    ticket: Ticket
    arrived: deque[Landed] = field(default_factory=deque)
    bytes_loaded: Counter[str] = field(default_factory=Counter)
    served: list[Want] = field(default_factory=list)


class Loading:
    """Asks, loads and lands; decides nothing about who may start."""

    def __init__(self, backend: Backend, cache: PrefixCache, below: Below) -> None:
        """Loads into the pools of `cache`, through a backend that computes over them."""
        self._backend = backend
        self._cache = cache
        self._tiers = below.tiers
        self._view = below.view
        self._tickets: dict[RequestId, Ticket] = {}
        self._loads: dict[RequestId, Load] = {}
        self._unanswered: list[Ticket] = []

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._loads

    def __len__(self) -> int:
        return len(self._loads)

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences that load, in the order in which they started."""
        return (load.sequence for load in self._loads.values())

    @property
    def tickets(self) -> Mapping[RequestId, Ticket]:
        """Who was asked about, under which ticket."""
        return self._tickets

    @property
    def has_arrivals(self) -> bool:
        """Whether something has landed that is not copied yet."""
        return any(load.arrived for load in self._loads.values())

    def ask(self, sequence: Sequence) -> None:
        """Asks the tiers about a sequence once, unless G1 seems to have all of it: the last block is evicted first."""
        chain = sequence.chain.extend_to(sequence.tokens)
        blocks = self._blocks_wanted(sequence)
        if sequence.asked or not blocks or len(self._tickets) >= _ASKED_MAX:
            return
        if any(pool.find(chain[blocks - 1]) is None for pool in self._cache.pools):
            self._begin(sequence, chain)

    def look_again(self) -> None:
        """Begins a round of `beginning`."""
        self._unanswered.clear()

    def next_deadline_s(self) -> float | None:
        """When to look again although nothing was heard, by the clock of the tiers: at once is in the past."""
        asked = [ticket for request_id, ticket in self._tickets.items() if request_id not in self._loads]
        answered = {ticket for ticket in asked if self._tiers.is_answered(ticket)}
        if not answered.isdisjoint(self._unanswered):
            return float("-inf")  # only now, after everybody was looked at
        return self._tiers.next_deadline_s() if self._tickets else None

    def beginning(self, sequence: Sequence, chain: Seq[BlockHash], hit: Hit) -> Beginning | None:
        """How a sequence should begin that could begin from `hit` at once; None while that is not known yet."""
        blocks = self._blocks_wanted(sequence)
        if hit.tokens == blocks * self._cache.block_tokens:
            return Beginning(hit=hit)
        if not sequence.asked:
            self._begin(sequence, chain)
        ticket = self._tickets.get(sequence.request.id)
        if ticket is None:
            return Beginning(hit=hit)
        if not self._tiers.is_answered(ticket):
            self._unanswered.append(ticket)
            return None
        found = self._cache.residency(chain, blocks)
        plan = self._tiers.plan(ticket, [[block is not None for block in group] for group in found])
        if not plan.wants or plan.tokens <= hit.tokens:
            return Beginning(hit=hit, plan=plan)
        wants = {(want.group, want.index) for want in plan.wants}
        longer = self._cache.assemble(chain, wants, tokens=plan.tokens, end=self._why(plan, hit, blocks))
        if longer is None:
            return Beginning(hit=hit, plan=plan)
        return Beginning(hit=longer, plan=plan, blocks_gained=len(longer.blocks[0]) - len(hit.blocks[0]))

    def start(self, sequence: Sequence, beginning: Beginning) -> None:
        """Begins to load what a sequence lacks, which must be something; its table has the blocks already."""
        assert beginning.plan is not None, f"{sequence.request.id} has nothing to load"
        ticket = self._tickets[sequence.request.id]
        self._loads[sequence.request.id] = Load(sequence=sequence, beginning=beginning, ticket=ticket)
        self._tiers.load(ticket, beginning.plan)

    def land(self, bytes_max: int | None = None) -> tuple[list[Load], list[Load]]:
        """Copies in what has landed; returns loads that are complete, and those that failed. Neither loads any more.

        Args:
            bytes_max: copy about so much and leave the rest for later, because others wait; None: all of it.
        """
        complete, failed = [], []
        for load in list(self._loads.values()):
            load.arrived.extend(self._tiers.landed(load.ticket))
            is_sound, copied = self._copy_in(load, bytes_max)
            bytes_max = None if bytes_max is None else max(0, bytes_max - copied)
            if not load.sequence.table.awaited:
                complete.append(load)
            elif not is_sound or (not load.arrived and self._tiers.state(load.ticket) != "loading"):
                failed.append(load)
        for load in (*complete, *failed):
            self.drop(load.sequence.request.id)
        return complete, failed

    def drop(self, request_id: RequestId) -> None:
        """Forgets what was asked and loaded for a sequence; its blocks are its table's business."""
        self._loads.pop(request_id, None)
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._tiers.drop(ticket)

    def drop_all(self) -> None:
        """Forgets everybody."""
        for request_id in list(self._tickets):
            self.drop(request_id)

    def _begin(self, sequence: Sequence, chain: Seq[BlockHash]) -> None:
        sequence.asked = True
        ticket = self._tiers.begin(Query(tenant=sequence.tenant, chain=tuple(chain), tokens=sequence.length))
        if ticket is not None:
            self._tickets[sequence.request.id] = ticket

    def _copy_in(self, load: Load, bytes_max: int | None) -> tuple[bool, int]:
        """Copies what has arrived, piece by piece; whether all copies went well, and the bytes of them."""
        copied = 0
        while load.arrived and (bytes_max is None or copied < bytes_max):
            piece = _next_piece(load.arrived, None if bytes_max is None else bytes_max - copied)
            is_sound = self._copy_piece(load, piece[0].want.group, piece)
            self._tiers.taken(load.ticket, piece)
            if not is_sound:
                return False, copied
            copied += sum(landed.buffer.length for landed in piece)
        return True, copied

    def _copy_piece(self, load: Load, group: int, piece: Seq[Landed]) -> bool:
        table = load.sequence.table
        chain = load.sequence.chain.extend_to(load.sequence.tokens)
        targets: dict[int, tuple[BlockId, Landed]] = {}
        for landed in piece:
            target = table.target(group, landed.want.index)
            if target is not None:  # else G1 had got it by other ways when the sequence started
                targets[landed.want.index] = (target, landed)
        blocks = [target for target, _ in targets.values()]
        try:
            self._backend.copy_in(group, blocks, [self._view(landed.buffer) for _, landed in targets.values()])
        except (CapacityError, BackendError):
            return False
        for index, (_, landed) in targets.items():
            table.land(group, index, chain[index])
            load.bytes_loaded[landed.want.tier] += landed.buffer.length
            load.served.append(landed.want)
        return True

    def _blocks_wanted(self, sequence: Sequence) -> int:
        """Full blocks before the last token, which is always computed."""
        return (sequence.length - 1) // self._cache.block_tokens

    def _why(self, plan: Plan, hit: Hit, blocks: int) -> str:
        if plan.tokens == blocks * self._cache.block_tokens:
            return "every full block before the last token was cached"
        return plan.decision.reason or hit.end


def _next_piece(arrived: deque[Landed], bytes_max: int | None) -> list[Landed]:
    """Takes at least one block, and those after it that are of the same group and not too many."""
    piece = [arrived.popleft()]
    size = piece[0].buffer.length
    blocks_max = _PIECE_BLOCKS if bytes_max is None else min(_PIECE_BLOCKS, -(-bytes_max // size))
    while arrived and arrived[0].want.group == piece[0].want.group and len(piece) < blocks_max:
        piece.append(arrived.popleft())
    return piece
