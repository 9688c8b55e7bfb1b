"""The scheduler's figures on their way through vLLM to Prometheus and the log: plain numbers by name, in small packets.

    snapshot ──▶ samples ──▶ packet: what counters grew by, and where gauges stand ──▶ added up ──▶ metrics, log

A packet is a dictionary of numbers, because vLLM sends it to another process and knows nothing of ours. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvist.connectors.vllm.counts import COMPUTED, LOCAL, SchedulerStatistics
from kvist.fabric.messages import BREAKER_STATES, TIER_EVENTS, TierBooks

Packet = dict[str, float]
"""Values by ``name|label|label``."""

_BETWEEN = "|"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric: what it counts, and what its values are told apart by."""

    kind: Literal["counter", "gauge"]
    documentation: str
    labels: tuple[str, ...] = ()


METRICS: Mapping[str, Metric] = {
    "kvist_tokens_begun": Metric(
        kind="counter", documentation="Tokens that requests began with, by where they came from.", labels=("source",)
    ),
    "kvist_loads": Metric(kind="counter", documentation="Loads by what became of them.", labels=("outcome",)),
    "kvist_stores": Metric(kind="counter", documentation="Blocks copied out or given up.", labels=("outcome",)),
    "kvist_requests_bypassed": Metric(
        kind="counter", documentation="Requests whose adapter could not be told from others."
    ),
    "kvist_copied_bytes": Metric(kind="counter", documentation="Bytes copied by all workers."),
    "kvist_copy_seconds": Metric(kind="counter", documentation="Seconds that steps spent on copying."),
    "kvist_loads_running": Metric(kind="gauge", documentation="Loads under way."),
    "kvist_stores_running": Metric(kind="gauge", documentation="Blocks on their way into tiers."),
    "kvist_requests_held": Metric(kind="gauge", documentation="Finished requests whose blocks are still to be stored."),
    "kvist_staging_bytes": Metric(
        kind="gauge", documentation="Memory that loads and stores pass through.", labels=("state",)
    ),
    "kvist_tier_blocks": Metric(
        kind="counter", documentation="Blocks of a tier by what happened.", labels=("tier", "event")
    ),
    "kvist_tier_blocks_resident": Metric(kind="gauge", documentation="Blocks that a tier holds.", labels=("tier",)),
    "kvist_tier_bytes_used": Metric(kind="gauge", documentation="Bytes that a tier takes.", labels=("tier",)),
    "kvist_tier_bytes_max": Metric(kind="gauge", documentation="Bytes that a tier may take.", labels=("tier",)),
    "kvist_tier_breaker": Metric(kind="gauge", documentation="1 for the state it is in.", labels=("tier", "state")),
    "kvist_connector_detached": Metric(
        kind="gauge", documentation="1 once an unexpected error has ended the use of the cache."
    ),
}
"""By name; Prometheus adds ``_total`` to those of counters."""


class Sample(NamedTuple):
    """One value: of counters the sum since the start."""

    name: str
    labels: tuple[str, ...]
    value: float


class Interval:
    """Turns sums since the start into what has happened since the last packet."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, tuple[str, ...]], float] = {}
        self._standing: dict[tuple[str, tuple[str, ...]], float] = {}

    def packet(self, samples: Iterable[Sample]) -> Packet:
        """What counters grew by, and the gauges that moved; empty where nothing happened."""
        found: Packet = {}
        for name, labels, value in samples:
            key = (name, labels)
            if METRICS[name].kind == "counter":
                grown = value - self._sums.get(key, 0.0)
                self._sums[key] = value
                if grown:
                    found[_key(name, labels)] = grown
            elif self._standing.get(key) != value:
                self._standing[key] = value
                found[_key(name, labels)] = value
        return found


def samples(statistics: SchedulerStatistics | None, *, is_detached: bool) -> Iterator[Sample]:
    """Everything worth showing; of a side that is detached, that it is."""
    yield Sample("kvist_connector_detached", (), int(is_detached))
    if statistics is None:
        return
    for name, counts in (
        ("kvist_tokens_begun", statistics.tokens),
        ("kvist_loads", statistics.loads),
        ("kvist_stores", statistics.stores),
    ):
        for label, count in counts.items():
            yield Sample(name, (label,), count)
    fabric = statistics.fabric
    for name, value in (
        ("kvist_requests_bypassed", statistics.bypassed),
        ("kvist_copied_bytes", statistics.copied_bytes),
        ("kvist_copy_seconds", statistics.copy_s),
        ("kvist_loads_running", statistics.loads_running),
        ("kvist_stores_running", statistics.stores_running + fabric.stores_running),
        ("kvist_requests_held", statistics.held),
    ):
        yield Sample(name, (), value)
    yield Sample("kvist_staging_bytes", ("used",), fabric.staging_bytes_used)
    yield Sample("kvist_staging_bytes", ("free",), fabric.staging_bytes - fabric.staging_bytes_used)
    for books in fabric.tiers:
        yield from _tier(books)


def _tier(books: TierBooks) -> Iterator[Sample]:
    for event in TIER_EVENTS:
        yield Sample("kvist_tier_blocks", (books.name, event), getattr(books, event))
    yield Sample("kvist_tier_blocks_resident", (books.name,), books.resident)
    for name, value in (("kvist_tier_bytes_used", books.bytes_used), ("kvist_tier_bytes_max", books.bytes_max)):
        if value is not None:
            yield Sample(name, (books.name,), value)
    for state in BREAKER_STATES:
        yield Sample("kvist_tier_breaker", (books.name, state), int(books.breaker == state))


def added(first: Mapping[str, float], second: Mapping[str, float]) -> Packet:
    """Two packets as one, the second being the later."""
    found = dict(first)
    for key, value in second.items():
        sample = sample_of(key, value)
        is_sum = sample is not None and METRICS[sample.name].kind == "counter"
        found[key] = found.get(key, 0) + value if is_sum else value
    return found


def sample_of(key: str, value: object) -> Sample | None:
    """One value of a packet; None where it is none of ours: packets come from another process."""
    name, *labels = key.split(_BETWEEN)
    metric = METRICS.get(name)
    if metric is None or len(labels) != len(metric.labels) or not isinstance(value, int | float):
        return None
    return Sample(name, tuple(labels), value)


def summary(packet: Mapping[str, float]) -> dict[str, int | float]:
    """What the log of an interval says: tokens by source, loads and stores by outcome, bytes; only what happened."""
    shown: dict[str, int | float] = {}
    for key, value in packet.items():
        sample = sample_of(key, value)
        if sample is None or not value:
            continue
        if sample.name == "kvist_tokens_begun" and sample.labels[0] not in {COMPUTED, LOCAL}:
            shown[f"tokens from {sample.labels[0]}"] = value
        elif sample.name in {"kvist_loads", "kvist_stores"}:
            shown[f"{sample.name.removeprefix('kvist_')} {sample.labels[0]}"] = value
        elif sample.name == "kvist_copied_bytes":
            shown["copied MB"] = round(value / 1e6, 1)
        elif sample.name == "kvist_connector_detached":
            shown["detached"] = value
    return shown


def _key(name: str, labels: tuple[str, ...]) -> str:
    """Names of tiers are the operator's, and may not have what stands between."""
    return _BETWEEN.join((name, *(label.replace(_BETWEEN, "/") for label in labels)))
