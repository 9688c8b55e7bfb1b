"""Proves that a pool's books balance: each block has exactly one state and exactly its live holders.

Ownership, not counts: a count can be right while a running request reads a block that was given away.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from kvist.base.ids import BlockId, RequestId
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool


def check_pool(pool: BlockPool, live: Mapping[RequestId, Sequence[BlockId]]) -> None:
    """Compares a pool with what its live owners say they hold.

    Args:
        pool: the pool of one KV group.
        live: for each live owner (a request, or whoever copies blocks out) the blocks that it holds, each once;
            owners without blocks may be left out.

    Raises:
        AssertionError: naming the first block whose books do not balance.
    """
    expected: dict[BlockId, set[RequestId]] = defaultdict(set)
    for owner, blocks in live.items():
        for block in blocks:
            assert owner not in expected[block], f"{owner} lists block {block} twice"
            expected[block].add(owner)

    counted: Counter[State] = Counter()
    for block in map(BlockId, range(len(pool))):
        state, holders, block_hash = pool.state(block), pool.holders(block), pool.hash(block)
        counted[state] += 1
        owners = expected.get(block, set())
        assert holders == owners, f"block {block} ({state.value}) is held by {set(holders)}, its owners are {owners}"
        assert bool(holders) == (state in {State.FILLING, State.HELD}), (
            f"block {block} is {state.value} with {set(holders)}"
        )
        assert len(holders) <= 1 or state is State.HELD, f"block {block} is filled by {set(holders)}"
        is_sealed = state in {State.HELD, State.CACHED}
        assert (block_hash is not None) == is_sealed, f"block {block} is {state.value} under {block_hash!r}"
        assert block_hash is None or pool.find(block_hash) == block, f"block {block} is not what its hash leads to"

    books = pool.statistics()
    by_state = (books.free, books.filling, books.held, books.cached)
    assert by_state == tuple(counted[state] for state in State), f"{books} against {dict(counted)}"
    assert pool.available == books.free + books.cached, f"{pool.available} available against {books}"
    resident = books.held + books.cached
    assert books.sealed == resident + books.evicted + books.discarded, f"{books} does not add up"
    assert 0 <= books.evicted_without_copy <= books.evicted, f"{books} counts evictions that were none"
