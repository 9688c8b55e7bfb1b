import copy
from collections.abc import Callable

import pytest

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, GroupId, RequestId
from kvist.blocks.eviction import LeastRecentlyUsed
from kvist.blocks.keys import BlockKey, Namespace
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool, PoolStatistics

A, B, C = map(RequestId, "ABC")


def key(number: int) -> BlockKey:
    return BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", BlockHash(number.to_bytes(32, "little")))


def sealed(pool: BlockPool, owner: RequestId, number: int, *, keep: bool = True) -> BlockId:
    return pool.seal(pool.allocate(owner), owner, key(number), keep=keep)


def cached(pool: BlockPool, number: int) -> BlockId:
    block = sealed(pool, A, number)
    pool.release(block, A)
    return block


def picture(pool: BlockPool) -> dict[str, object]:
    """Everything that a pool is, as values."""
    parts = copy.deepcopy(vars(pool))
    return parts | {"_policy": vars(parts["_policy"])}


# The life of a block


def test_a_new_pool_is_free_and_hands_out_ascending_blocks() -> None:
    pool = BlockPool(3)
    assert (len(pool), pool.available) == (3, 3)
    assert [pool.allocate(A) for _ in range(3)] == [0, 1, 2]
    assert pool.statistics() == PoolStatistics(free=0, filling=3, held=0, cached=0, sealed=0, evicted=0, discarded=0)


def test_a_block_that_is_being_filled_is_its_owners_and_nobody_finds_it() -> None:
    pool = BlockPool(1)
    block = pool.allocate(A)
    assert (pool.state(block), pool.holders(block), pool.key(block)) == (State.FILLING, {A}, None)


def test_a_sealed_block_is_found_held_and_cached_when_the_last_holder_leaves() -> None:
    pool = BlockPool(2)
    block = sealed(pool, A, 1)
    assert (pool.find(key(1)), pool.key(block), pool.state(block)) == (block, key(1), State.HELD)
    pool.hold(block, B)
    pool.release(block, A)
    assert (pool.holders(block), pool.state(block), pool.available) == ({B}, State.HELD, 1)
    pool.release(block, B)
    assert (pool.holders(block), pool.state(block), pool.available) == (frozenset(), State.CACHED, 2)
    pool.hold(block, C)
    assert (pool.holders(block), pool.state(block), pool.available) == ({C}, State.HELD, 1)


def test_a_block_released_in_mid_filling_is_free_and_was_never_sealed() -> None:
    pool = BlockPool(1)
    pool.release(pool.allocate(A), A)
    assert pool.statistics() == PoolStatistics(free=1, filling=0, held=0, cached=0, sealed=0, evicted=0, discarded=0)


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    cached(pool, 1)
    pool.allocate(B)
    assert pool.find(key(1)) is not None
    assert pool.statistics().evicted == 0


def test_an_evicted_block_is_forgotten_and_given_on() -> None:
    pool = BlockPool(1)
    block = cached(pool, 1)
    assert pool.allocate(B) == block
    assert (pool.find(key(1)), pool.key(block), pool.holders(block)) == (None, None, {B})
    assert pool.statistics() == PoolStatistics(free=0, filling=1, held=0, cached=0, sealed=1, evicted=1, discarded=0)


def test_the_block_that_nobody_held_for_longest_is_evicted() -> None:
    pool = BlockPool(3)
    blocks = [cached(pool, number) for number in range(3)]
    pool.hold(blocks[0], B)
    pool.release(blocks[0], B)
    assert [pool.allocate(C) for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]


def test_a_pool_of_no_blocks_is_full() -> None:
    with pytest.raises(CapacityError, match="all 0 blocks"):
        BlockPool(0).allocate(A)


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    pool = BlockPool(2)
    sealed(pool, A, 1)
    pool.allocate(B)
    before = picture(pool)
    with pytest.raises(CapacityError, match="all 2 blocks are held"):
        pool.allocate(C)
    assert picture(pool) == before


# One key, one copy


def test_the_first_seal_wins_and_the_second_owner_moves_over() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(A), pool.allocate(B)
    assert pool.seal(first, A, key(1)) == first
    assert pool.seal(second, B, key(1)) == first
    assert (pool.holders(first), pool.state(second), pool.find(key(1))) == ({A, B}, State.FREE, first)
    assert pool.statistics() == PoolStatistics(free=1, filling=0, held=1, cached=0, sealed=1, evicted=0, discarded=0)


def test_a_second_seal_brings_a_cached_first_block_back_into_use() -> None:
    pool = BlockPool(2)
    first = cached(pool, 1)
    assert pool.seal(pool.allocate(B), B, key(1)) == first
    assert (pool.state(first), pool.holders(first)) == (State.HELD, {B})
    pool.allocate(C)
    with pytest.raises(CapacityError):
        pool.allocate(C)


# What outlives its holders


@pytest.mark.parametrize(
    ("marks", "after"),
    [
        ([False], State.FREE),
        ([True], State.CACHED),
        ([False, True], State.CACHED),
        ([True, False], State.CACHED),
        ([False, False], State.FREE),
    ],
)
def test_a_block_is_cached_if_any_seal_meant_to_keep_it(marks: list[bool], after: State) -> None:
    pool = BlockPool(2)
    block = sealed(pool, A, 1, keep=marks[0])
    for mark in marks[1:]:
        sealed(pool, B, 1, keep=mark)
        pool.release(block, B)
    pool.release(block, A)
    assert pool.state(block) is after
    assert (pool.find(key(1)) is None) == (after is State.FREE)
    assert pool.statistics().discarded == (after is State.FREE)


def test_a_block_may_be_marked_later() -> None:
    pool = BlockPool(1)
    block = sealed(pool, A, 1, keep=False)
    pool.keep(block, keep=False)
    pool.keep(block)
    pool.keep(block, keep=False)
    pool.release(block, A)
    assert pool.state(block) is State.CACHED


def test_a_mark_ends_with_the_content() -> None:
    pool = BlockPool(1)
    cached(pool, 1)
    block = sealed(pool, B, 2, keep=False)
    pool.release(block, B)
    assert pool.state(block) is State.FREE


def test_a_block_that_others_hold_is_not_discarded_by_one_who_leaves() -> None:
    pool = BlockPool(1)
    block = sealed(pool, A, 1, keep=False)
    pool.hold(block, B)
    pool.release(block, A)
    assert (pool.state(block), pool.find(key(1))) == (State.HELD, block)


# Wrong use is refused and changes nothing

Wrong = Callable[[BlockPool], object]

WRONG: dict[str, Wrong] = {
    "release what another holds": lambda pool: pool.release(BlockId(0), B),
    "release what is free": lambda pool: pool.release(BlockId(4), A),
    "release what is cached": lambda pool: pool.release(BlockId(3), A),
    "release what another fills": lambda pool: pool.release(BlockId(2), B),
    "hold twice": lambda pool: pool.hold(BlockId(0), A),
    "hold what is free": lambda pool: pool.hold(BlockId(4), A),
    "hold what another fills": lambda pool: pool.hold(BlockId(2), B),
    "hold what one fills": lambda pool: pool.hold(BlockId(2), A),
    "seal what another fills": lambda pool: pool.seal(BlockId(2), B, key(9)),
    "seal what another fills, under a taken key": lambda pool: pool.seal(BlockId(2), B, key(0)),
    "seal what is free": lambda pool: pool.seal(BlockId(4), A, key(9)),
    "seal what is cached": lambda pool: pool.seal(BlockId(3), A, key(9)),
    "seal twice": lambda pool: pool.seal(BlockId(0), A, key(9)),
    "seal twice under the same key": lambda pool: pool.seal(BlockId(0), A, key(0)),
    "seal twice under another's key": lambda pool: pool.seal(BlockId(1), A, key(3)),
    "seal what others share under a cached key": lambda pool: pool.seal(BlockId(1), B, key(3)),
    "seal under a key that one holds already": lambda pool: pool.seal(BlockId(2), A, key(0)),
    "keep what is being filled": lambda pool: pool.keep(BlockId(2)),
    "keep what is free": lambda pool: pool.keep(BlockId(4)),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_and_changes_nothing(wrong: Wrong) -> None:
    pool = BlockPool(5)
    sealed(pool, A, 0)
    pool.hold(sealed(pool, A, 1), B)
    pool.allocate(A)
    pool.hold(sealed(pool, A, 3), C)
    for owner in (A, C):
        pool.release(BlockId(3), owner)
    before = picture(pool)
    with pytest.raises(AssertionError):
        wrong(pool)
    assert picture(pool) == before


def test_to_look_changes_nothing() -> None:
    pool = BlockPool(3)
    cached(pool, 1)
    cached(pool, 2)
    before = picture(pool)
    for number in range(4):
        pool.find(key(number))
    for block in map(BlockId, range(3)):
        assert isinstance(pool.holders(block), frozenset)
        pool.state(block)
        pool.key(block)
    pool.statistics()
    assert picture(pool) == before


class Newest(LeastRecentlyUsed):
    """Another order, with a size and therefore false while it is empty."""

    def __len__(self) -> int:
        return len(self._order)

    def choose(self) -> BlockId:
        return next(reversed(self._order))


def test_the_policy_that_is_given_decides() -> None:
    pool = BlockPool(3, policy=Newest())
    blocks = [cached(pool, number) for number in range(3)]
    assert pool.allocate(B) == blocks[2]
