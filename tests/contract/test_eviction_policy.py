"""What every eviction policy promises to the pool: it names a cached block, and looks while it does so."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.blocks.eviction import CopiesFirst, EvictionPolicy, LeastRecentlyUsed
from kvist.blocks.ledger import check_pool
from kvist.blocks.pool import BlockPool

Make = Callable[[], EvictionPolicy]

IMPLEMENTATIONS: list[Make] = [LeastRecentlyUsed, CopiesFirst]

OWNER = RequestId("owner")


def nothing(block: BlockId) -> bool:
    # Whether it has a copy: none has.
    return False


@pytest.fixture(params=IMPLEMENTATIONS)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes one policy of each implementation."""
    return request.param


def filled(make: Make, blocks: int) -> EvictionPolicy:
    policy = make()
    for block in reversed(range(blocks)):
        policy.add(BlockId(block))
    return policy


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "little"))


class TestEvictionPolicy:
    def test_the_only_block_is_chosen(self, make: Make) -> None:
        policy = make()
        policy.add(BlockId(7))
        assert policy.choose(nothing) == 7

    def test_choosing_changes_nothing(self, make: Make) -> None:
        policy = filled(make, 5)
        assert len({policy.choose(nothing) for _ in range(10)}) == 1

    def test_each_block_is_given_up_once(self, make: Make) -> None:
        policy, given_up = filled(make, 50), []
        for _ in range(50):
            given_up.append(policy.choose(nothing))
            policy.remove(given_up[-1])
        assert sorted(given_up) == list(range(50))

    def test_what_was_removed_is_not_chosen(self, make: Make) -> None:
        for block in range(5):
            policy = filled(make, 5)
            for other in range(5):
                if other != block:
                    policy.remove(BlockId(other))
            assert policy.choose(nothing) == block

    def test_a_block_may_come_back(self, make: Make) -> None:
        policy = make()
        for _ in range(3):
            policy.add(BlockId(1))
            policy.remove(BlockId(1))
        policy.add(BlockId(1))
        assert policy.choose(nothing) == 1

    def test_a_pool_with_it_never_loses_count(self, make: Make) -> None:
        pool, sealed = BlockPool(4, policy=make()), 0
        for sequence in range(1, 6):
            blocks = [pool.allocate(OWNER) for _ in range(sequence % 4 + 1)]
            for block in blocks:
                sealed += 1
                pool.seal(block, OWNER, hash_of(sealed))
            check_pool(pool, {OWNER: blocks})
            for block in reversed(blocks):
                pool.release(block, OWNER)
            check_pool(pool, {})
        held = [pool.allocate(OWNER) for _ in range(4)]
        with pytest.raises(CapacityError):
            pool.allocate(OWNER)
        check_pool(pool, {OWNER: held})


@given(data=st.data())
def test_it_chooses_among_those_that_are_cached(data: st.DataObject) -> None:
    """Against the naive model, a set, over random histories; the last implementation drawn is shrunk to."""
    policy = data.draw(st.sampled_from(IMPLEMENTATIONS))()
    cached: set[BlockId] = set()
    for block in data.draw(st.lists(st.integers(0, 9).map(BlockId), max_size=60)):
        if block in cached:
            policy.remove(block)
        else:
            policy.add(block)
        cached ^= {block}
        assert not cached or policy.choose(nothing) in cached
