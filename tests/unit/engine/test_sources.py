"""Each cached token is counted once, under the tier that its block came from."""

import pytest

from kvist.base.ids import BlockId, GroupId
from kvist.base.units import Tokens
from kvist.blocks.prefix import Hit
from kvist.engine.sources import sources_of
from kvist.fabric.messages import TierName, Want

SIZE = 4


def hit_of(*groups: str) -> Hit:
    """A hit whose blocks of each group are in G1 (g), loaded (l) or not needed (.)."""
    return Hit(
        tokens=Tokens(len(groups[0]) * SIZE),
        blocks=tuple(tuple(BlockId(i) if each == "g" else None for i, each in enumerate(group)) for group in groups),
        loads=tuple(tuple(i for i, each in enumerate(group) if each == "l") for group in groups),
        reached=Tokens(0),
        end="",
    )


def wants_of(*groups: str) -> list[Want]:
    """Which tier each block comes from: a letter each, or a dot."""
    return [
        Want(group=GroupId(number), index=index, tier=TierName(tier))
        for number, group in enumerate(groups)
        for index, tier in enumerate(group)
        if tier != "."
    ]


def divided(hit: Hit, wants: list[Want], fresh: range | None = None) -> dict[str, int]:
    whole = range(int(hit.tokens)) if fresh is None else fresh
    return {source.tier: source.tokens for source in sources_of(hit, wants, {}, whole)}


@pytest.mark.parametrize(
    ("groups", "wants", "expected"),
    [
        (("gggg",), ("....",), {"G1": 16}),
        (("ggll",), ("..dd",), {"G1": 8, "d": 8}),
        (("lgll",), ("d.dp",), {"G1": 4, "d": 8, "p": 4}),
        (("gggg", "..ll"), ("....", "..dp"), {"G1": 8, "d": 4, "p": 4}),  # a token is as far away as its farthest
        (("gggl", "..ll"), ("...d", "..pp"), {"G1": 8, "p": 4, "d": 4}),  # the first group speaks first
        (("..ll",), ("..dp",), {"d": 12, "p": 4}),  # before a window: as what stands for them
        (("..gl",), ("...d",), {"G1": 12, "d": 4}),
        (("...l", "..gg"), ("...d", "...."), {"G1": 12, "d": 4}),
    ],
)
def test_tokens_are_where_their_blocks_were(groups: tuple, wants: tuple, expected: dict[str, int]) -> None:
    found = divided(hit_of(*groups), wants_of(*wants))
    assert found == expected
    assert sum(found.values()) == len(groups[0]) * SIZE


@pytest.mark.parametrize(
    ("fresh", "expected"),
    [
        (range(16), {"G1": 8, "d": 8}),
        (range(6, 16), {"G1": 2, "d": 8}),
        (range(10, 14), {"d": 4}),
        (range(7), {"G1": 7}),
        (range(16, 16), {}),
        (range(0), {}),
    ],
)
def test_only_the_tokens_asked_for_are_divided(fresh: range, expected: dict[str, int]) -> None:
    assert divided(hit_of("ggll"), wants_of("..dd"), fresh) == expected


def test_g1_comes_first_then_the_others_by_name_with_what_was_loaded_from_them() -> None:
    found = sources_of(hit_of("lgl"), wants_of("p.d"), {"p": 300, "d": 200}, range(12))
    assert [(source.tier, source.tokens, source.bytes) for source in found] == [
        ("G1", 4, 0),
        ("d", 4, 200),
        ("p", 4, 300),
    ]


def test_what_was_loaded_and_counted_before_is_still_told() -> None:
    found = sources_of(hit_of("gl"), wants_of(".d"), {"d": 200}, range(8, 8))
    assert [(source.tier, source.tokens, source.bytes) for source in found] == [("d", 0, 200)]


def test_a_long_hit_takes_no_time_that_grows_faster_than_it() -> None:
    count = 8192
    hit = hit_of("l" * count)
    assert divided(hit, wants_of("d" * count)) == {"d": count * SIZE}
