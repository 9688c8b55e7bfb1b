import copy
from collections.abc import Callable

import pytest

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, GroupId, RequestId
from kvist.blocks.eviction import CopiesFirst, LeastRecentlyUsed
from kvist.blocks.keys import Namespace
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool, PoolStatistics

A, B, C = map(RequestId, "ABC")


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "little"))


def sealed(pool: BlockPool, owner: RequestId, number: int, *, keep: bool = True) -> BlockId:
    return pool.seal(pool.allocate(owner), owner, hash_of(number), keep=keep)


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
    assert pool.statistics() == PoolStatistics(
        free=0, filling=3, held=0, cached=0, sealed=0, evicted=0, evicted_without_copy=0, discarded=0
    )


def test_a_block_that_is_being_filled_is_its_owners_and_nobody_finds_it() -> None:
    pool = BlockPool(1)
    block = pool.allocate(A)
    assert (pool.state(block), pool.holders(block), pool.hash(block)) == (State.FILLING, {A}, None)


def test_a_sealed_block_is_found_held_and_cached_when_the_last_holder_leaves() -> None:
    pool = BlockPool(2)
    block = sealed(pool, A, 1)
    assert (pool.find(hash_of(1)), pool.hash(block), pool.state(block)) == (block, hash_of(1), State.HELD)
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
    assert pool.statistics() == PoolStatistics(
        free=1, filling=0, held=0, cached=0, sealed=0, evicted=0, evicted_without_copy=0, discarded=0
    )


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(2)
    cached(pool, 1)
    pool.allocate(B)
    assert pool.find(hash_of(1)) is not None
    assert pool.statistics().evicted == 0


def test_an_evicted_block_is_forgotten_and_given_on() -> None:
    pool = BlockPool(1)
    block = cached(pool, 1)
    assert pool.allocate(B) == block
    assert (pool.find(hash_of(1)), pool.hash(block), pool.holders(block)) == (None, None, {B})
    assert pool.statistics() == PoolStatistics(
        free=0, filling=1, held=0, cached=0, sealed=1, evicted=1, evicted_without_copy=1, discarded=0
    )


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


def test_a_run_of_blocks_ascends_though_they_were_given_back_from_the_last_to_the_first() -> None:
    pool = BlockPool(8)
    for is_sealed in (False, True):
        blocks = pool.allocate_run(A, 8)
        assert blocks == list(range(8))
        for block in reversed(blocks):  # as a table does; what is sealed will be evicted in this order
            if is_sealed:
                pool.seal(block, A, hash_of(block))
            pool.release(block, A)
    assert pool.allocate_run(B, 3) == [5, 6, 7]
    assert pool.allocate_run(B, 4) == [1, 2, 3, 4]
    assert pool.statistics().evicted == 7


def test_a_run_that_is_too_long_is_refused_and_changes_nothing() -> None:
    pool = BlockPool(4)
    sealed(pool, A, 1)
    cached(pool, 2)
    before = picture(pool)
    with pytest.raises(CapacityError, match="all 4 blocks but 3 are held by running requests, 4 are wanted"):
        pool.allocate_run(B, 4)
    assert picture(pool) == before
    assert pool.allocate_run(B, 0) == []


# One hash, one block


def test_the_first_seal_wins_and_the_second_owner_moves_over() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(A), pool.allocate(B)
    assert pool.seal(first, A, hash_of(1)) == first
    assert pool.seal(second, B, hash_of(1)) == first
    assert (pool.holders(first), pool.state(second), pool.find(hash_of(1))) == ({A, B}, State.FREE, first)
    assert pool.statistics() == PoolStatistics(
        free=1, filling=0, held=1, cached=0, sealed=1, evicted=0, evicted_without_copy=0, discarded=0
    )


def test_a_second_seal_brings_a_cached_first_block_back_into_use() -> None:
    pool = BlockPool(2)
    first = cached(pool, 1)
    assert pool.seal(pool.allocate(B), B, hash_of(1)) == first
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
    assert (pool.find(hash_of(1)) is None) == (after is State.FREE)
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
    assert (pool.state(block), pool.find(hash_of(1))) == (State.HELD, block)


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
    "seal what another fills": lambda pool: pool.seal(BlockId(2), B, hash_of(9)),
    "seal what another fills, under a taken key": lambda pool: pool.seal(BlockId(2), B, hash_of(0)),
    "seal what is free": lambda pool: pool.seal(BlockId(4), A, hash_of(9)),
    "seal what is cached": lambda pool: pool.seal(BlockId(3), A, hash_of(9)),
    "seal twice": lambda pool: pool.seal(BlockId(0), A, hash_of(9)),
    "seal twice under the same key": lambda pool: pool.seal(BlockId(0), A, hash_of(0)),
    "seal twice under another's key": lambda pool: pool.seal(BlockId(1), A, hash_of(3)),
    "seal what others share under a cached key": lambda pool: pool.seal(BlockId(1), B, hash_of(3)),
    "seal under a key that one holds already": lambda pool: pool.seal(BlockId(2), A, hash_of(0)),
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
        pool.find(hash_of(number))
    for block in map(BlockId, range(3)):
        assert isinstance(pool.holders(block), frozenset)
        pool.state(block)
        pool.hash(block)
    pool.statistics()
    assert picture(pool) == before


class Newest(LeastRecentlyUsed):
    """Another order, with a size and therefore false while it is empty."""

    def __len__(self) -> int:
        return len(self._order)

    def choose(self, is_copied) -> BlockId:
        return next(reversed(self._order))


def test_the_policy_that_is_given_decides() -> None:
    pool = BlockPool(3, policy=Newest())
    blocks = [cached(pool, number) for number in range(3)]
    assert pool.allocate(B) == blocks[2]


# What is elsewhere too


def test_what_has_a_copy_is_evicted_first_and_what_has_none_is_counted() -> None:
    copied = {hash_of(1)}
    pool = BlockPool(3, policy=CopiesFirst(), has_copy=copied.__contains__)
    blocks = [cached(pool, number) for number in range(3)]
    assert pool.allocate(B) == blocks[1]
    assert (pool.statistics().evicted, pool.statistics().evicted_without_copy) == (1, 0)
    assert pool.allocate(B) == blocks[0]
    copied.add(hash_of(2))
    assert pool.allocate(B) == blocks[2]
    assert (pool.statistics().evicted, pool.statistics().evicted_without_copy) == (3, 1)


def test_copies_are_counted_whatever_the_policy() -> None:
    pool = BlockPool(2, has_copy={hash_of(1)}.__contains__)
    blocks = [cached(pool, number) for number in range(2)]
    assert [pool.allocate(B), pool.allocate(B)] == blocks
    assert (pool.statistics().evicted, pool.statistics().evicted_without_copy) == (2, 1)


def test_a_mark_is_new_once() -> None:
    pool = BlockPool(1)
    block = sealed(pool, A, 1, keep=False)
    assert [pool.keep(block, keep=False), pool.keep(block), pool.keep(block), pool.keep(block, keep=False)] == [
        False,
        True,
        False,
        False,
    ]
    pool.release(block, A)
    assert not pool.keep(block)
    assert pool.keep(sealed(pool, B, 2, keep=False))


# Many at once


def test_many_are_found_as_one_by_one() -> None:
    pool = BlockPool(4)
    for number in (0, 1, 3):
        cached(pool, number)
    for numbers in ([], [0], [2], [0, 1, 2, 3], [3, 1, 1, 7, 0], [2, 0]):
        hashes = [hash_of(number) for number in numbers]
        one_by_one = [pool.find(each) for each in hashes]
        assert pool.find_each(hashes) == one_by_one
        end = one_by_one.index(None) if None in one_by_one else len(one_by_one)
        assert pool.find_run(hashes) == one_by_one[:end]


def test_a_pool_may_be_bound_twice_to_the_same_and_to_nothing_else() -> None:
    pool = BlockPool(1)
    for _ in range(2):
        pool.serve(Namespace(b"one"), GroupId(0))
    for namespace, group in ((b"two", 0), (b"one", 1)):
        with pytest.raises(AssertionError, match="serves another"):
            pool.serve(Namespace(namespace), GroupId(group))
