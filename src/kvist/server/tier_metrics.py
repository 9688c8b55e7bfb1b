"""The tiers in Prometheus' words: the ledger of each, its bytes, its health, and what is under way."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvist.engine.messages import EngineStatistics
from kvist.fabric.messages import BREAKER_STATES, TIER_EVENTS, FabricStatistics, TierBooks


def cached_tokens(statistics: EngineStatistics) -> Metric:
    """Prompt tokens that were not computed, by where they came from; `kvist_tokens{source="cache"}` is their sum."""
    family = CounterMetricFamily("kvist_tokens_cached", "Cached prompt tokens by tier.", labels=("tier",))
    for tier, tokens in statistics.tokens_by_tier:
        family.add_metric((tier,), tokens)
    return family


def fabric_metrics(statistics: FabricStatistics) -> Iterator[Metric]:
    """Everything about the tiers below the engine's own memory."""
    yield from _tiers(statistics.tiers)
    yield GaugeMetricFamily("kvist_loads_running", "Loads under way.", statistics.loads_running)
    yield GaugeMetricFamily("kvist_stores_running", "Blocks on their way into tiers.", statistics.stores_running)
    staging = GaugeMetricFamily("kvist_staging_bytes", "Memory that loads and stores pass through.", labels=("state",))
    staging.add_metric(("used",), statistics.staging_bytes_used)
    staging.add_metric(("free",), statistics.staging_bytes - statistics.staging_bytes_used)
    yield staging


def _tiers(tiers: tuple[TierBooks, ...]) -> Iterator[Metric]:
    events = CounterMetricFamily("kvist_tier_blocks", "Blocks of a tier by what happened.", labels=("tier", "event"))
    resident = GaugeMetricFamily("kvist_tier_blocks_resident", "Blocks that a tier holds.", labels=("tier",))
    used = GaugeMetricFamily("kvist_tier_bytes_used", "Bytes that a tier takes.", labels=("tier",))
    bound = GaugeMetricFamily("kvist_tier_bytes_max", "Bytes that a tier may take.", labels=("tier",))
    breaker = GaugeMetricFamily("kvist_tier_breaker", "1 for the state it is in.", labels=("tier", "state"))
    for books in tiers:
        for event in TIER_EVENTS:
            events.add_metric((books.name, event), getattr(books, event))
        resident.add_metric((books.name,), books.resident)
        for family, value in ((used, books.bytes_used), (bound, books.bytes_max)):
            if value is not None:
                family.add_metric((books.name,), value)
        for state in BREAKER_STATES:
            breaker.add_metric((books.name, state), int(books.breaker == state))
    yield from (events, resident, used, bound, breaker)
