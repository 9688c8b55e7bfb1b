"""Blocks on their way down: offered when they are full, copied out after the step that filled them, never waited for.

    full ── offered ──▶ room ── ordered, acknowledged by all workers ──▶ stored, or withdrawn
       ├─▶ declined: settled
       └─▶ busy: offered again at the next steps, while the request lives; and when it ends, for a while, while vLLM
           keeps its blocks for that (`holds`)

Per request there is no queue, only a mark up to which everything is settled: what is behind it waits in vLLM's own
blocks, so a request that loses them loses its place here as well.
"""

from collections import Counter
from collections.abc import Sequence

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.window import Marks
from kvist.connectors.vllm.lives import Life, Lives
from kvist.connectors.vllm.orders import CopyOrder
from kvist.connectors.vllm.outstanding import Outstanding
from kvist.connectors.vllm.parked import Piece, Tables
from kvist.connectors.vllm.requests import StepView
from kvist.connectors.vllm.settings import SchedulerSettings
from kvist.fabric.control import Fabric
from kvist.fabric.messages import Declined, Offer, Room

_LOOKED_MAX = 512
"""Blocks of one request that are looked at in one step, or at its end."""

_LOOKED_IN_ALL = 2048
"""Blocks of all requests that are looked at in one step: some three milliseconds."""

_NEVER = 2**62


class Round:
    """What one step stores: orders so far, how much of what it may take is left, and whether there was no more room."""

    __slots__ = ("bytes_left", "is_busy", "looks_left", "orders")

    def __init__(self, bytes_max: int | None) -> None:
        """Nothing yet; about so many bytes at most."""
        self.orders: list[CopyOrder] = []
        self.bytes_left = _NEVER if bytes_max is None else bytes_max
        self.looks_left = _LOOKED_IN_ALL
        self.is_busy = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be stored in this step."""
        return self.is_busy or self.bytes_left <= 0 or self.looks_left <= 0


class Story:
    """What is to be stored of a request as it stands: its hashes, where its blocks lie, and where its prompt ends."""

    __slots__ = ("chain", "marks", "tables")

    def __init__(self, chain: Sequence[BlockHash], tables: Tables, prompt_tokens: int) -> None:
        """Of one request."""
        self.chain = chain
        self.tables = tables
        self.marks = Marks(prompt_tokens=prompt_tokens)


class Stores:
    """Offers blocks and orders copies of them.

    Attributes:
        fates: what became of blocks that were to be stored: "done", "failed", "dropped".
    """

    def __init__(self, fabric: Fabric, settings: SchedulerSettings, outstanding: Outstanding[Piece | Room]) -> None:
        """Stores in a fabric; its orders are numbered and remembered by `outstanding`."""
        self.fates: Counter[str] = Counter()
        self._fabric = fabric
        self._settings = settings
        self._outstanding = outstanding

    def step(self, view: StepView, lives: Lives, turn: Round) -> None:
        """Orders what a step fills, and what earlier ones filled and found no room."""
        for request_id, tokens in view.scheduled.items():
            life = lives.get(request_id)
            if life is None or not life.is_stored:
                continue
            if life.reached is not None:
                life.reached += tokens
            if not turn.is_over and self._may_be_full(life):
                self._look(life, view, request_id, turn)

    def advance(self, life: Life, story: Story, turn: Round) -> bool:
        """Settles what can be settled of a request's full blocks; whether that is all of them."""
        groups = len(self._settings.groups)
        until = min(life.full * groups, life.settled + _LOOKED_MAX)
        while life.settled < until and not turn.is_over:
            index, group = divmod(life.settled, groups)
            turn.looks_left -= 1
            if not self._settle(life, story, (GroupId(group), index), turn):
                return False
            life.settled += 1
        return life.settled >= life.full * groups

    def skip_settled(self, life: Life, story: Story) -> bool:
        """Passes over blocks that need no room; whether others are left, or may be."""
        groups = len(self._settings.groups)
        until = min(life.full * groups, life.settled + _LOOKED_MAX)
        while life.settled < until:
            index, group = divmod(life.settled, groups)
            if self._is_wanted(story, GroupId(group), index):
                return True
            life.settled += 1
        return life.settled < life.full * groups

    def forget(self, life: Life) -> None:
        """Gives up what was not settled, and counts it."""
        groups = len(self._settings.groups)
        left = life.full * groups - life.settled
        if left > 0:
            self.fates["dropped"] += left
            life.settled += left

    def acknowledged(self, rooms: Sequence[tuple[Room, bool]]) -> None:
        """All workers are done with these rooms; whether each was filled."""
        for room, is_sound in rooms:
            if not is_sound:
                self.fates["failed"] += 1
                self._fabric.withdraw(room)
        filled = [room for room, is_sound in rooms if is_sound]
        if filled:
            self.fates["done"] += len(filled)
            self._fabric.store(filled)

    def _may_be_full(self, life: Life) -> bool:
        """Whether there may be a block to look at; spares most steps of most requests a look."""
        index = life.settled // len(self._settings.groups)
        if life.wanted is not None and index >= life.wanted:
            return False
        return life.reached is None or life.reached >= (index + 1) * self._settings.block_tokens

    def _look(self, life: Life, view: StepView, request_id: str, turn: Round) -> None:
        request = view.requests(request_id)
        if request is None:
            return
        size = self._settings.block_tokens
        life.reached = request.computed_tokens + view.scheduled[request_id]
        life.wanted = request.prompt_tokens // size if self._settings.offload_prompt_only else None
        chain = life.chain(request)
        full = min(min(life.reached, request.tokens) // size, len(chain))
        life.full = full if life.wanted is None else min(full, life.wanted)
        if life.settled >= life.full * len(self._settings.groups):
            return
        tables = view.blocks_of(request_id)
        if tables is not None:
            self.advance(life, Story(chain, tables, request.prompt_tokens), turn)

    def _settle(self, life: Life, story: Story, place: tuple[GroupId, int], turn: Round) -> bool:
        """Orders a block, or finds that it need not be; False: there is no room now."""
        group, index = place
        if not self._is_wanted(story, group, index):
            return True
        answer = self._fabric.offer(Offer(tenant=life.tenant.tag, group=group, hash=story.chain[index], index=index))
        if isinstance(answer, Declined):
            turn.is_busy = answer.reason == "busy"
            return not turn.is_busy
        number = self._outstanding.give(answer)
        turn.orders.append(CopyOrder(number, group, self._blocks(story.tables, group, index), answer.buffer))
        turn.bytes_left -= answer.buffer.length
        return True

    def _is_wanted(self, story: Story, group: GroupId, index: int) -> bool:
        """Whether a block is there whole, is worth keeping, and has no copy below."""
        size, window = self._settings.block_tokens, self._settings.groups[group].window
        start = index * size
        if not self._settings.retention.keeps(start, start + size, window, story.marks):
            return False
        blocks = self._blocks(story.tables, group, index)
        return all(blocks) and bool(blocks) and not self._fabric.has_copy(group, story.chain[index])

    def _blocks(self, tables: Tables, group: GroupId, index: int) -> tuple[int, ...]:
        size = self._settings.shapes[group].engine_blocks
        blocks = tuple(tables[self._settings.groups[group].index][index * size : (index + 1) * size])
        return blocks if len(blocks) == size else ()
