from collections.abc import Container

import pytest

from kvist.base.ids import BlockId
from kvist.blocks.eviction import CopiesFirst, LeastRecentlyUsed

LOOK_AHEAD = CopiesFirst.LOOK_AHEAD


def drained(policy: LeastRecentlyUsed, copied: Container[int] = ()) -> list[int]:
    """The order in which a policy gives its blocks up, which empties it."""
    order: list[int] = []
    while policy._order:
        order.append(policy.choose(copied.__contains__))
        policy.remove(BlockId(order[-1]))
    return order


def fill(policy: LeastRecentlyUsed, *blocks: int) -> LeastRecentlyUsed:
    for block in blocks:
        policy.add(BlockId(block))
    return policy


def filled(*blocks: int) -> LeastRecentlyUsed:
    return fill(LeastRecentlyUsed(), *blocks)


def test_the_first_added_goes_first() -> None:
    assert drained(filled(3, 1, 2)) == [3, 1, 2]


def test_the_tail_of_a_prefix_that_is_released_last_to_first_goes_before_its_head() -> None:
    assert drained(filled(4, 3, 2, 1, 0)) == [4, 3, 2, 1, 0]


def test_a_block_used_again_goes_to_the_end() -> None:
    policy = filled(3, 1, 2)
    policy.remove(BlockId(3))
    policy.add(BlockId(3))
    assert drained(policy) == [1, 2, 3]


def test_a_block_taken_from_the_middle_leaves_the_rest_in_order() -> None:
    policy = filled(3, 1, 2)
    policy.remove(BlockId(1))
    assert drained(policy) == [3, 2]


def test_what_is_not_there_can_not_be_removed() -> None:
    with pytest.raises(KeyError):
        filled(1).remove(BlockId(2))


def test_least_recently_used_does_not_ask_for_copies() -> None:
    assert drained(filled(3, 1, 2), copied={1, 2}) == [3, 1, 2]


@pytest.mark.parametrize(
    ("copied", "order"),
    [
        ((), [3, 1, 2, 0]),
        ((3, 1, 2, 0), [3, 1, 2, 0]),
        ((2,), [2, 3, 1, 0]),
        ((0, 1), [1, 0, 3, 2]),
        ((9,), [3, 1, 2, 0]),
    ],
)
def test_what_has_a_copy_goes_first_and_otherwise_the_order_stays(copied: tuple[int, ...], order: list[int]) -> None:
    assert drained(fill(CopiesFirst(), 3, 1, 2, 0), copied) == order


@pytest.mark.parametrize(("place", "chosen"), [(LOOK_AHEAD - 1, LOOK_AHEAD - 1), (LOOK_AHEAD, 0)])
def test_a_copy_far_from_its_turn_does_not_save_the_head(place: int, chosen: int) -> None:
    policy = fill(CopiesFirst(), *range(LOOK_AHEAD + 10))
    assert policy.choose({place}.__contains__) == chosen


def test_no_more_is_asked_than_is_needed() -> None:
    asked: list[int] = []

    def is_copied(block: BlockId) -> bool:
        asked.append(block)
        return block == 2

    policy = fill(CopiesFirst(), *range(3 * LOOK_AHEAD))
    assert policy.choose(is_copied) == 2
    assert asked == [0, 1, 2]
    asked.clear()
    policy.remove(BlockId(2))
    assert policy.choose(is_copied) == 0
    assert len(asked) == LOOK_AHEAD


def test_a_copy_is_asked_for_each_time() -> None:
    policy, copied = fill(CopiesFirst(), 0, 1, 2), {1}
    assert policy.choose(copied.__contains__) == 1
    copied ^= {1, 2}
    assert policy.choose(copied.__contains__) == 2
