"""The blocks of one sequence, in every KV group, as it grows, slides and ends.

Knows positions and pools; does not know requests or tensors. The life of one group's table with a window,
block by block (c is the number of tokens computed):

    index     0 ...... first of window ..... c // size ........ end
    holds     released      sealed             filling          allocated for the step
    entry     None          BlockId            BlockId          BlockId

Law: what a table lists is exactly what its owner holds in the pools; `release` empties both.
"""

from collections.abc import Sequence

from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.window import Marks, Retention, first_block_of_hit


class BlockTable:
    """Block tables of one owner, one per KV group, over the pools of a `PrefixCache`."""

    def __init__(self, cache: PrefixCache, owner: RequestId, retention: Retention) -> None:
        """Starts with no blocks at all."""
        self._cache = cache
        self._owner = owner
        self._retention = retention
        self.groups: tuple[list[BlockId | None], ...] = tuple([] for _ in cache.pools)
        self._sealed = 0
        self._passed = [0] * len(cache.pools)

    def take(self, hit: Hit) -> None:
        """Holds the blocks of a hit; the table must be empty."""
        assert not any(self.groups), f"{self._owner} already has blocks"
        for pool, table, blocks in zip(self._cache.pools, self.groups, hit.blocks, strict=True):
            for block in blocks:
                if block is not None:
                    pool.hold(block, self._owner)
            table.extend(blocks)
        self._sealed = hit.tokens // self._cache.block_tokens
        self._passed = [sum(block is None for block in table) for table in self.groups]

    def can_grow(self, tokens: int) -> bool:
        """Whether the pools have the blocks that positions [0, tokens) still lack, in every group."""
        missing = zip(self._cache.pools, self._missing(tokens), strict=True)
        return all(count <= pool.available for pool, count in missing)

    def grow(self, tokens: int) -> None:
        """Allocates blocks until positions [0, tokens) can be written.

        Raises:
            CapacityError: a pool has too few; blocks already allocated stay in the table.
        """
        for pool, table, count in zip(self._cache.pools, self.groups, self._missing(tokens), strict=True):
            for _ in range(count):
                table.append(pool.allocate(self._owner))

    def commit(self, chain: Sequence[BlockHash], computed: int, marks: Marks) -> None:
        """Seals the blocks that are full now, then lets go of those that no query will read again.

        Args:
            chain: hashes of at least every full block below `computed`.
            computed: tokens whose KV is written.
            marks: where the sequence may part from others, which decides what outlives the window.
        """
        size = self._cache.block_tokens
        full = computed // size
        for index in range(self._sealed, full):
            for group, table in enumerate(self.groups):
                window = self._cache.windows[group]
                keep = self._retention.keeps(index * size, (index + 1) * size, window, marks)
                key = self._cache.key(group, chain[index])
                table[index] = self._cache.pools[group].seal(self._entry(group, index), self._owner, key, keep=keep)
        self._sealed = max(self._sealed, full)
        for group, window in enumerate(self._cache.windows):
            # What a hit of the sealed blocks needs is never less than what the next query reads.
            first = first_block_of_hit(self._sealed * size, window, size)
            for index in range(self._passed[group], first):
                self._let_go(group, index)
            self._passed[group] = max(self._passed[group], first)

    def keep_window(self) -> None:
        """Keeps what a later sequence needs to continue from the last sealed block."""
        size = self._cache.block_tokens
        for group, window in enumerate(self._cache.windows):
            first = max(self._passed[group], first_block_of_hit(self._sealed * size, window, size))
            for index in range(first, self._sealed):
                self._cache.pools[group].keep(self._entry(group, index))

    def release(self) -> None:
        """Gives every block back, the last ones first so that they are evicted first."""
        for group, table in enumerate(self.groups):
            for index in range(len(table) - 1, self._passed[group] - 1, -1):
                self._let_go(group, index)
            table.clear()
        self._sealed = 0
        self._passed = [0] * len(self.groups)

    def held(self) -> list[list[BlockId]]:
        """The blocks held now, by group."""
        return [[block for block in table if block is not None] for table in self.groups]

    def runs(self) -> list[tuple[int, tuple[BlockId, ...]]]:
        """For each group the index of the first live block and all live blocks, which are consecutive."""
        return [
            (passed, tuple(self._entry(group, index) for index in range(passed, len(self.groups[group]))))
            for group, passed in enumerate(self._passed)
        ]

    def held_counts(self) -> list[int]:
        """How many blocks are held now, by group; O(groups)."""
        return [len(table) - passed for table, passed in zip(self.groups, self._passed, strict=True)]

    def _missing(self, tokens: int) -> list[int]:
        return [max(0, -(-tokens // self._cache.block_tokens) - len(table)) for table in self.groups]

    def _entry(self, group: int, index: int) -> BlockId:
        block = self.groups[group][index]
        assert block is not None, f"{self._owner} let go of block {index} of group {group}"
        return block

    def _let_go(self, group: int, index: int) -> None:
        self._cache.pools[group].release(self._entry(group, index), self._owner)
        self.groups[group][index] = None
