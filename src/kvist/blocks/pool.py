"""The blocks of one KV group: who holds which, what each contains, which is given up next.

Knows states, holders and hashes; does not know sequences, tensors or time. A pool serves one KV group of one
namespace, so that within it the hash alone is a block's key. Every holder is a named owner (a request, or whoever
copies a block out), and the owner's name is checked at each step, so that nobody can release what is not theirs.

Laws:
    * The state of a block changes only through `lifecycle.next_state`.
    * A hash names at most one block; the first seal wins and its bytes never change.
    * sealed = resident + evicted + discarded (law 6 of DESIGN.md for the first tier).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, GroupId, RequestId
from kvist.blocks.eviction import EvictionPolicy, LeastRecentlyUsed
from kvist.blocks.keys import Namespace
from kvist.blocks.lifecycle import Move, State, next_state

HasCopy = Callable[[BlockHash], bool]
"""Whether a tier below has a copy of the pool's block with this hash; asked often, so it must be cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Blocks by state (their sum is the pool's size) and events since start.

    Attributes:
        free, filling, held, cached: blocks in that state now.
        sealed: blocks that were committed; each is resident, or was evicted or discarded.
        evicted: cached blocks given up for others.
        evicted_without_copy: how many of the evicted were nowhere else.
        discarded: sealed blocks freed because they were not worth caching.
    """

    free: int
    filling: int
    held: int
    cached: int
    sealed: int
    evicted: int
    evicted_without_copy: int
    discarded: int


class BlockPool:
    """A fixed number of blocks, each with one state, its holders and, once sealed, its hash.

    Methods on one block are O(1) apart from set look-ups; called by one thread.
    """

    def __init__(self, blocks: int, *, policy: EvictionPolicy | None = None, has_copy: HasCopy | None = None) -> None:
        """Makes a pool of `blocks` free blocks, handed out in ascending order at first.

        Args:
            blocks: how many.
            policy: which cached block goes first; least recently used by default.
            has_copy: asked when a block is about to be evicted; by default nothing has a copy.
        """
        self._states = [State.FREE] * blocks
        self._holders: list[set[RequestId]] = [set() for _ in range(blocks)]
        self._hashes: list[BlockHash | None] = [None] * blocks
        self._kept = [False] * blocks
        self._free = deque(BlockId(block) for block in range(blocks))
        self._index: dict[BlockHash, BlockId] = {}
        self._policy = LeastRecentlyUsed() if policy is None else policy
        self._has_copy = has_copy
        self._serves: tuple[Namespace, GroupId] | None = None
        self._count = dict.fromkeys(State, 0) | {State.FREE: blocks}
        self._sealed = 0
        self._evicted = 0
        self._evicted_without_copy = 0
        self._discarded = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can still give: the free and the evictable ones."""
        return self._count[State.FREE] + self._count[State.CACHED]

    def state(self, block: BlockId) -> State:
        """Where the block is in its life."""
        return self._states[block]

    def holders(self, block: BlockId) -> frozenset[RequestId]:
        """Who holds the block now."""
        return frozenset(self._holders[block])

    def hash(self, block: BlockId) -> BlockHash | None:
        """What a sealed block contains; None for a block that is not sealed."""
        return self._hashes[block]

    def find(self, block_hash: BlockHash) -> BlockId | None:
        """The block that contains this KV, or None. Changes nothing."""
        return self._index.get(block_hash)

    def find_each(self, hashes: Sequence[BlockHash]) -> list[BlockId | None]:
        """The block for each hash, None where there is none. Changes nothing; takes some 50 ns per hash."""
        return list(map(self._index.get, hashes))

    def find_run(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """The blocks of the longest beginning of `hashes` that is there without a hole. Changes nothing."""
        run: list[BlockId] = []
        for block in map(self._index.get, hashes):
            if block is None:
                break
            run.append(block)
        return run

    def serve(self, namespace: Namespace, group: GroupId) -> None:
        """Binds the pool to the one KV group of the one namespace whose blocks it holds; may be repeated."""
        assert self._serves in {None, (namespace, group)}, "the pool serves another group or namespace already"
        self._serves = (namespace, group)

    def allocate(self, owner: RequestId) -> BlockId:
        """Gives the owner an empty block to fill, evicting a cached one when none is free.

        Raises:
            CapacityError: every block is held.
        """
        if not self._free:
            self._evict()
        block = self._free.popleft()
        self._move(block, Move.ALLOCATE)
        self._holders[block].add(owner)
        return block

    def allocate_run(self, owner: RequestId, count: int) -> list[BlockId]:
        """Gives the owner so many empty blocks at once, in ascending order.

        Blocks are given back, and evicted, the last of a sequence first. Put in order again they mostly lie one after
        the other, and what lies so can be read without being gathered.

        Raises:
            CapacityError: fewer are available; nothing has changed.
        """
        if count == 1 and self._free:
            return [self.allocate(owner)]  # what most sequences want most of the time
        if count > self.available:
            raise CapacityError(
                f"all {len(self)} blocks but {self.available} are held by running requests, {count} are wanted"
            )
        while len(self._free) < count:
            self._evict()
        blocks = sorted([self._free.popleft() for _ in range(count)])
        for block in blocks:
            self._move(block, Move.ALLOCATE)
            self._holders[block].add(owner)
        return blocks

    def seal(self, block: BlockId, owner: RequestId, block_hash: BlockHash, *, keep: bool = True) -> BlockId:
        """Commits a full block under its hash and returns the block that the owner holds from now on.

        When the hash is taken already, the owner is moved to the block that has it and its own is freed:
        one hash, one block. `keep` False lets the block go as soon as nobody holds it.
        """
        assert owner in self._holders[block], f"{owner} does not hold block {block}"
        first = self._index.get(block_hash)
        if first is not None:
            next_state(self._states[block], Move.SEAL)  # others may read what is sealed already: nobody trades it in
            self.hold(first, owner)
            self.keep(first, keep=keep)
            self._discard(block, owner)
            return first
        self._move(block, Move.SEAL)
        self._hashes[block] = block_hash
        self._kept[block] = keep
        self._index[block_hash] = block
        self._sealed += 1
        return block

    def keep(self, block: BlockId, *, keep: bool = True) -> bool:
        """Marks a sealed block as worth caching when nobody holds it; `keep` False changes nothing.

        Returns:
            Whether the mark is new, which it is once in the life of a block's content.
        """
        assert self._hashes[block] is not None, f"block {block} is not sealed"
        is_new = keep and not self._kept[block]
        self._kept[block] = self._kept[block] or keep
        return is_new

    def hold(self, block: BlockId, owner: RequestId) -> None:
        """Adds an owner to a sealed block, which cannot be evicted until that owner releases it."""
        assert owner not in self._holders[block], f"{owner} holds block {block} already"
        if self._states[block] is State.CACHED:
            self._policy.remove(block)
        self._move(block, Move.HOLD)
        self._holders[block].add(owner)

    def release(self, block: BlockId, owner: RequestId) -> None:
        """Ends an owner's hold.

        The last release of a sealed block caches it if it is marked as kept and frees it otherwise; releasing
        a block that was still being filled frees it.
        """
        self._must_hold(block, owner)
        if len(self._holders[block]) > 1:
            self._move(block, Move.UNHOLD)
            self._holders[block].remove(owner)
        elif self._states[block] is State.HELD and self._kept[block]:
            self._move(block, Move.UNHOLD_LAST)
            self._holders[block].remove(owner)
            self._policy.add(block)
        else:
            self._discard(block, owner)

    def statistics(self) -> PoolStatistics:
        """A snapshot of the counters."""
        return PoolStatistics(
            free=self._count[State.FREE],
            filling=self._count[State.FILLING],
            held=self._count[State.HELD],
            cached=self._count[State.CACHED],
            sealed=self._sealed,
            evicted=self._evicted,
            evicted_without_copy=self._evicted_without_copy,
            discarded=self._discarded,
        )

    def _must_hold(self, block: BlockId, owner: RequestId) -> None:
        assert owner in self._holders[block], f"{owner} does not hold block {block}"

    def _move(self, block: BlockId, move: Move) -> None:
        before = self._states[block]
        after = next_state(before, move)
        self._states[block] = after
        self._count[before] -= 1
        self._count[after] += 1

    def _evict(self) -> None:
        if not self._count[State.CACHED]:
            raise CapacityError(f"all {len(self)} blocks are held by running requests")
        block = self._policy.choose(self._is_copied)
        self._evicted_without_copy += not self._is_copied(block)
        self._policy.remove(block)
        self._move(block, Move.EVICT)
        self._forget(block)
        self._evicted += 1

    def _is_copied(self, block: BlockId) -> bool:
        block_hash = self._hashes[block]
        return self._has_copy is not None and block_hash is not None and self._has_copy(block_hash)

    def _discard(self, block: BlockId, owner: RequestId) -> None:
        if self._states[block] is State.HELD:
            self._discarded += 1
        self._move(block, Move.DISCARD)
        self._holders[block].remove(owner)
        self._forget(block)

    def _forget(self, block: BlockId) -> None:
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._index[block_hash]
        self._hashes[block] = None
        self._kept[block] = False
        self._free.append(block)
