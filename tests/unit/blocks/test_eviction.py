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


class Asked:
    """Knows who has a copy, and who was asked about."""

    def __init__(self, *copied: int) -> None:
        self.copied, self.blocks = set(copied), list[int]()

    def __call__(self, block: BlockId) -> bool:
        self.blocks.append(block)
        return block in self.copied


def test_no_more_is_asked_than_is_needed() -> None:
    asked = Asked(2)
    assert fill(CopiesFirst(), *range(3 * LOOK_AHEAD)).choose(asked) == 2
    assert asked.blocks == [0, 1, 2]


def test_who_had_no_copy_is_asked_about_again_only_after_a_while() -> None:
    policy, asked = fill(CopiesFirst(), *range(10 * LOOK_AHEAD)), Asked()
    for turn in range(5 * CopiesFirst.ASKED_FOR):
        policy.remove(policy.choose(asked))
        assert LOOK_AHEAD + turn not in asked.blocks[:-1], "looked too far ahead"
    assert len(asked.blocks) <= 6 * LOOK_AHEAD + 5 * CopiesFirst.ASKED_FOR
    asked.copied.add(100)
    chosen = []
    for _ in range(CopiesFirst.ASKED_FOR + 1):
        chosen.append(policy.choose(asked))
        policy.remove(chosen[-1])
    assert 100 in chosen


def test_a_copy_that_is_lost_is_noticed_at_once() -> None:
    policy, asked = fill(CopiesFirst(), 0, 1, 2), Asked(1)
    assert policy.choose(asked) == 1
    asked.copied.clear()
    assert policy.choose(asked) == 0


def test_a_block_that_comes_back_is_asked_about_anew() -> None:
    policy, asked = fill(CopiesFirst(), 0, 1), Asked()
    assert policy.choose(asked) == 0
    policy.remove(BlockId(1))
    policy.add(BlockId(1))
    asked.copied.add(1)
    assert policy.choose(asked) == 1
