from collections.abc import Callable

import pytest

from kvist.base.ids import BlockHash, BlockId, RequestId
from kvist.blocks.ledger import check_pool
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool

A, B = map(RequestId, "AB")
SHARED, FILLING, CACHED, FREE = map(BlockId, range(4))


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "little"))


@pytest.fixture
def pool() -> BlockPool:
    """One block in each state, the held one by two."""
    pool = BlockPool(4)
    for number in (0, 1, 2):
        block = pool.allocate(A)
        if block != FILLING:
            pool.seal(block, A, hash_of(number))
    pool.hold(SHARED, B)
    pool.release(CACHED, A)
    return pool


LIVE = {A: [SHARED, FILLING], B: [SHARED]}


def test_books_that_balance_pass(pool: BlockPool) -> None:
    check_pool(pool, LIVE)
    check_pool(pool, {**LIVE, RequestId("idle"): []})
    check_pool(BlockPool(0), {})


@pytest.mark.parametrize(
    "live",
    [
        {},
        {A: [SHARED, FILLING]},
        {A: [SHARED], B: [SHARED]},
        {A: [SHARED, FILLING], B: [SHARED, CACHED]},
        {A: [SHARED, FILLING], B: [SHARED, FREE]},
        {A: [SHARED, FILLING], B: [SHARED], RequestId("C"): [SHARED]},
        {A: [SHARED, FILLING, SHARED], B: [SHARED]},
        {B: [SHARED, FILLING], A: [SHARED]},
    ],
    ids=["all leaked", "one leaked", "filling leaked", "cached read", "free read", "unknown", "twice", "swapped"],
)
def test_owners_who_say_something_else_are_caught(pool: BlockPool, live: dict[RequestId, list[BlockId]]) -> None:
    with pytest.raises(AssertionError):
        check_pool(pool, live)


def swap_hashes(pool: BlockPool) -> None:
    pool._hashes[SHARED], pool._hashes[CACHED] = pool._hashes[CACHED], pool._hashes[SHARED]


BROKEN: dict[str, Callable[[BlockPool], object]] = {
    "a held block is said to be cached": lambda pool: pool._states.__setitem__(SHARED, State.CACHED),
    "a held block is said to be free": lambda pool: pool._states.__setitem__(SHARED, State.FREE),
    "a shared block is said to be filling": lambda pool: pool._states.__setitem__(SHARED, State.FILLING),
    "a free block is said to be cached": lambda pool: pool._states.__setitem__(FREE, State.CACHED),
    "a holder is lost": lambda pool: pool._holders[SHARED].discard(B),
    "a holder appears": lambda pool: pool._holders[CACHED].add(B),
    "a hash is lost": lambda pool: pool._hashes.__setitem__(CACHED, None),
    "a hash appears": lambda pool: pool._hashes.__setitem__(FREE, hash_of(7)),
    "the index forgets": lambda pool: pool._index.pop(hash_of(0)),
    "the index errs": lambda pool: pool._index.__setitem__(hash_of(0), CACHED),
    "hashes are swapped": swap_hashes,
    "a count is off": lambda pool: pool._count.__setitem__(State.FREE, 2),
    "counts are swapped": lambda pool: pool._count.update({State.FREE: 2, State.HELD: 0}),
    "a seal is not counted": lambda pool: setattr(pool, "_sealed", 1),
    "an eviction is counted twice": lambda pool: setattr(pool, "_evicted", 1),
}


@pytest.mark.parametrize("breaks", BROKEN.values(), ids=BROKEN)
def test_books_that_do_not_balance_are_caught(pool: BlockPool, breaks: Callable[[BlockPool], object]) -> None:
    breaks(pool)
    with pytest.raises(AssertionError):
        check_pool(pool, LIVE)


def test_the_complaint_names_block_state_and_owners(pool: BlockPool) -> None:
    with pytest.raises(AssertionError, match=r"block 1 \(filling\) is held by \{'A'\}, its owners are set\(\)"):
        check_pool(pool, {A: [SHARED], B: [SHARED]})
