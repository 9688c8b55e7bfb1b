"""The block pool as one would say it: a list of rows, searched from end to end, with what each block contains.

`NaivePool` answers every question of `kvist.blocks.pool.BlockPool` in its own way. Where the pool is free to choose, in
`allocate`, the model says which answers are right and follows the one that was given.
"""

from dataclasses import dataclass, field

from kvist.base.ids import BlockHash, BlockId, RequestId


@dataclass(slots=True)
class Row:
    """One block: who holds it, under which hash, whether it is to be cached, since when it is, what it contains."""

    holders: list[RequestId] = field(default_factory=list)
    hash: BlockHash | None = None
    kept: bool = False
    cached_since: int | None = None
    content: object = None

    @property
    def state(self) -> str:
        """The state by the value of its name."""
        if self.holders:
            return "filling" if self.hash is None else "held"
        return "free" if self.hash is None else "cached"


class NaivePool:
    """Rows and counters; every answer is worked out from them."""

    def __init__(self, blocks: int) -> None:
        self.rows = [Row() for _ in range(blocks)]
        self.sealed = self.evicted = self.discarded = self._moment = 0

    def blocks_in(self, state: str) -> list[BlockId]:
        """The blocks in a state."""
        return [BlockId(block) for block, row in enumerate(self.rows) if row.state == state]

    def find(self, block_hash: BlockHash) -> BlockId | None:
        """The block under a hash."""
        found = [BlockId(block) for block, row in enumerate(self.rows) if row.hash == block_hash]
        assert len(found) <= 1
        return found[0] if found else None

    def may_be_allocated(self) -> list[BlockId]:
        """Any free block, else the one that has been cached for longest; none when all are held."""
        oldest = sorted(self.blocks_in("cached"), key=lambda block: self.rows[block].cached_since or 0)
        return self.blocks_in("free") or oldest[:1]

    def allocate(self, block: BlockId, owner: RequestId) -> None:
        """The block that the pool chose is the owner's, who writes into it."""
        self.evicted += self.rows[block].state == "cached"
        self.rows[block] = Row(holders=[owner], content=("half written by", owner))

    def may_seal(self, block: BlockId, owner: RequestId, block_hash: BlockHash) -> bool:
        """Whether the owner is filling the block, and does not hold another under the hash."""
        row, first = self.rows[block], self.find(block_hash)
        return row.state == "filling" and owner in row.holders and (first is None or not self.holds(first, owner))

    def seal(self, block: BlockId, owner: RequestId, block_hash: BlockHash, *, keep: bool) -> BlockId:
        """The block that the owner holds from now on."""
        first = self.find(block_hash)
        if first is not None:
            self.rows[block] = Row()
            self.rows[first].kept |= keep
            self.hold(first, owner)
            return first
        self.rows[block].hash, self.rows[block].kept, self.rows[block].content = block_hash, keep, block_hash
        self.sealed += 1
        return block

    def holds(self, block: BlockId, owner: RequestId) -> bool:
        """Whether the owner holds the block."""
        return owner in self.rows[block].holders

    def may_hold(self, block: BlockId, owner: RequestId) -> bool:
        """Whether the block is sealed and not the owner's already."""
        return self.rows[block].hash is not None and not self.holds(block, owner)

    def hold(self, block: BlockId, owner: RequestId) -> None:
        """One more holder."""
        self.rows[block].holders.append(owner)
        self.rows[block].cached_since = None

    def release(self, block: BlockId, owner: RequestId) -> None:
        """One holder less; the last one decides between cached and free."""
        row = self.rows[block]
        row.holders.remove(owner)
        if row.holders:
            return
        if row.hash is not None and row.kept:
            self._moment += 1
            row.cached_since = self._moment
            return
        self.discarded += row.hash is not None
        self.rows[block] = Row()
