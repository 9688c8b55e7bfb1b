"""Tiers of plain dictionaries on a clock of their own, which do what real ones may do, and worse, from a seed.

Implements `kvist.engine.below.Tiers`. Questions are answered late, records land one by one in any order, some are lost
on the way, some come after their deadline, stores take their time and room for them is short. A buffer that the engine
should look at no more is scribbled over at once, so that whoever does is caught.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fakes.clock import HandClock
from fakes.dice import Dice
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import TenantTag
from kvist.blocks.window import first_block_of_hit
from kvist.fabric.messages import (
    Decision,
    Declined,
    FabricStatistics,
    Landed,
    LoadState,
    Offer,
    Option,
    Plan,
    Query,
    Room,
    Source,
    Ticket,
    TierName,
    Want,
)
from kvist.tiers.regions import Buffer, RegionId

Name = tuple[TenantTag, int, BlockHash]
"""A record: whose, of which group, which."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """What became of one ticket; times by the clock."""

    query: Query
    answer_s: float
    deadline_s: float = 0.0
    coming: list[tuple[float, Want]] = field(default_factory=list)
    lost: int = 0
    shown: list[Landed] = field(default_factory=list)
    is_loading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How bad the tiers are, each in seconds, records or chances in ten.

    Attributes:
        answer_s, land_s, store_s: the longest that a question, a record and a store take.
        patience_s: how long a load may take.
        rooms: stores under way at once.
        losses: records that never come, of ten.
        refusals: offers that are not admitted, of ten.
        is_punctual: whether everything takes as long as it can.
    """

    answer_s: int = 0
    land_s: int = 0
    store_s: int = 0
    patience_s: int = 1000
    rooms: int = 1000
    losses: int = 0
    refusals: int = 0
    is_punctual: bool = False


class DictTiers:
    """Two tiers, "dram" and "disk"; each record is in one of them.

    Attributes:
        tiers: what the engine asks.
        records: payloads by name; clock: moved by whoever drives the trial.
        events: what went wrong: records "lost", loads "late", offers "refused" or "busy".
    """

    def __init__(
        self, windows: Sequence[int | None], block_tokens: int, seed: int = 0, manners: Manners | None = None
    ) -> None:
        self.on_change: Callable[[], None] | None = None
        self.tiers = self
        self.records: dict[Name, bytes] = {}
        self.clock = HandClock()
        self.manners = manners or Manners()
        self.events: Counter[str] = Counter()
        self.prefills: list[tuple[int, int, float]] = []
        self._windows, self._block_tokens = tuple(windows), block_tokens
        self._dice = Dice(seed)
        self._memory: dict[RegionId, bytearray] = {}
        self._asked: dict[Ticket, Asked] = {}
        self._storing: list[tuple[float, Ticket]] = []
        self._rooms: dict[Ticket, tuple[Name, Room]] = {}
        self._tickets = 0

    # What the engine is given

    def begin(self, query: Query) -> Ticket:
        ticket = self._ticket()
        self._asked[ticket] = Asked(query=query, answer_s=self._soon(self.manners.answer_s))
        return ticket

    def is_answered(self, ticket: Ticket) -> bool:
        return self._asked[ticket].answer_s <= self.clock.now_s()

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:
        asked = self._asked[ticket]
        assert not asked.is_loading, "planned after the load began"
        query = asked.query
        limit = (query.tokens - 1) // self._block_tokens
        for end in range(limit, -1, -1):
            wants, is_possible = [], True
            for group, window in enumerate(self._windows):
                first = first_block_of_hit(end * self._block_tokens, window, self._block_tokens)
                for index in range(first, end):
                    if resident[group][index]:
                        continue
                    is_possible &= (query.tenant, group, query.chain[index]) in self.records
                    wants.append(Want(group=group, index=index, tier=self.tier_of(query.chain[index])))
            if is_possible:
                break
        chosen = Option(tokens=Tokens(end * self._block_tokens), sources=self._sources(wants), load_s=0, prefill_s=0)
        return Plan(
            tokens=chosen.tokens,
            wants=tuple(sorted(wants, key=lambda want: want.index)),
            deadline_s=self.clock.now_s() + self.manners.patience_s,
            decision=Decision(chosen=chosen, options=(chosen,), reason="the longest there is"),
        )

    def load(self, ticket: Ticket, plan: Plan) -> None:
        asked = self._asked[ticket]
        assert plan.wants, "nothing to load"
        assert not asked.is_loading, "loaded twice"
        asked.is_loading, asked.deadline_s = True, plan.deadline_s
        for want in plan.wants:
            if self._dice.number(0, 9) < self.manners.losses:
                asked.lost += 1
                self.events["lost"] += 1
            else:
                asked.coming.append((self._soon(self.manners.land_s), want))

    def landed(self, ticket: Ticket) -> list[Landed]:
        asked = self._asked[ticket]
        now = min(self.clock.now_s(), asked.deadline_s)
        ready = [want for at_s, want in asked.coming if at_s <= now]
        asked.coming = [each for each in asked.coming if each[0] > now]
        pieces = []
        for want in ready:
            payload = self.records[asked.query.tenant, want.group, asked.query.chain[want.index]]
            pieces.append(Landed(want=want, buffer=self._buffer(payload)))
        asked.shown += pieces
        return pieces

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:
        asked = self._asked[ticket]
        for piece in pieces:
            asked.shown.remove(piece)  # raises if it was never shown, or taken before
            self._scribble(piece.buffer)

    def state(self, ticket: Ticket) -> LoadState:
        asked = self._asked[ticket]
        if asked.shown:
            return "loading"
        if not asked.coming:
            return "failed" if asked.lost else "complete"
        if asked.deadline_s <= self.clock.now_s():
            self.events["late"] += 1
            return "failed"
        return "loading"

    def drop(self, ticket: Ticket) -> None:
        asked = self._asked.pop(ticket, None)
        for piece in asked.shown if asked else ():
            self._scribble(piece.buffer)

    def offer(self, offer: Offer) -> Room | Declined:
        name = (offer.tenant, offer.group, offer.hash)
        if name in self.records:
            return Declined(reason="stored")
        if self._dice.number(0, 9) < self.manners.refusals:
            self.events["refused"] += 1
            return Declined(reason="not admitted")
        if len(self._rooms) >= self.manners.rooms:
            self.events["busy"] += 1
            return Declined(reason="busy")
        room = Room(ticket=self._ticket(), buffer=self._buffer(bytes(8 * self._block_tokens)))
        self._rooms[room.ticket] = (name, room)
        return room

    def store(self, rooms: Sequence[Room]) -> None:
        for room in rooms:
            assert room.ticket in self._rooms
            self._storing.append((self._soon(self.manners.store_s), room.ticket))
        self._finish_stores()

    def withdraw(self, room: Room) -> None:
        self._free(room.ticket)

    def has_copy(self, group: GroupId, block_hash: BlockHash) -> bool:
        return any(name[1:] == (group, block_hash) for name in self.records)

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        self.prefills.append((start, end, seconds))

    def next_deadline_s(self) -> float | None:
        times = [each.deadline_s if each.is_loading else each.answer_s for each in self._asked.values()]
        return min((time for time in times if time > self.clock.now_s()), default=None)

    def statistics(self) -> FabricStatistics:
        loading = sum(asked.is_loading for asked in self._asked.values())
        return FabricStatistics(
            tiers=(),
            loads_running=loading,
            stores_running=len(self._storing),
            stores_dropped=0,
            staging_bytes_used=sum(map(len, self._memory.values())),
            staging_bytes=0,
        )

    # What the trial does with them

    def view(self, buffer: Buffer) -> memoryview:
        """The bytes of a buffer that was named and not given back."""
        return memoryview(self._memory[buffer.region])

    def tick(self) -> None:
        """One second later."""
        self.clock.advance(1)
        self._finish_stores()
        if self.on_change is not None:
            self.on_change()

    def tier_of(self, block_hash: BlockHash) -> TierName:
        """Where a record lies, if it is there."""
        return TierName(("dram", "disk")[block_hash[0] % 2])

    def check_left(self) -> None:
        """Everything was given back, once nothing is under way."""
        assert not self._asked, f"tickets are left: {self._asked}"
        assert len(self._memory) == len(self._rooms) == len(self._storing), "buffers are left"

    def check_tickets(self, tickets: set[Ticket]) -> None:
        """Nobody was forgotten."""
        assert set(self._asked) == tickets

    def _sources(self, wants: Sequence[Want]) -> tuple[Source, ...]:
        tiers = {want.tier for want in wants}
        return tuple(Source(tier=tier, tokens=Tokens(0), bytes=Bytes(0)) for tier in sorted(tiers))

    def _ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def _soon(self, most_s: int) -> float:
        return self.clock.now_s() + (most_s if self.manners.is_punctual else self._dice.number(0, most_s))

    def _buffer(self, payload: bytes) -> Buffer:
        region = RegionId(f"{self._ticket()}")
        self._memory[region] = bytearray(payload)
        return Buffer(region=region, offset=0, length=len(payload))

    def _scribble(self, buffer: Buffer) -> None:
        self._memory.pop(buffer.region)[:] = b"\xff" * buffer.length

    def _finish_stores(self) -> None:
        now = self.clock.now_s()
        for _, ticket in [each for each in self._storing if each[0] <= now]:
            name, room = self._rooms[ticket]
            self.records.setdefault(name, bytes(self._memory[room.buffer.region]))
            self._free(ticket)
        self._storing = [each for each in self._storing if each[0] > now]

    def _free(self, ticket: Ticket) -> None:
        _, room = self._rooms.pop(ticket)
        self._scribble(room.buffer)
