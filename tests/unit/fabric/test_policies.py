"""Each policy answers its question as its name says, and each table has the policies under their names."""

from fakes.keys import TENANT, key
from kvist.base.ids import GroupId
from kvist.fabric.messages import TierName
from kvist.fabric.policies import (
    ADMISSIONS,
    EVICTION_ORDERS,
    LOAD_CHOICES,
    PLACEMENTS,
    RETENTIONS,
    AdmitEverything,
    Candidate,
    LongestUnused,
    TimeToLive,
    WriteThrough,
)

DRAM, DISK, POOL = TierName("dram"), TierName("disk"), TierName("pool")


def test_what_was_unused_longest_goes_first() -> None:
    order = LongestUnused()
    for number in range(4):
        order.add(key(number))
    order.touch(key(0))
    order.remove(key(2))
    given_up = []
    for _ in range(3):
        given_up.append(order.choose())
        order.remove(given_up[-1])
    assert given_up == [key(1), key(3), key(0)]


def test_everything_is_admitted() -> None:
    for index in (0, 10**6):
        assert AdmitEverything().admits(Candidate(tenant=TENANT, group=GroupId(0), index=index, record_bytes=1))


def test_everything_is_written_to_every_tier_and_promoted_to_those_above() -> None:
    tiers, policy = (DRAM, DISK, POOL), WriteThrough()
    assert list(policy.stores(tiers)) == [DRAM, DISK, POOL]
    assert list(policy.stores(())) == []
    assert [list(policy.promotes(tier, tiers)) for tier in tiers] == [[], [DRAM], [DRAM, DISK]]
    assert list(policy.promotes(DISK, (DRAM, POOL))) == [], "the tier that it came from is no longer used"


def test_records_live_as_long_as_they_are_told() -> None:
    assert TimeToLive(ttl_s=60).expires_unix_s(1000.0) == 1060.0
    assert TimeToLive().expires_unix_s(1000.0) is None


def test_the_names_of_the_configuration_lead_to_policies() -> None:
    assert isinstance(EVICTION_ORDERS["lru"](), LongestUnused)
    assert EVICTION_ORDERS["lru"]() is not EVICTION_ORDERS["lru"](), "an order belongs to one class of one tier"
    assert isinstance(ADMISSIONS["everything"](), AdmitEverything)
    assert isinstance(PLACEMENTS["write-through"](), WriteThrough)
    assert RETENTIONS["ttl"](5.0) == TimeToLive(ttl_s=5.0)
    assert RETENTIONS["ttl"](None) == TimeToLive()
    assert set(LOAD_CHOICES) == {"cheaper", "always"}
