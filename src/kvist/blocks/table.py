"""The blocks of one sequence, in every KV group, as it grows, slides and ends.

Knows positions and pools; does not know requests or tensors. The life of one group's table with a window,
block by block (c is the number of tokens computed):

    index     0 ...... first of window ..... c // size ........ end
    holds     released      sealed             filling          allocated for the step
    entry     None          BlockId            BlockId          BlockId

A table that takes a hit of which some blocks are still to be loaded begins so (L: allocated, to be landed in):

    index     0 ...... first of window ..... hit.tokens // size
    entry     None          BlockId, L, L, BlockId, L

Each L is sealed by `land`; until the last one is, nothing can be computed and `commit` refuses.

Laws:
    * What a table lists is exactly what its owner holds in the pools; `release` empties both, in any state.
    * A block that has not landed is never found by anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, GroupId, RequestId
from kvist.blocks.lifecycle import State
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.window import Marks, Retention, first_block_of_hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A sealed block that has just become worth keeping, and so worth a copy below.

    Attributes:
        group: its KV group.
        index: of the block within its sequence.
        block: where it is in the group's pool now; it stays there for as long as somebody holds it.
        hash: what it contains.
    """

    group: GroupId
    index: int
    block: BlockId
    hash: BlockHash


class BlockTable:
    """Block tables of one owner, one per KV group, over the pools of a `PrefixCache`.

    Attributes:
        groups: by KV group, the block at each index; None before the window.
        capacity: the positions [0, capacity) have their blocks.
        changed_from: lowest index at which anything is listed otherwise than when `take_changes` was last called.
    """

    def __init__(self, cache: PrefixCache, owner: RequestId, retention: Retention) -> None:
        """Starts with no blocks at all."""
        self._cache = cache
        self._owner = owner
        self._retention = retention
        self.groups: tuple[list[BlockId | None], ...] = tuple([] for _ in cache.pools)
        self.capacity = 0
        self._sealed = 0
        self._passed = [0] * len(cache.pools)
        self._awaited: set[tuple[int, int]] = set()
        self.changed_from: int | None = 0

    @property
    def awaited(self) -> int:
        """Blocks that are still to land, in all groups; 0 once the sequence can be computed."""
        return len(self._awaited)

    def can_take(self, hit: Hit) -> bool:
        """Whether the pools have the blocks to be loaded besides those that the hit is made of, in every group."""
        return all(
            len(loads) + sum(block is not None and pool.state(block) is State.CACHED for block in blocks)
            <= pool.available
            for pool, blocks, loads in zip(self._cache.pools, hit.blocks, hit.loads, strict=True)
            if loads
        )

    def take(self, hit: Hit) -> None:
        """Holds the blocks of a hit and allocates those that are to be loaded; the table must be empty.

        Raises:
            CapacityError: a pool has too few blocks for the loads; nothing has changed.
        """
        assert not any(self.groups), f"{self._owner} already has blocks"
        if not self.can_take(hit):
            raise CapacityError(f"{self._owner} wants to load {hit.loads_count} blocks; the pools cannot spare them")
        for pool, table, blocks in zip(self._cache.pools, self.groups, hit.blocks, strict=True):
            for block in blocks:
                if block is not None:
                    pool.hold(block, self._owner)
            table.extend(blocks)
        for group, indices in enumerate(hit.loads):
            # After the holds, or it might evict what the hit is made of.
            for index in indices:
                self.groups[group][index] = self._cache.pools[group].allocate(self._owner)
                self._awaited.add((group, index))
        self.capacity = hit.tokens
        self._sealed = hit.tokens // self._cache.block_tokens
        self._passed = [sum(block is None for block in table) for table in self.groups]
        self._note_change(0)

    def target(self, group: int, index: int) -> BlockId | None:
        """Where a loaded block is to be copied; None when it is not awaited, not any more or never was."""
        return self.groups[group][index] if (group, index) in self._awaited else None

    def land(self, group: int, index: int, block_hash: BlockHash) -> None:
        """Seals an awaited block whose KV has been copied to its `target`.

        It will stay cached when the sequence ends, whatever becomes of the rest. If the same block was sealed by
        somebody else in the meantime, the table moves over to that one.

        Args:
            group: of the block.
            index: of the block within the sequence.
            block_hash: the hash at `index` of the sequence's chain.
        """
        assert (group, index) in self._awaited, f"{self._owner} does not await block {index} of group {group}"
        pool = self._cache.pools[group]
        self.groups[group][index] = pool.seal(self._entry(group, index), self._owner, block_hash)
        self._awaited.remove((group, index))
        self._note_change(index)

    def can_grow(self, tokens: int) -> bool:
        """Whether the pools have the blocks that positions [0, tokens) still lack, in every group."""
        end = self._end(tokens)
        for pool, table in zip(self._cache.pools, self.groups, strict=True):
            if end - len(table) > pool.available:
                return False
        return True

    def grow(self, tokens: int) -> None:
        """Allocates blocks until positions [0, tokens) can be written.

        Raises:
            CapacityError: a pool has too few; those that other pools gave stay in the table.
        """
        end = self._end(tokens)
        for pool, table in zip(self._cache.pools, self.groups, strict=True):
            begin = len(table)
            if begin < end:
                table.extend(pool.allocate_run(self._owner, end - begin))
                self._note_change(begin)
        self.capacity = max(self.capacity, end * self._cache.block_tokens)

    def commit(self, chain: Sequence[BlockHash], computed: int, marks: Marks) -> list[Kept]:
        """Seals the blocks that are full now, then lets go of those that no query will read again.

        Args:
            chain: hashes of at least every full block below `computed`.
            computed: tokens whose KV is written.
            marks: where the sequence may part from others, which decides what outlives the window.

        Returns:
            The blocks that became worth keeping, by index and then group, each once in the life of its content: who
            moves over to another's block that is kept already does not report it. A block of a passed window is let
            go of in the same call, so it may be evicted as soon as anybody allocates; copy it, or hold it, first.
        """
        assert not self._awaited, f"{self._owner} computes while {len(self._awaited)} blocks are to land"
        size, kept = self._cache.block_tokens, list[Kept]()
        full = computed // size
        if full <= self._sealed:
            return kept
        groups = tuple(zip(self.groups, self._cache.pools, self._cache.windows, strict=True))
        for index in range(self._sealed, full):
            for group, (table, pool, window) in enumerate(groups):
                own = self._entry(group, index)
                block = pool.seal(own, self._owner, chain[index], keep=False)
                if block != own:
                    table[index] = block
                    self._note_change(index)
                is_wanted = window is None or self._retention.keeps(index * size, (index + 1) * size, window, marks)
                if is_wanted and pool.keep(block):
                    kept.append(Kept(group=GroupId(group), index=index, block=block, hash=chain[index]))
        self._sealed = full
        for group, window in enumerate(self._cache.windows):
            if window is None:
                continue
            # What a hit of the sealed blocks needs is never less than what the next query reads.
            first = first_block_of_hit(self._sealed * size, window, size)
            if first > self._passed[group]:
                for index in range(self._passed[group], first):
                    self._let_go(group, index)
                self._passed[group] = first
                self._note_change(full)  # what is listed from there on has not changed, but where it begins has
        return kept

    def keep_window(self) -> list[Kept]:
        """Keeps what a later sequence needs to continue from the last sealed block.

        Returns:
            As `commit`; the table holds them until `release`. Blocks that are still to land are left out.
        """
        size, kept = self._cache.block_tokens, list[Kept]()
        for group, window in enumerate(self._cache.windows):
            first = max(self._passed[group], first_block_of_hit(self._sealed * size, window, size))
            for index in range(first, self._sealed):
                if (group, index) not in self._awaited:
                    self._keep(group, index, kept)
        return kept

    def release(self) -> None:
        """Gives every block back, the last ones first so that they are evicted first.

        Blocks that have not landed are free again; those that have stay cached.
        """
        for group, table in enumerate(self.groups):
            for index in range(len(table) - 1, self._passed[group] - 1, -1):
                self._let_go(group, index)
            table.clear()
        self._awaited.clear()
        self.capacity = 0
        self._sealed = 0
        self._passed = [0] * len(self.groups)

    def held(self) -> list[list[BlockId]]:
        """The blocks held now, by group."""
        return [[block for block in table if block is not None] for table in self.groups]

    @property
    def firsts(self) -> Sequence[int]:
        """Index of the first live block, by group."""
        return self._passed

    def runs(self, start: int = 0) -> list[tuple[int, list[BlockId]]]:
        """For each group the index of the first live block from `start` on, and all from there on, without a gap."""
        firsts = [max(passed, start) for passed in self._passed]
        # From the first live block on there is no None.
        return [(first, cast("list[BlockId]", table[first:])) for first, table in zip(firsts, self.groups, strict=True)]

    def take_changes(self) -> list[tuple[int, list[BlockId]]]:
        """The `runs` from the first index on at which anything changed since the last call; at first, all of them."""
        changed_from, self.changed_from = self.changed_from, None
        return [] if changed_from is None else self.runs(changed_from)

    def held_counts(self) -> list[int]:
        """How many blocks are held now, by group; O(groups)."""
        return [len(table) - passed for table, passed in zip(self.groups, self._passed, strict=True)]

    def _note_change(self, index: int) -> None:
        if self.changed_from is None or index < self.changed_from:
            self.changed_from = index

    def _keep(self, group: int, index: int, kept: list[Kept]) -> None:
        block = self._entry(group, index)
        pool = self._cache.pools[group]
        if pool.keep(block):
            block_hash = pool.hash(block)
            assert block_hash is not None  # `keep` has seen to it
            kept.append(Kept(group=GroupId(group), index=index, block=block, hash=block_hash))

    def _end(self, tokens: int) -> int:
        """Blocks of positions [0, tokens)."""
        return -(-tokens // self._cache.block_tokens)

    def _entry(self, group: int, index: int) -> BlockId:
        block = self.groups[group][index]
        assert block is not None, f"{self._owner} let go of block {index} of group {group}"
        return block

    def _let_go(self, group: int, index: int) -> None:
        self._cache.pools[group].release(self._entry(group, index), self._owner)
        self.groups[group][index] = None
