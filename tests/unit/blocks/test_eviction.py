import pytest

from kvist.base.ids import BlockId
from kvist.blocks.eviction import LeastRecentlyUsed


def drained(policy: LeastRecentlyUsed) -> list[int]:
    """The order in which a policy gives its blocks up, which empties it."""
    order: list[int] = []
    while policy._order:
        order.append(policy.choose())
        policy.remove(BlockId(order[-1]))
    return order


def filled(*blocks: int) -> LeastRecentlyUsed:
    policy = LeastRecentlyUsed()
    for block in blocks:
        policy.add(BlockId(block))
    return policy


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
