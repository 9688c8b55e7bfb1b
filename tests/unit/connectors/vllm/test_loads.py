import pytest

from fakes.dice import Dice
from fakes.fabric_life import Takes, well
from fakes.vllm_shape import Shape
from fakes.vllm_side import FULL, HYBRID, SideRig, request
from kvist.blocks.keys import Namespace
from kvist.connectors.vllm.orders import LoadEnd
from kvist.fabric.jobs import Job, LoadJob


def slow_loads(seconds: float) -> Takes:
    """Tiers whose loads take so long."""

    def takes(job: Job, dice: Dice, now_s: float) -> float | None:
        return seconds if isinstance(job, LoadJob) else well(job, dice, now_s)

    return takes


def outcomes(rig: SideRig) -> dict[str, int]:
    return dict(rig.side.statistics().loads)


def test_what_has_landed_goes_to_the_blocks_behind_those_that_vllm_has() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 96))
    assert rig.load(request("two", "a", 97), ([7, 8, 21, 22, 23, 24],), 32) == 64
    rig.life.pass_time(1.0)
    orders = rig.step()
    assert [(load.request, load.copy.group) for load in orders.loads] == [("two", 0)] * 4
    assert sorted(load.copy.blocks for load in orders.loads) == [(21,), (22,), (23,), (24,)]
    assert orders.ends == (LoadEnd(request="two", failed=False),)
    rig.side.audit()
    rig.done(orders, finished=["two"])
    assert outcomes(rig) == {"complete": 1}
    assert rig.side._loads.tickets == []
    rig.side.audit()


def test_of_windows_only_what_vllm_gave_blocks_for_is_loaded() -> None:
    rig = SideRig(HYBRID)
    rig.store(request("one", "a", 96))
    full, window = [1, 2, 3], [0, 0, 0, 0, 11, 12]
    assert rig.load(request("two", "a", 97), (full, window)) == 96
    rig.life.pass_time(1.0)
    orders = rig.step()
    blocks = {(load.copy.group, load.copy.blocks) for load in orders.loads}
    assert blocks == {(0, (1,)), (0, (2,)), (0, (3,)), (1, (11, 12))}
    assert len(orders.ends) == 1
    rig.done(orders, finished=["two"])
    assert rig.side._loads.tickets == []


def test_a_buffer_is_not_given_back_before_the_last_worker_is_done() -> None:
    rig = SideRig(Shape(workers=2), names=("disk",))
    rig.store(request("one", "a", 64))
    rig.load(request("two", "a", 65), rig.tables(1, 64))
    rig.life.pass_time(1.0)
    orders = rig.step()
    used = rig.life.rig.fabric.statistics().staging_bytes_used
    assert used > 0
    rig.done(orders, workers=1)
    rig.side.finished(request("two", "a", 65), rig.tables(1, 64))
    assert rig.life.rig.fabric.statistics().staging_bytes_used == used
    rig.side.audit()
    rig.done(orders, workers=1, finished=["two"])
    assert rig.life.rig.fabric.statistics().staging_bytes_used == 0


@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["one group", "two groups"])
def test_what_does_not_come_in_time_is_told_by_block_or_by_request(shape: Shape) -> None:
    rig = SideRig(shape, takes=slow_loads(1e9))
    rig.store(request("one", "a", 96))
    tables = rig.tables(1, 96)
    two = request("two", "a", 97)
    assert rig.load(two, tables, 32) == 64
    assert rig.step().ends == ()
    rig.life.pass_time(20.0)
    orders = rig.step()
    invalid = tuple(tables[0][2:]) if len(shape.groups) == 1 else ()
    assert orders.ends == (LoadEnd(request="two", failed=True, invalid=invalid),)
    assert outcomes(rig) == {"late": 1}
    rig.done(orders, finished=["two"])
    assert rig.side.matched(two, 0) == (0, False), "a load is tried once"
    rig.step(requests=[two], preempted=["two"])
    assert rig.claim(two) == 96, "after a preemption it is tried again"


def test_the_blocks_before_the_first_one_that_failed_are_of_use() -> None:
    rig = SideRig(copy_bytes_max=1)
    rig.store(request("one", "a", 96))
    rig.load(request("two", "a", 97), rig.tables(1, 96))
    rig.life.pass_time(1.0)
    busy = request("busy", "b", 64)
    first = rig.step({"busy": 1}, requests=[busy])
    second = rig.step({"busy": 1}, requests=[busy])
    assert [load.copy.blocks for load in (*first.loads, *second.loads)] == [(1,), (2,)], "a little per step"
    rig.done(first)
    rig.done(second, failed=[second.loads[0].copy.id])
    orders = rig.step()
    assert orders.ends == (LoadEnd(request="two", failed=True, invalid=(2, 3, 4, 5, 6)),)
    assert outcomes(rig) == {"failed": 1}


def test_a_copy_that_fails_after_the_end_was_told_keeps_the_request_from_loading_again() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    two = request("two", "a", 65)
    rig.load(two, rig.tables(1, 64))
    rig.life.pass_time(1.0)
    orders = rig.step()
    rig.done(orders, failed=[orders.loads[0].copy.id], finished=["two"])
    assert rig.side.matched(two, 0) == (0, False)


def test_an_aborted_request_is_told_the_end_of_its_load_once_and_at_once() -> None:
    rig = SideRig(takes=slow_loads(1e9))
    rig.store(request("one", "a", 64))
    two = request("two", "a", 65)
    rig.load(two, rig.tables(1, 64))
    assert not rig.side.finished(two, rig.tables(1, 64)), "vLLM keeps its blocks anyway"
    orders = rig.step()
    assert orders.ends == (LoadEnd(request="two", failed=False),)
    rig.done(orders, finished=["two"])
    assert rig.step().is_empty
    assert outcomes(rig) == {"aborted": 1}
    rig.side.audit()


def test_who_is_aborted_when_its_end_is_on_its_way_is_not_told_again() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    two = request("two", "a", 65)
    rig.load(two, rig.tables(1, 64))
    rig.life.pass_time(1.0)
    orders = rig.step()
    assert len(orders.ends) == 1
    assert rig.side._loads.leave("two"), "vLLM keeps its blocks until it is told"
    assert not rig.side.finished(two, rig.tables(1, 64))
    assert rig.step().ends == ()
    rig.done(orders, finished=["two"])
    assert not rig.side._loads.leave("two")
    assert rig.step().is_empty


def test_a_reset_makes_all_of_a_load_invalid_from_its_first_block_on() -> None:
    rig = SideRig(copy_bytes_max=1)
    rig.store(request("one", "a", 96))
    rig.load(request("two", "a", 97), rig.tables(1, 96), 32)
    rig.life.pass_time(1.0)
    first = rig.step({"busy": 1})
    assert len(first.loads) == 1
    rig.side.reset(Namespace(b"new".ljust(32)))
    orders = rig.step()
    assert orders.loads == ()
    assert orders.ends == (LoadEnd(request="two", failed=True, invalid=(3, 4, 5, 6)),)
    assert outcomes(rig) == {"reset": 1}
    rig.side.audit()
    rig.done(first)
    rig.done(orders, finished=["two"])
    rig.side.audit()
