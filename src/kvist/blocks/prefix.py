"""The prefix cache of one model: the pools of all its KV groups, matched together.

Knows what a hit needs in each group (DESIGN.md, section 5); does not know requests or tensors. Matching
changes nothing: whoever wants the blocks holds them through a `BlockTable`.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from kvist.base.ids import BlockHash, BlockId, GroupId
from kvist.base.units import Tokens
from kvist.blocks.keys import BlockKey, Namespace
from kvist.blocks.pool import BlockPool
from kvist.blocks.window import first_block_of_hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A prefix of a sequence that need not be computed: its blocks are in the pools, or will be loaded.

    Attributes:
        tokens: its length, a multiple of the block size.
        blocks: for each group the block at each index, None where the hit needs none or it is to be loaded.
        reached: how far full attention alone would have matched; as far as can be in a model that has none.
        end: why it is no longer, in words a user understands.
        loads: for each group the indices to be loaded, ascending; with the blocks, exactly what the hit needs.
    """

    tokens: Tokens
    blocks: tuple[tuple[BlockId | None, ...], ...]
    reached: Tokens
    end: str
    loads: tuple[tuple[int, ...], ...]

    @property
    def loads_count(self) -> int:
        """Blocks to be loaded, in all groups."""
        return sum(map(len, self.loads))


class PrefixCache:
    """Pools by KV group under one namespace, which from then on hold nothing else."""

    def __init__(
        self,
        namespace: Namespace,
        pools: Sequence[BlockPool],
        windows: Sequence[Tokens | None],
        *,
        block_tokens: int,
    ) -> None:
        """Binds one pool and one window (None: all positions) to each group, in the geometry's order."""
        for group, pool in enumerate(pools):
            pool.serve(namespace, GroupId(group))
        self._namespace = namespace
        self.pools = tuple(pools)
        self.windows = tuple(windows)
        self.block_tokens = block_tokens

    def key(self, group: int, block_hash: BlockHash) -> BlockKey:
        """The key of a block in one group."""
        return BlockKey(self._namespace, GroupId(group), "prefix", block_hash)

    def match(self, chain: Sequence[BlockHash], *, tokens: int) -> Hit:
        """Finds the longest prefix of a sequence that every group can serve.

        At least one of the tokens is left out, because predicting the next one takes a query.

        Args:
            chain: hashes of the sequence's full blocks.
            tokens: length of the sequence.
        """
        limit = min(len(chain), (tokens - 1) // self.block_tokens)
        runs = self._runs(chain, limit)
        reached = min(map(len, runs.values()), default=limit)
        end = self._end_of_windows(chain, reached)
        return Hit(
            tokens=Tokens(end * self.block_tokens),
            blocks=tuple(
                tuple(runs[group][:end]) if group in runs else self._blocks_of_hit(group, chain, end)
                for group in range(len(self.pools))
            ),
            reached=Tokens(reached * self.block_tokens),
            end=self._why(end, reached, limit),
            loads=((),) * len(self.pools),
        )

    def residency(self, chain: Sequence[BlockHash], limit: int) -> tuple[list[BlockId | None], ...]:
        """For each group the block of each of the first `limit` hashes, None where there is none.

        Says what is there and not what a hit would need; the answer is good until a block is sealed, evicted or
        discarded.
        """
        hashes = chain[:limit]
        return tuple(pool.find_each(hashes) for pool in self.pools)

    def assemble(
        self, chain: Sequence[BlockHash], wants: Container[tuple[int, int]], *, tokens: Tokens, end: str
    ) -> Hit | None:
        """A hit of a given length, some of whose blocks are to be loaded from below.

        What is in the pools is taken from there, wanted or not. Nothing is held: blocks can be lost until
        `BlockTable.take`.

        Args:
            chain: hashes of the sequence's full blocks, at least those of the hit.
            wants: (group, index) of the blocks that can be loaded.
            tokens: length of the hit, a multiple of the block size and less than the sequence's.
            end: why it is no longer.

        Returns:
            None when a block that the hit needs is neither in its pool nor wanted, as after an eviction.
        """
        blocks_end = tokens // self.block_tokens
        blocks, loads = [], []
        for group in range(len(self.pools)):
            found = self._blocks_of_hit(group, chain, blocks_end)
            first = first_block_of_hit(tokens, self.windows[group], self.block_tokens)
            absent = tuple(index for index in range(first, blocks_end) if found[index] is None)
            if not all((group, index) in wants for index in absent):
                return None
            blocks.append(found)
            loads.append(absent)
        reached = max(blocks_end, min(map(len, self._runs(chain, len(chain)).values()), default=0))
        return Hit(
            tokens=tokens,
            blocks=tuple(blocks),
            reached=Tokens(reached * self.block_tokens),
            end=end,
            loads=tuple(loads),
        )

    def _runs(self, chain: Sequence[BlockHash], limit: int) -> dict[int, list[BlockId]]:
        """By group without a window, the blocks that it has from the start; none is asked beyond one before it."""
        runs: dict[int, list[BlockId]] = {}
        for group, window in enumerate(self.windows):
            if window is None:
                runs[group] = self.pools[group].find_run(chain[:limit])
                limit = len(runs[group])
        return runs

    def _end_of_windows(self, chain: Sequence[BlockHash], limit: int) -> int:
        """Largest end, in blocks, for which each window group has the blocks just before it."""
        end = limit
        while True:
            shorter = end
            for group, window in enumerate(self.windows):
                if window is not None:
                    shorter = self._end_of_window(group, chain, shorter)
            if shorter == end:
                return end
            end = shorter

    def _end_of_window(self, group: int, chain: Sequence[BlockHash], limit: int) -> int:
        end = limit
        while end > 0:
            first = first_block_of_hit(end * self.block_tokens, self.windows[group], self.block_tokens)
            pool = self.pools[group]
            missing = next((i for i in range(end - 1, first - 1, -1) if pool.find(chain[i]) is None), None)
            if missing is None:
                return end
            end = missing  # every end above a missing block, up to this one, would need it
        return 0

    def _blocks_of_hit(self, group: int, chain: Sequence[BlockHash], end: int) -> tuple[BlockId | None, ...]:
        first = first_block_of_hit(end * self.block_tokens, self.windows[group], self.block_tokens)
        return (*(None,) * first, *self.pools[group].find_each(chain[first:end]))

    def _why(self, end: int, reached: int, limit: int) -> str:
        size = self.block_tokens
        if end == limit:
            return "every full block before the last token was cached"
        if end < reached and None not in self.windows:
            return f"of the sliding windows that end after token {end * size}, none is cached as a whole"
        if end < reached:
            return (
                f"full attention matched {reached * size} tokens, but the sliding window before that point "
                f"is no longer cached; it is before token {end * size}"
            )
        if end == 0:
            return "no cached sequence of this tenant begins with the same block of tokens"
        return f"the block at token {end * size} differs from what was cached, or was evicted"
