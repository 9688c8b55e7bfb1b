from dataclasses import replace

import pytest

from fakes.vllm_side import HYBRID, SideRig, request
from kvist.connectors.vllm.orders import StepReport
from kvist.connectors.vllm.requests import AdapterName


@pytest.mark.parametrize(
    ("tokens", "computed", "expected"),
    [
        (1, 0, 0),
        (16, 0, 0),
        (17, 0, 16),
        (96, 0, 80),
        (97, 0, 96),
        (97, 96, 0),
        (200, 0, 96),
        (97, 40, 0),
        (97, 48, 48),
    ],
)
def test_a_token_is_left_to_compute_and_loads_begin_where_blocks_do(tokens: int, computed: int, expected: int) -> None:
    rig = SideRig()
    rig.store(request("one", "a", 96))
    assert rig.claim(request("two", "a", tokens), computed) == expected


@pytest.mark.parametrize(
    "other",
    [
        request("two", "a", 97, salt="blue"),
        request("two", "a", 97, adapter=AdapterName(name="sql", path="/a")),
        request("two", "a", 97, adapter=AdapterName(name="x", path="/")),
        request("two", "a", 97, reads_cache=False),
        request("two", "b", 97),
    ],
    ids=["salt", "adapter", "unknown adapter", "does not read", "other tokens"],
)
def test_nobody_hits_what_is_not_theirs(other: object) -> None:
    rig = SideRig()
    rig.store(request("one", "a", 96))
    assert rig.claim(other) == 0
    rig.side.audit()


def test_sources_sum_to_what_is_loaded() -> None:
    rig = SideRig(HYBRID)
    rig.store(request("one", "a", 96))
    tokens = rig.load(request("two", "a", 97), ([1, 2, 3], [0, 0, 0, 0, 7, 8]))
    assert rig.side.sources("two", tokens) == {"dram": 96}
    assert rig.side.sources("two", 50) == {"dram": 50}
    assert rig.side.sources("nobody", 50) == {}


def test_regions_and_shapes_are_sent_until_a_worker_has_reported() -> None:
    rig = SideRig()
    first, second = rig.step(), rig.step()
    assert first.shapes == second.shapes == rig.side._settings.shapes
    rig.side.reported(None, ())
    assert rig.step().shapes
    rig.side.reported(StepReport(), ())
    assert rig.step().shapes == ()


def test_each_token_is_counted_once() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 96))
    two = request("two", "a", 150)
    rig.load(two, rig.tables(1, 150), 32)
    rig.life.pass_time(1.0)
    rig.done(rig.step(), finished=["two"])
    rig.side.allocated(two, rig.tables(1, 150), 0)
    for computed in (96, 140):
        now = replace(two, computed_tokens=computed)
        rig.step({"two": 10}, requests=[now], tables={"two": rig.tables(1, 150)})
    assert rig.side.statistics().tokens == {"computed": 96 + 54, "G1": 32, "dram": 64}


def test_prefill_is_learned_from_a_step_that_computes_one_request() -> None:
    rig = SideRig()
    made = request("one", "a", 96, computed=16)
    before = rig.life.rig.fabric._planning._prefill.predict_s(0, 96)
    rig.step({"one": 80}, requests=[made], tables={"one": rig.tables(1, 96)})
    rig.life.pass_time(60.0)
    rig.side.reported(None, ())
    after = rig.life.rig.fabric._planning._prefill.predict_s(0, 96)
    assert after > 2 * before, (before, after)


def test_an_idle_step_waits_only_for_what_may_come() -> None:
    rig = SideRig()
    assert not rig.side._is_waiting()
    rig.store(request("one", "a", 96))
    rig.load(request("two", "a", 97), rig.tables(1, 96))
    assert rig.side._is_waiting()
    rig.life.pass_time(1.0)
    orders = rig.step()
    assert not rig.side._is_waiting(), "a report is on its way"
    rig.done(orders, finished=["two"])
    assert not rig.side._is_waiting()


def test_blocks_that_nobody_claimed_are_a_mistake() -> None:
    rig = SideRig()
    with pytest.raises(AssertionError, match="nobody claimed"):
        rig.side.allocated(request("one", "a", 96), rig.tables(1, 96), 96)


def test_a_claim_is_taken_whole_or_not_at_all() -> None:
    rig = SideRig(HYBRID)
    rig.store(request("one", "a", 96))
    two = request("two", "a", 97)
    assert rig.claim(two) == 96
    with pytest.raises(AssertionError, match="takes 64 of the 96"):
        rig.side.allocated(two, ([1, 2], [0, 0, 7, 8]), 64)


def test_closing_leaves_nothing_behind() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 96))
    rig.load(request("two", "a", 97), rig.tables(1, 96))
    rig.side.arrived(request("three", "c", 97))
    four, tables = request("four", "d", 64), rig.tables(20, 64)
    rig.side.allocated(four, tables, 0)
    rig.step({"four": 64}, requests=[four], tables={"four": tables})
    rig.side.close()
    rig.life.pass_time(10.0)
    statistics = rig.life.rig.fabric.statistics()
    assert (statistics.loads_running, statistics.stores_running, statistics.staging_bytes_used) == (0, 0, 0)
