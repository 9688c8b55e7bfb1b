from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId, RequestId
from kvist.base.units import Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.ledger import check_pool
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.window import Marks
from kvist.geometry.groups import KvGroup
from kvist.planner.budget import blocks_held_peak
from tables import SIZE, cache_of, chain_of, check, kept_by, run, table_of


def test_an_empty_table_holds_nothing() -> None:
    cache = cache_of(None, 8)
    table = table_of(cache)
    assert (table.held(), table.runs(), table.held_counts()) == ([[], []], [(0, []), (0, [])], [0, 0])
    table.keep_window()
    table.release()
    check(cache, table)


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_table_grows_by_whole_blocks(tokens: int, blocks: int) -> None:
    table = table_of(cache_of(None))
    table.grow(tokens)
    assert table.held_counts() == [blocks]
    table.grow(tokens)
    assert table.held_counts() == [blocks]
    table.grow(1)
    assert table.held_counts() == [blocks]


def test_full_blocks_are_sealed_and_the_last_one_is_not() -> None:
    cache = cache_of(None)
    table = table_of(cache)
    run(table, 10)
    states = [cache.pools[0].state(block) for block in table.held()[0]]
    assert states == [State.HELD, State.HELD, State.FILLING]
    run(table, 12)
    assert cache.pools[0].state(table.held()[0][2]) is State.HELD
    check(cache, table)


def test_a_commit_of_less_or_the_same_changes_nothing() -> None:
    cache = cache_of(None, 5)
    table = table_of(cache)
    run(table, 10)
    before = table.held()
    for computed in (10, 8, 1):
        table.commit(chain_of(10), computed, Marks(prompt_tokens=10))
        assert table.held() == before
    check(cache, table)


def test_can_grow_asks_every_group_and_grow_says_which_is_full() -> None:
    cache = PrefixCache(namespace_of({}), [BlockPool(5), BlockPool(3)], [None, None], block_tokens=SIZE)
    table = table_of(cache)
    assert [table.can_grow(tokens) for tokens in (12, 13, 20, 21)] == [True, False, False, False]
    with pytest.raises(CapacityError, match="all 3 blocks"):
        table.grow(16)
    check(cache, table)  # what was allocated on the way is in the table
    table.release()
    check(cache, table)


def test_blocks_that_are_cached_may_be_taken_to_grow() -> None:
    cache = cache_of(None, blocks=3)
    table = table_of(cache)
    run(table, 12)
    table.release()
    assert table.can_grow(12)
    assert not table.can_grow(13)


# Sliding windows


def test_a_window_lets_go_of_what_a_hit_of_the_sealed_blocks_does_not_need() -> None:
    cache = cache_of(6)
    table = table_of(cache)
    seen = []
    for computed in (4, 8, 9, 11, 12, 13, 16):
        run(table, computed)
        seen.append((computed, table.runs()[0][0], table.held_counts()[0]))
        check(cache, table)
    # With 12 tokens sealed a hit needs [6, 12): blocks 1 and 2.
    assert seen == [(4, 0, 1), (8, 0, 2), (9, 0, 3), (11, 0, 3), (12, 1, 2), (13, 1, 3), (16, 2, 2)]


def test_a_chunk_larger_than_the_window_leaves_the_window() -> None:
    cache = cache_of(6)
    table = table_of(cache)
    run(table, 42)
    assert table.runs()[0][0] == 8
    assert table.held_counts() == [3]
    assert cache.pools[0].statistics().discarded == 8
    check(cache, table)


def test_a_window_smaller_than_a_block_keeps_the_last_full_block() -> None:
    cache = cache_of(1)
    table = table_of(cache)
    run(table, 18)
    assert (table.runs()[0][0], table.held_counts()) == (3, [2])


def test_a_passed_block_that_another_took_over_stays_for_it() -> None:
    cache = cache_of(8)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    run(one, 8)
    hit = cache.match(chain_of(9), tokens=9)
    two.take(hit)
    assert hit.tokens == 8
    run(one, 40)
    check(cache, one, two)
    assert two.held() == [[0, 1]]
    assert cache.match(chain_of(9), tokens=9).tokens == 8
    run(two, 41, last=99)
    check(cache, one, two)


@pytest.mark.parametrize("computed", [9, 10, 12, 13])
def test_a_window_kept_in_mid_block_serves_the_last_sealed_block(computed: int) -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    run(table, computed)
    table.keep_window()
    table.release()
    check(cache, table)
    sealed = computed // SIZE * SIZE
    assert cache.match(chain_of(20), tokens=20).tokens == sealed


def test_without_keeping_a_passed_prompt_leaves_no_window() -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    run(table, 24)
    table.release()
    assert cache.match(chain_of(30), tokens=30).tokens == 0
    assert cache.match(chain_of(30), tokens=30).reached == 24


def test_a_window_is_kept_right_after_a_hit_before_anything_was_computed() -> None:
    cache = cache_of(None, 6)
    first, second = table_of(cache, "A"), table_of(cache, "B")
    run(first, 24)
    second.take(cache.match(chain_of(26), tokens=26))
    first.release()
    second.keep_window()
    second.release()
    check(cache, first, second)
    assert cache.match(chain_of(26), tokens=26).tokens == 24


def test_a_table_may_be_taken_up_again_after_release() -> None:
    cache = cache_of(None, 6)
    table = table_of(cache)
    run(table, 24)
    table.keep_window()
    table.release()
    hit = cache.match(chain_of(30), tokens=30)
    table.take(hit)
    assert (hit.tokens, table.held_counts(), table.runs()[1][0]) == (24, [6, 2], 4)
    run(table, 30)
    check(cache, table)


def test_a_table_with_blocks_takes_no_hit() -> None:
    cache = cache_of(None)
    table = table_of(cache)
    table.grow(1)
    with pytest.raises(AssertionError, match="A already has blocks"):
        table.take(cache.match([], tokens=1))


# Two who computed the same


def test_the_second_to_seal_moves_over_to_the_first_block() -> None:
    cache = cache_of(None, 100)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    one.grow(10)
    two.grow(10)
    run(one, 10)
    run(two, 10)
    assert two.held()[0][:2] == one.held()[0][:2]
    assert two.held()[0][2] != one.held()[0][2]
    assert len(set(two.runs()[0][1])) == 3
    check(cache, one, two)
    one.release()
    check(cache, one, two)


def test_moving_over_to_a_cached_block_takes_it_back_into_use() -> None:
    cache = cache_of(None)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    two.grow(8)
    run(one, 8)
    one.release()
    run(two, 8)
    assert two.held() == [[2, 3]]  # where A had written; B's own were 0 and 1
    assert cache.pools[0].statistics().cached == 0
    check(cache, one, two)


def test_the_last_blocks_are_evicted_first() -> None:
    cache = cache_of(None, blocks=4)
    table = table_of(cache)
    run(table, 16)
    table.release()
    other = table_of(cache, "B")
    for blocks in (1, 2, 3):
        other.grow(blocks * SIZE)
        assert cache.match(chain_of(20), tokens=20).tokens == 16 - blocks * SIZE


# What became worth a copy


def test_each_full_block_is_told_once() -> None:
    table = table_of(cache_of(None))
    assert [kept_by(table, computed) for computed in (3, 4, 7, 13, 15)] == [[], [(0, 0)], [], [(0, 1), (0, 2)], []]
    assert table.keep_window() == []


def test_of_a_window_only_what_outlives_it_is_told() -> None:
    table = table_of(cache_of(None, 6))
    assert kept_by(table, 26, prompt=16) == [(0, 0), (0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (0, 4), (0, 5)]
    assert [(each.group, each.index) for each in table.keep_window()] == [(1, 4), (1, 5)]
    assert table.keep_window() == []


def test_what_another_has_told_is_not_told_again() -> None:
    cache = cache_of(None, 6)
    one, two, three = (table_of(cache, name) for name in "ABC")
    for table in (one, two):
        table.grow(9)
    assert kept_by(one, 9) == [(0, 0), (0, 1)]
    assert kept_by(two, 9) == []
    three.take(cache.match(chain_of(9), tokens=9))
    assert kept_by(three, 12) == [(0, 2)]
    # The windows were kept by nobody so far; the first who keeps one tells of it.
    assert [(each.group, each.index) for each in two.keep_window()] == [(1, 0), (1, 1)]
    assert one.keep_window() == []
    assert [(each.group, each.index) for each in three.keep_window()] == [(1, 2)]


def test_what_was_evicted_and_computed_again_is_told_again() -> None:
    cache = cache_of(None, blocks=2)
    one, two = table_of(cache, "A"), table_of(cache, "B")
    assert kept_by(one, 8) == [(0, 0), (0, 1)]
    one.release()
    two.grow(8)
    two.release()
    assert kept_by(one, 8) == [(0, 0), (0, 1)]


def test_a_block_held_by_whoever_copies_it_outlives_its_sequence() -> None:
    cache = cache_of(None, blocks=2)
    table, store = table_of(cache), RequestId("store")
    run(table, 8)
    pool, blocks = cache.pools[0], table.held()[0]
    for block in blocks:
        pool.hold(block, store)
    table.release()
    check_pool(pool, {store: blocks})
    with pytest.raises(CapacityError):
        table.grow(1)
    pool.release(blocks[1], store)
    table.grow(1)
    check_pool(pool, {store: blocks[:1], RequestId("A"): table.held()[0]})


# The planner's promise


def steps(data: st.DataObject, total: int, most: int) -> Iterator[int]:
    """Lengths after each step, up to `total`."""
    computed = 0
    while computed < total:
        computed = min(total, computed + data.draw(st.integers(1, most)))
        yield computed


@settings(max_examples=examples(200))
@given(st.data(), st.integers(1, 6), st.integers(1, 14), st.integers(1, 12), st.integers(1, 60))
def test_no_table_ever_holds_more_than_the_planner_says(
    data: st.DataObject, size: int, window: int, most: int, total: int
) -> None:
    cache = cache_of(window, None, blocks=60, size=size)
    groups = [
        KvGroup(layers=(0,), kv_heads=1, head_dim_k=1, head_dim_v=1, window=each) for each in (Tokens(window), None)
    ]
    peaks = [blocks_held_peak(group, total, step_tokens=most, block_tokens=size) for group in groups]
    table, chain = table_of(cache), chain_of(total, size=size)
    for computed in steps(data, total, most):
        table.grow(computed)
        assert all(held <= peak for held, peak in zip(table.held_counts(), peaks, strict=True))
        table.commit(chain, computed, Marks(prompt_tokens=total))
        assert sum(cache.pools[0].state(BlockId(block)) is State.FILLING for block in range(60)) <= 1
    check(cache, table)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("window", range(1, 12))
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 8, 9])
def test_the_planner_says_no_more_than_a_table_can_hold(size: int, window: int, most: int) -> None:
    """A step that begins one token before a block's end is the worst; prompts and budgets can bring it about."""
    cache = cache_of(window, blocks=60, size=size)
    group = KvGroup(layers=(0,), kv_heads=1, head_dim_k=1, head_dim_v=1, window=Tokens(window))
    begin = (window // size + 2) * size - 1
    table = table_of(cache)
    for computed in range(1, begin + 1):
        run(table, computed)
    table.grow(begin + most)
    assert table.held_counts() == [blocks_held_peak(group, begin + most, step_tokens=most, block_tokens=size)]
