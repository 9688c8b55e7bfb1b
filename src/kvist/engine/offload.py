"""Blocks on their way from G1 to the tiers below: offered once, copied when there is room, never waited for.

    kept ──offer──▶ room ──copied out, stored──▶ done
                ├─▶ busy ──held in G1, offered again──▶ ...
                └─▶ declined: done

Copies are made by the engine's thread, at the ends of steps, from blocks that are sealed. A block that cannot be
copied yet is held under a name of its own, so that nobody evicts it meanwhile; at most a tenth of a pool is held so,
and what is beyond that, or stands in a request's way, is let go and counted.
"""

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId
from kvist.blocks.keys import TenantTag
from kvist.blocks.pool import BlockPool
from kvist.blocks.table import Kept
from kvist.engine.backend import Backend, BackendError
from kvist.engine.below import Below
from kvist.engine.sequence import Sequence
from kvist.engine.settings import EngineSettings
from kvist.fabric.messages import Declined, Offer, Room

STORES = RequestId("kvist:stores")
"""Holds blocks that wait to be copied out; no request may be called so."""

_HELD_SHARE = 10
"""One in so many blocks of a pool may be held."""


class Waiting(NamedTuple):
    """A block to be copied, and on whose behalf."""

    tenant: TenantTag
    kept: Kept


class Offload:
    """What is to be stored, in the order in which it was filled.

    Attributes:
        dropped: blocks that were to be stored and were let go of before there was room.
    """

    def __init__(self, backend: Backend, pools: Seq[BlockPool], below: Below, settings: EngineSettings) -> None:
        """Copies out of the pools through the backend that computes over them."""
        self.dropped = 0
        self._backend = backend
        self._pools = tuple(pools)
        self._settings = settings
        self._tiers = below.tiers
        self._is_idle = below.is_nothing
        self._view = below.view
        self._held: list[Waiting] = []
        self._held_counts = [0] * len(self._pools)
        self._new: list[Waiting] = []

    @property
    def is_waiting(self) -> bool:
        """Whether blocks are held until there is room."""
        return bool(self._held)

    def held(self) -> list[list[BlockId]]:
        """The blocks held, by group."""
        found: list[list[BlockId]] = [[] for _ in self._pools]
        for waiting in self._held:
            found[waiting.kept.group].append(waiting.kept.block)
        return found

    def collect(self, sequence: Sequence, kept: Seq[Kept]) -> None:
        """Takes note of blocks of a sequence that became worth keeping; `run` sees to them."""
        if self._is_idle or not kept:
            return
        prompt_blocks = len(sequence.request.prompt) // self._settings.block_tokens
        self._new += [
            Waiting(sequence.tenant, each)
            for each in kept
            if not self._settings.offload_prompt_only or each.index < prompt_blocks
        ]

    def run(self) -> None:
        """Copies out what there is room for, longest waiting first, and holds what it can of the rest."""
        if not self._held and not self._new:
            return
        copies: list[tuple[Kept, Room]] = []
        waiting, self._held, is_busy = self._held, [], False
        released: list[Kept] = []
        for each in waiting:
            answer = None if is_busy else self._offer(each)
            if answer is None:
                is_busy = True
                self._held.append(each)
                continue
            released.append(each.kept)
            copies += [(each.kept, answer)] if isinstance(answer, Room) else []
        for each in self._settled_new():
            answer = None if is_busy else self._offer(each)
            if answer is None:
                is_busy = True
                self._hold(each)
            elif isinstance(answer, Room):
                copies.append((each.kept, answer))
        self._copy(copies)
        self._release(released)

    def give_way(self) -> bool:
        """Lets go of everything held, because a request needs blocks; whether there was anything."""
        found, self._held = self._held, []
        self.dropped += len(found)
        self._release([each.kept for each in found])
        return bool(found)

    def _settled_new(self) -> Iterator[Waiting]:
        """New blocks that are still there; others were evicted in the same step."""
        new, self._new = self._new, []
        for each in new:
            if self._pools[each.kept.group].hash(each.kept.block) == each.kept.hash:
                yield each
            else:
                self.dropped += 1

    def _offer(self, each: Waiting) -> Room | Declined | None:
        """Room, or why it is not wanted; None: not now."""
        kept = each.kept
        answer = self._tiers.offer(Offer(tenant=each.tenant, group=kept.group, hash=kept.hash, index=kept.index))
        return None if isinstance(answer, Declined) and answer.reason == "busy" else answer

    def _hold(self, each: Waiting) -> None:
        pool = self._pools[each.kept.group]
        if self._held_counts[each.kept.group] >= len(pool) // _HELD_SHARE:
            self.dropped += 1
            return
        pool.hold(each.kept.block, STORES)
        self._held_counts[each.kept.group] += 1
        self._held.append(each)

    def _release(self, blocks: Seq[Kept]) -> None:
        for kept in blocks:
            self._pools[kept.group].release(kept.block, STORES)
            self._held_counts[kept.group] -= 1

    def _copy(self, copies: Seq[tuple[Kept, Room]]) -> None:
        by_group: dict[int, list[tuple[Kept, Room]]] = defaultdict(list)
        for kept, room in copies:
            by_group[kept.group].append((kept, room))
        for group, pairs in by_group.items():
            rooms = [room for _, room in pairs]
            try:
                self._backend.copy_out(
                    group, [kept.block for kept, _ in pairs], [self._view(room.buffer) for room in rooms]
                )
            except (CapacityError, BackendError):
                self.dropped += len(rooms)
                for room in rooms:
                    self._tiers.withdraw(room)
            else:
                self._tiers.store(rooms)
