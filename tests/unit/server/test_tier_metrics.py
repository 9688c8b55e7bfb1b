"""The ledger of each tier as metrics: every field, under its tier, and nothing where only the store knows."""

import dataclasses

from prometheus_client.metrics_core import Metric

from kvist.fabric.messages import TIER_EVENTS, FabricStatistics, TierBooks, TierName
from kvist.server.tier_metrics import fabric_metrics

COUNTED = {name: 100 + index for index, name in enumerate(TIER_EVENTS)}
DISK = TierBooks(name=TierName("disk"), resident=7, bytes_used=5, bytes_max=9, breaker="half-open", **COUNTED)
POOL = TierBooks(name=TierName("pool"))
STATISTICS = FabricStatistics(
    tiers=(DISK, POOL),
    loads_running=2,
    stores_running=3,
    stores_dropped=4,
    staging_bytes_used=10,
    staging_bytes=64,
)


def samples() -> dict[tuple[str, ...], float]:
    families: list[Metric] = list(fabric_metrics(STATISTICS))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_every_event_of_the_ledger_is_a_counter() -> None:
    found = samples()
    for name, value in COUNTED.items():
        assert found["kvist_tier_blocks_total", "disk", name] == value
        assert found["kvist_tier_blocks_total", "pool", name] == 0


def test_no_field_of_the_books_is_forgotten() -> None:
    told = {*TIER_EVENTS, "name", "resident", "bytes_used", "bytes_max", "breaker"}
    assert told == {field.name for field in dataclasses.fields(TierBooks)}


def test_what_only_the_store_knows_is_not_made_up() -> None:
    found = samples()
    assert (found["kvist_tier_bytes_used", "disk"], found["kvist_tier_bytes_max", "disk"]) == (5, 9)
    assert ("kvist_tier_bytes_used", "pool") not in found
    assert ("kvist_tier_bytes_max", "pool") not in found


def test_health_and_what_is_under_way() -> None:
    found = samples()
    assert [found["kvist_tier_breaker", "disk", state] for state in ("closed", "half-open", "open")] == [0, 1, 0]
    assert found["kvist_tier_breaker", "pool", "closed"] == 1
    assert (found["kvist_loads_running",], found["kvist_stores_running",]) == (2, 3)
    assert (found["kvist_staging_bytes", "used"], found["kvist_staging_bytes", "free"]) == (10, 54)
