import math

import pytest

from kvist.cost.load import load_model


def test_priors_are_what_the_media_usually_do() -> None:
    found = [(load_model(m).latency_s, load_model(m).bandwidth) for m in ("dram", "disk", "pool")]
    assert found == [pytest.approx(each) for each in ((50e-6, 8e9), (200e-6, 1.5e9), (1e-3, 0.4e9))]


def test_a_load_takes_the_latency_the_queue_and_its_bytes() -> None:
    pool = load_model("pool")
    assert pool.predict_s(40_000_000) == pytest.approx(0.101)
    assert pool.predict_s(40_000_000, queued_bytes=80_000_000) == pytest.approx(0.301)
    assert pool.predict_s(40_000_000, jobs=10) == pytest.approx(0.110)


@pytest.mark.parametrize("nothing", [0, -5])
def test_loading_nothing_takes_no_time(nothing: int) -> None:
    assert load_model("pool").predict_s(nothing, queued_bytes=10**9) == 0.0
    assert load_model("pool").hopeful_s(nothing) == 0.0


def test_lanes_share_the_jobs_and_the_bytes() -> None:
    pool = load_model("pool", lanes=4)
    assert pool.predict_s(40_000_000, queued_bytes=40_000_000, jobs=8) == pytest.approx(0.052)
    assert pool.predict_s(40_000_000, jobs=2) == pytest.approx(0.026)


def test_what_is_learned_replaces_the_prior() -> None:
    disk = load_model("disk")
    for _ in range(50):
        for nbytes in (10_000, 1_000_000, 50_000_000):
            disk = disk.learned(nbytes, 0.004 + nbytes / 0.2e9, now_s=5.0)
    assert disk.latency_s == pytest.approx(0.004, rel=0.02)
    assert disk.bandwidth == pytest.approx(0.2e9, rel=0.02)


def test_it_knows_when_it_learned() -> None:
    disk = load_model("disk")
    assert disk.unlearned_for_s(100.0) == math.inf
    disk = disk.learned(1_000_000, 0.001, now_s=100.0)
    assert disk.unlearned_for_s(130.0) == 30.0
    assert disk.unlearned_for_s(99.0) == 0.0


@pytest.mark.parametrize(
    ("nbytes", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0), (10, -1.0), (10, math.nan), (10, math.inf)]
)
def test_timings_that_cannot_be_are_not_learned(nbytes: int, seconds: float) -> None:
    disk = load_model("disk")
    assert disk.learned(nbytes, seconds, now_s=1.0) is disk


def test_hope_is_the_better_of_what_is_usual_and_what_was_learned() -> None:
    disk = load_model("disk")
    usual_s = disk.predict_s(10**8)
    slow, fast = disk, disk
    for _ in range(5):
        slow = slow.learned(10**8, 100 * usual_s, now_s=0.0)
        fast = fast.learned(10**8, usual_s / 4, now_s=0.0)
    assert slow.hopeful_s(10**8) == usual_s
    assert fast.hopeful_s(10**8) == fast.predict_s(10**8) < usual_s


def test_a_tier_has_at_least_one_lane() -> None:
    with pytest.raises(AssertionError, match="0 lanes"):
        load_model("dram", lanes=0)
