"""What control knows of a tier: what it was seen to have, whether to use it, and a ledger that adds up."""

import pytest

from fakes.fabric import BLUE, NAMESPACE, Rig, chain_of
from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey
from kvist.fabric.messages import TierName
from kvist.fabric.settings import TierSettings
from kvist.fabric.tier_state import Known, TierState

GROUP = GroupId(0)
CHAIN = chain_of("a", 20)


def key(index: int, group: int = 0) -> BlockKey:
    return BlockKey(NAMESPACE, GroupId(group), "prefix", CHAIN[index])


def make(share: int = 100) -> TierState:
    return TierState(TierSettings(name=TierName("pool"), kind="pool"), known_max=8, bytes_share=share)


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_the_newest_records_are_known_up_to_a_bound(batch: int) -> None:
    known = Known(8)
    for first in range(0, 20, batch):
        known.add(NAMESPACE, GROUP, CHAIN[first : first + batch])
    assert [key(index) in known for index in range(20)] == [False] * 12 + [True] * 8
    assert key(19, group=1) not in known
    known.discard(key(19))
    known.discard(key(0))
    known.discard(key(3, group=5))
    assert [key(index) in known for index in range(12, 20)] == [True] * 7 + [False]


def test_a_lane_always_takes_something_and_then_up_to_its_share() -> None:
    tier = make(share=100)
    assert not tier.reads_full(1000)
    tier.bytes_reading = 60
    assert not tier.reads_full(40)
    assert tier.reads_full(41)
    assert not tier.writes_full(1000), "writes are counted apart"
    tier.bytes_writing = 100
    assert tier.writes_full(1)


def test_a_tier_is_used_while_well_and_tried_after_a_pause_unless_what_hangs_fills_it_up() -> None:
    tier = make()
    tier.bytes_reading = tier.bytes_writing = 100
    assert tier.readable(0.0)
    assert tier.writable(0.0)
    for breaker in (tier.reads, tier.writes):
        breaker.exhausted_staging(0.0)
    assert not tier.readable(0.5)
    assert not tier.writable(0.5)
    assert not tier.readable(5.0), "it may be tried, but there is no room to"
    assert not tier.writable(5.0)
    tier.bytes_reading = tier.bytes_writing = 0
    assert tier.readable(5.0)
    assert tier.writable(5.0)


def test_the_ledger_of_a_keyed_tier_adds_up_although_others_store_there() -> None:
    tier = make()
    tier.tally.stored = 2
    tier.tally.quarantined, tier.tally.purged = 1, 3
    books = tier.books(0.0)
    assert (books.stored, books.resident) == (4, 0)
    tier.tally.stored = 9
    assert (tier.books(0.0).stored, tier.books(0.0).resident) == (9, 5)


def test_the_worst_of_its_breakers_is_shown() -> None:
    for breaker in ("asks", "reads", "writes"):
        tier = make()
        assert tier.books(0.0).breaker == "closed"
        getattr(tier, breaker).exhausted_staging(0.0)
        assert tier.books(0.0).breaker == "open"
        assert tier.books(9.0).breaker == "half-open"


def test_only_a_keyed_tier_is_without_books() -> None:
    tier = make()
    assert not tier.has(key(0), 0.0)
    tier.known.add(NAMESPACE, GROUP, CHAIN[:1])
    assert tier.has(key(0), 0.0)
    with pytest.raises(AssertionError, match="pool keeps no books"):
        tier.have(NAMESPACE, GROUP, CHAIN, BLUE, 0.0)


def test_what_a_pool_was_seen_to_have_is_forgotten() -> None:
    rig = Rig(names=("pool",))
    for _ in range(20):
        rig.fill(CHAIN)
        rig.renew()
    with rig.fabric.inside() as inside:
        (pool,) = inside.desk.tiers
        assert not pool.known._seen
    rig.close()
