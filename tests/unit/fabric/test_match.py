import time

import pytest

from kvist.base.units import Tokens
from kvist.fabric.match import candidates, ends

BLOCKS = 8192
FULL, WINDOWED = None, Tokens(32)


def flags(text: str) -> list[bool]:
    """Availability as a line of 1 and 0."""
    return [each == "1" for each in text]


def test_without_tiers_there_is_what_g1_alone_gives() -> None:
    (only,) = candidates([[flags("1101")]], [FULL], block_tokens=16, limit=4)
    assert (only.end, only.blocks, only.lengths, only.wants(range(1))) == (2, ((2,),), (2,), [])


def test_each_set_of_tiers_is_offered_once_shortest_first() -> None:
    g1, dram, disk = flags("110000"), flags("111100"), flags("111111")
    found = candidates([[g1], [dram], [disk]], [FULL], block_tokens=16, limit=6)
    assert [(each.end, each.lengths) for each in found] == [
        (2, (2, 0, 0)),
        (4, (2, 2, 0)),
        (6, (2, 2, 2)),
        (6, (2, 0, 4)),
    ]


def test_a_slow_tier_in_the_middle_can_be_left_out() -> None:
    disk, pool = flags("1111"), flags("1111")
    found = candidates([[flags("0000")], [disk], [pool]], [FULL], block_tokens=16, limit=4)
    assert [each.lengths for each in found] == [(0, 0, 0), (0, 4, 0), (0, 0, 4)]


def test_sources_fill_each_others_gaps_in_the_order_of_positions() -> None:
    found = candidates([[flags("1001")], [flags("0100")], [flags("0110")]], [FULL], block_tokens=16, limit=4)
    assert [each.end for each in found] == [1, 2, 4, 4]
    assert [each.wants(range(3)) for each in found[2:]] == [[(0, 1, 1), (0, 2, 2)], [(0, 1, 2), (0, 2, 2)]]


def test_a_window_takes_only_the_blocks_before_the_end() -> None:
    full, windowed = flags("11111111"), flags("00000011")
    none, longest = candidates([[[], []], [full, windowed]], [FULL, WINDOWED], block_tokens=16, limit=8)
    assert none.end == 0
    assert (longest.end, longest.blocks) == (8, ((0, 0), (8, 2)))
    assert longest.wants(range(2))[-4:] == [(0, 6, 1), (1, 6, 1), (0, 7, 1), (1, 7, 1)]


def test_tokens_count_once_with_the_least_preferred_source_that_they_need() -> None:
    full, windowed = flags("1111"), flags("0011")
    *_, longest = candidates(
        [[full, flags("0000")], [flags("0000"), windowed]], [FULL, WINDOWED], block_tokens=16, limit=4
    )
    assert longest.blocks == ((4, 0), (0, 2))
    assert longest.lengths == (2, 2)


def test_tokens_before_the_windows_of_a_model_that_has_no_others_come_with_the_windows() -> None:
    *_, longest = candidates([[[]], [flags("000011")]], [WINDOWED], block_tokens=16, limit=6)
    assert (longest.blocks, longest.lengths) == (((0,), (2,)), (0, 6))


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_nothing_beyond_the_limit_is_looked_at(limit: int) -> None:
    found = candidates([[[]], [[True] * 9]], [FULL], block_tokens=16, limit=limit)
    assert found[-1].end == limit


def test_bytes_say_the_same_as_lists() -> None:
    as_lists = candidates([[flags("100")], [flags("011")]], [FULL], block_tokens=16, limit=3)
    assert candidates([[b"\x01\0\0"], [b"\0\x01\xff"]], [FULL], block_tokens=16, limit=3) == as_lists


def test_a_candidate_of_a_long_prompt_can_be_shown() -> None:
    *_, longest = candidates([[[]], [[True] * BLOCKS]], [FULL], block_tokens=16, limit=BLOCKS)
    assert len(repr(longest)) < 200


def test_of_many_tiers_not_every_set_is_tried() -> None:
    each_its_own = [[[tier == index for index in range(8)]] for tier in range(8)]
    found = candidates([[[]], *each_its_own], [FULL], block_tokens=16, limit=8)
    assert {each.end for each in found} == set(range(9))
    everything = [[[]]] + [[[True] * 8] for _ in range(8)]
    assert len(candidates(everything, [FULL], block_tokens=16, limit=8)) == 9


def test_ends_are_the_lengths_that_every_group_can_serve() -> None:
    assert ends([flags("1110111"), flags("1101111")], [FULL, Tokens(17)], block_tokens=16, limit=7) == (0, 1, 2)
    assert ends([flags("0011011")], [WINDOWED], block_tokens=16, limit=7) == (0, 4, 7)
    assert ends([[]], [FULL], block_tokens=16, limit=0) == (0,)


def test_a_sequence_and_its_groups_must_agree() -> None:
    with pytest.raises(ValueError, match="zip"):
        ends([[True], [True]], [FULL], block_tokens=16, limit=1)


def test_a_prompt_of_8192_blocks_is_matched_in_g1_and_three_tiers_in_milliseconds() -> None:
    """Takes 0.7 ms on an idle core; the bound leaves room for one that is shared."""
    sources = [[[source > 0 or index < 100 for index in range(BLOCKS)] for _ in range(2)] for source in range(4)]
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        found = candidates(sources, [FULL, Tokens(4096)], block_tokens=16, limit=BLOCKS)
        seconds.append(time.perf_counter() - begin)
    assert found[-1].end == BLOCKS
    assert min(seconds) < 0.010
