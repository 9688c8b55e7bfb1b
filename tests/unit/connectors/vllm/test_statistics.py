"""Figures survive the way through vLLM: what happened is counted once, however often packets are added up."""

import dataclasses
import json

import pytest

from kvist.connectors.vllm.counts import SchedulerStatistics
from kvist.connectors.vllm.statistics import METRICS, Interval, Sample, added, sample_of, samples, summary
from kvist.fabric.messages import TIER_EVENTS, FabricStatistics, TierBooks, TierName

COUNTED = {name: 10 + place for place, name in enumerate(TIER_EVENTS)}
DRAM = TierBooks(name=TierName("dram"), resident=3, bytes_used=7, bytes_max=9, breaker="open", **COUNTED)
FABRIC = FabricStatistics(
    tiers=(DRAM, TierBooks(name=TierName("pool"))),
    loads_running=1,
    stores_running=2,
    stores_dropped=0,
    staging_bytes_used=30,
    staging_bytes=100,
)
FIGURES = SchedulerStatistics(
    requests=4,
    bypassed=5,
    tokens={"dram": 64, "G1": 32, "computed": 16},
    loads={"complete": 2, "late": 1},
    loads_running=1,
    stores={"done": 8},
    stores_running=3,
    held=1,
    orders=0,
    copy_s=0.5,
    copied_bytes=2_000_000,
    fabric=FABRIC,
)


def found(statistics: SchedulerStatistics) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(name, labels): value for name, labels, value in samples(statistics, is_detached=False)}


def test_every_metric_is_told_with_its_labels() -> None:
    told = found(FIGURES)
    assert {name for name, _ in told} == METRICS.keys()
    for name, labels in told:
        assert len(labels) == len(METRICS[name].labels)


def test_every_number_of_a_tier_is_told() -> None:
    told = found(FIGURES)
    assert {event: told["kvist_tier_blocks", ("dram", event)] for event in TIER_EVENTS} == COUNTED
    assert told["kvist_tier_breaker", ("dram", "open")] == 1
    assert told["kvist_tier_breaker", ("dram", "closed")] == 0
    assert told["kvist_tier_bytes_used", ("dram",)] == 7
    assert ("kvist_tier_bytes_used", ("pool",)) not in told
    assert told["kvist_stores_running", ()] == 5
    assert told["kvist_staging_bytes", ("free",)] == 70


def test_a_side_that_is_detached_says_only_that() -> None:
    assert list(samples(None, is_detached=True)) == [Sample("kvist_connector_detached", (), 1)]


def test_a_packet_holds_what_happened_since_the_last_one() -> None:
    interval = Interval()
    first = interval.packet(samples(FIGURES, is_detached=False))
    assert first["kvist_tokens_begun|dram"] == 64
    assert interval.packet(samples(FIGURES, is_detached=False)) == {}
    later = dataclasses.replace(FIGURES, tokens={"dram": 70, "G1": 32, "computed": 16, "disk": 1}, held=0)
    assert interval.packet(samples(later, is_detached=False)) == {
        "kvist_tokens_begun|dram": 6,
        "kvist_tokens_begun|disk": 1,
        "kvist_requests_held": 0,
    }


def test_packets_add_up_to_the_sums_they_were_made_of() -> None:
    interval, whole = Interval(), dict[str, float]()
    for tokens in (64, 70, 70, 100):
        step = dataclasses.replace(FIGURES, tokens={"dram": tokens}, held=tokens)
        whole = added(whole, interval.packet(samples(step, is_detached=False)))
    assert whole["kvist_tokens_begun|dram"] == 100
    assert whole["kvist_requests_held"] == 100
    assert whole["kvist_loads|complete"] == 2


def test_a_packet_passes_through_any_encoding() -> None:
    packet = Interval().packet(samples(FIGURES, is_detached=False))
    assert json.loads(json.dumps(packet)) == packet


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", 1),
        ("kvist_loads", 1),
        ("kvist_loads|complete|more", 1),
        ("kvist_held", 1),
        ("vllm:num_requests", 1),
        ("kvist_loads|complete", "1"),
        ("kvist_loads|complete", None),
        ("kvist_loads|complete", [1]),
    ],
)
def test_what_is_not_ours_is_no_sample(key: str, value: object) -> None:
    assert sample_of(key, value) is None


def test_a_tiers_name_cannot_break_a_key() -> None:
    odd = dataclasses.replace(FABRIC, tiers=(dataclasses.replace(DRAM, name=TierName("a|b")),))
    packet = Interval().packet(samples(dataclasses.replace(FIGURES, fabric=odd), is_detached=False))
    assert sample_of("kvist_tier_blocks_resident|a/b", packet["kvist_tier_blocks_resident|a/b"]) is not None


def test_the_log_says_what_happened_and_nothing_else() -> None:
    packet = Interval().packet(samples(FIGURES, is_detached=False))
    assert summary(packet) == {
        "tokens from dram": 64,
        "loads complete": 2,
        "loads late": 1,
        "stores done": 8,
        "copied MB": 2.0,
    }
    assert summary({"kvist_connector_detached": 1, "other": 5}) == {"detached": 1}
    assert summary({}) == {}
