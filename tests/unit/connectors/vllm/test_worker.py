"""A worker carries out orders against real shared memory: whatever they say, each ends once and the engine goes on."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.clock import HandClock
from fakes.kv_tensors import Laid, facts, kv_of, memory_of
from kvist.connectors.vllm.orders import CopyOrder, InOrder, LoadEnd, OrderId, StepOrders, StepReport
from kvist.connectors.vllm.shapes import RecordShape, record_shapes
from kvist.connectors.vllm.worker import Results, WorkerSide
from kvist.tiers.regions import Buffer, Region, RegionId

LAID = Laid()
STAGING = RegionId("staging")
NOTHING = Results()


class Rig:
    """A worker with tensors of one group or of two alike, and the memory that the scheduler's side would own."""

    def __init__(self, groups: int = 1, seed: int = 1, **changed: object) -> None:
        self.laid = [replace(LAID, begin=index * LAID.nbytes) for index in range(groups)]
        memory = memory_of(groups * LAID.nbytes, seed)
        self.tensors = [laid.tensors(memory, f"group.{index}") for index, laid in enumerate(self.laid)]
        self.groups = [LAID.group(names, index) for index, names in enumerate(self.tensors)]
        self.clock = HandClock()
        self.side = WorkerSide(self.groups, facts(self.laid, **changed), self.clock)
        self.side.register({name: each for tensors in self.tensors for name, each in tensors.items()}, LAID.blocks)
        self.region = Region(STAGING, 2**20)
        self.records: tuple[RecordShape, ...] = ()
        self.orders = 0

    def meet(self) -> StepOrders:
        """What a first step tells."""
        self.records = record_shapes(self.groups, [self.side.shape()])
        return StepOrders(regions=(self.region.handle(),), shapes=self.records)

    def copy(self, block: int, place: int = 0, *, group: int = 0, region: RegionId = STAGING) -> CopyOrder:
        self.orders += 1
        size = LAID.block_bytes * LAID.layers
        buffer = Buffer(region=region, offset=place * 4096, length=size)
        return CopyOrder(OrderId(self.orders), group, (block,), buffer)

    def step(self, orders: StepOrders) -> tuple[Results, StepReport | None]:
        """As the engine runs one."""
        self.side.fence()
        self.side.begin(orders)
        self.side.load()
        self.side.store()
        return self.side.results(), self.side.report()

    def kv(self, block: int, group: int = 0) -> bytes:
        return kv_of(self.tensors[group], LAID.blocks)[:, block].tobytes()

    def payload(self, place: int = 0) -> bytes:
        return bytes(self.region.view(place * 4096, LAID.block_bytes * LAID.layers))

    def close(self) -> None:
        self.side.close()
        self.region.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    made = []

    def make(*args: int, **changed: object) -> Rig:
        made.append(Rig(*args, **changed))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def met(rig: Rig) -> Rig:
    """One that has had its first step."""
    assert rig.step(rig.meet()) == (NOTHING, StepReport())
    return rig


@pytest.fixture
def rig(make: Callable[..., Rig]) -> Rig:
    return met(make())


def test_the_first_report_says_that_shapes_have_come_and_no_later_one(rig: Rig) -> None:
    assert rig.step(StepOrders()) == (NOTHING, None)
    assert rig.step(rig.meet()) == (NOTHING, None)


def test_a_block_goes_out_and_comes_back_elsewhere(rig: Rig) -> None:
    stored = rig.copy(3)
    results, report = rig.step(StepOrders(stores=(stored,)))
    assert (results, report) == (NOTHING, StepReport(done={stored.id: 1}, copied_bytes=len(rig.payload())))
    assert rig.payload() == rig.kv(3)

    loaded = rig.copy(6)
    end = LoadEnd("one", failed=False)
    results, report = rig.step(StepOrders(loads=(InOrder("one", loaded),), ends=(end,)))
    assert results == Results(finished=frozenset({"one"}))
    assert report == StepReport(done={loaded.id: 1}, copied_bytes=len(rig.payload()))
    assert rig.kv(6) == rig.kv(3)
    assert rig.step(StepOrders()) == (NOTHING, None)


def test_stores_are_read_after_the_step_has_computed(rig: Rig) -> None:
    rig.side.begin(StepOrders(stores=(rig.copy(3),)))
    for tensor in rig.tensors[0].values():
        tensor[3] = 1.5
    rig.side.load()
    rig.side.store()
    assert rig.payload() == rig.kv(3)


def test_a_store_that_the_engine_forgot_is_read_before_the_next_step(rig: Rig) -> None:
    order = rig.copy(3)
    rig.side.begin(StepOrders(stores=(order,)))
    assert (rig.side.results(), rig.side.report()) == (NOTHING, None)  # saved later: speculative decoding does that
    expected = rig.kv(3)
    rig.side.fence()
    for tensor in rig.tensors[0].values():
        tensor[3] = 1.5
    rig.side.begin(StepOrders())
    assert rig.payload() == expected
    report = rig.side.report()
    assert report is not None
    assert report.done == {order.id: 1}


def test_beginning_a_step_reads_first_what_is_left(rig: Rig) -> None:
    rig.side.begin(StepOrders(stores=(rig.copy(3, 0),)))
    rig.side.begin(StepOrders(stores=(rig.copy(4, 1),)))
    assert rig.payload(0) == rig.kv(3)
    assert not any(rig.payload(1))


def test_a_load_ends_once_with_all_orders_given_for_it(rig: Rig) -> None:
    first, second = (InOrder("one", rig.copy(block)) for block in (5, 6))
    assert rig.step(StepOrders(loads=(first,)))[0] == NOTHING
    rig.side.begin(StepOrders(loads=(second,), ends=(LoadEnd("one", failed=False), LoadEnd("two", failed=False))))
    assert rig.side.results() == Results(finished=frozenset({"two"}))  # nothing was ordered for it
    rig.side.load()
    assert rig.side.results() == Results(finished=frozenset({"one"}))
    assert rig.side.results() == NOTHING
    end = LoadEnd("one", failed=False)  # the same request, once more
    assert rig.step(StepOrders(ends=(end,)))[0] == Results(finished=frozenset({"one"}))


def test_what_the_scheduler_found_missing_is_told(rig: Rig) -> None:
    by_block = LoadEnd("one", failed=True, invalid=(4, 5))
    whole = LoadEnd("two", failed=True)
    results, _ = rig.step(StepOrders(ends=(by_block, whole)))
    assert results == Results(finished=frozenset({"one", "two"}), failed=frozenset({"two"}), invalid=frozenset({4, 5}))


def test_requests_whose_blocks_are_free_are_told_once(rig: Rig) -> None:
    assert rig.step(StepOrders(freed=("one", "two")))[0] == Results(freed=frozenset({"one", "two"}))
    assert rig.step(StepOrders())[0] == NOTHING


def test_an_order_that_fails_spoils_its_blocks_and_no_others(rig: Rig) -> None:
    good, bad = rig.copy(5), rig.copy(6, region=RegionId("unknown"))
    orders = StepOrders(loads=(InOrder("one", good), InOrder("one", bad)), ends=(LoadEnd("one", failed=False),))
    results, report = rig.step(orders)
    assert results == Results(finished=frozenset({"one"}), invalid=frozenset({6}))
    assert report is not None
    assert (report.done, report.failed) == ({good.id: 1, bad.id: 1}, frozenset({bad.id}))


def test_a_failure_and_a_whole_request_to_recompute_are_one(rig: Rig) -> None:
    bad = rig.copy(6, region=RegionId("unknown"))
    results, _ = rig.step(StepOrders(loads=(InOrder("one", bad),), ends=(LoadEnd("one", failed=True),)))
    assert results == Results(finished=frozenset({"one"}), failed=frozenset({"one"}))


def test_engines_of_several_groups_are_told_requests(make: Callable[..., Rig]) -> None:
    rig = met(make(2))
    good, bad = rig.copy(6, group=0), rig.copy(6, group=1, region=RegionId("unknown"))
    rig.step(StepOrders(loads=(InOrder("one", good), InOrder("one", bad))))
    results, _ = rig.step(StepOrders(ends=(LoadEnd("one", failed=False), LoadEnd("two", failed=False))))
    assert results == Results(finished=frozenset({"one", "two"}), failed=frozenset({"one"}))


def test_groups_are_copied_apart(make: Callable[..., Rig]) -> None:
    rig = met(make(2))
    rig.step(StepOrders(stores=(rig.copy(3, 0, group=0), rig.copy(3, 1, group=1))))
    assert (rig.payload(0), rig.payload(1)) == (rig.kv(3, 0), rig.kv(3, 1))
    assert rig.payload(0) != rig.payload(1)


def rig_kv(rig: Rig) -> bytes:
    return kv_of(rig.tensors[0], LAID.blocks).tobytes()


def elsewhere(**changed: object) -> Callable[[CopyOrder], CopyOrder]:
    return lambda order: order._replace(buffer=replace(order.buffer, **changed))


HOSTILE: dict[str, Callable[[CopyOrder], CopyOrder]] = {
    "a group that is not there": lambda order: order._replace(group=9),
    "no blocks": lambda order: order._replace(blocks=()),
    "too many blocks": lambda order: order._replace(blocks=(1, 2)),
    "a block outside the pool": lambda order: order._replace(blocks=(LAID.blocks,)),
    "a negative block": lambda order: order._replace(blocks=(-1,)),
    "blocks that are no numbers": lambda order: order._replace(blocks=("3",)),
    "an unknown region": elsewhere(region=RegionId("other")),
    "bytes outside the region": elsewhere(offset=2**20),
    "bytes before the region": elsewhere(offset=-8),
    "too few bytes": elsewhere(length=8),
    "no buffer": lambda order: order._replace(buffer=None),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_whatever_an_order_says_it_fails_and_is_told(case: str, rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    order = HOSTILE[case](rig.copy(3))
    before, there = rig_kv(rig), bytes(rig.region.view(0, 2**20))
    again = order._replace(id=OrderId(99))
    orders = StepOrders(stores=(order,), loads=(InOrder("one", again),), ends=(LoadEnd("one", failed=False),))
    results, report = rig.step(orders)
    assert results.finished == frozenset({"one"})
    assert report is not None
    assert report.done == {order.id: 1, again.id: 1}
    assert report.failed == {order.id, again.id}
    assert report.copied_bytes == 0
    assert len(caplog.records) == 2  # one for each direction
    rig.step(StepOrders(stores=(order,)))
    assert len(caplog.records) == 2
    assert rig_kv(rig) == before
    assert bytes(rig.region.view(0, 2**20)) == there


def test_orders_before_it_is_known_what_records_look_like_fail(make: Callable[..., Rig]) -> None:
    rig = make()
    order = rig.copy(3)
    _, report = rig.step(StepOrders(regions=(rig.region.handle(),), stores=(order,)))
    assert report == StepReport(done={order.id: 1}, failed=frozenset({order.id}))


def test_two_workers_make_one_record(make: Callable[..., Rig]) -> None:
    one, two = (make(seed=seed, tensor_rank=rank) for rank, seed in enumerate((1, 2)))
    records = record_shapes(one.groups, [one.side.shape(), two.side.shape()])
    size = records[0].form.payload_bytes
    order = CopyOrder(OrderId(1), 0, (3,), Buffer(region=STAGING, offset=0, length=size))
    orders = StepOrders(regions=(one.region.handle(),), shapes=records, stores=(order,))
    (_, first), (_, second) = one.step(orders), two.step(orders)
    assert first is not None
    assert second is not None
    assert first.merged(second).done == {order.id: 2}
    assert first.merged(second).copied_bytes == size
    both = np.concatenate([kv_of(rig.tensors[0], LAID.blocks)[:, 3] for rig in (one, two)], axis=1)
    assert bytes(one.region.view(0, size)) == both.tobytes()


def test_time_spent_is_told(rig: Rig) -> None:
    class Ticking(HandClock):
        def now_s(self) -> float:
            self.advance(0.25)
            return super().now_s()

    rig.side._clock = Ticking()
    _, report = rig.step(StepOrders(stores=(rig.copy(3), rig.copy(4, 1))))
    assert report is not None
    assert report.copy_s == 0.5


def test_what_has_not_begun_when_it_closes_never_does(rig: Rig) -> None:
    rig.side.begin(StepOrders(stores=(rig.copy(3),)))
    rig.side.close()
    rig.side.store()
    rig.side.close()
    assert not any(rig.payload())
    _, report = rig.step(StepOrders(stores=(rig.copy(3),)))
    assert report is not None
    assert len(report.failed) == 1


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[str, int, bool]], list[str]]]:
    """Steps: loads (request, block, whether its region is known), then ends; each request ends after its loads."""
    names = ["one", "two", "three"]
    loads = draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 7), st.booleans()), max_size=12))
    cuts = sorted(draw(st.lists(st.integers(0, len(loads)), min_size=3, max_size=3)))
    steps = [loads[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(loads)], strict=True)]
    last = {
        name: max([index for index, step in enumerate(steps) if name in {x[0] for x in step}] or [0]) for name in names
    }
    ends = {name: draw(st.integers(last[name], len(steps) - 1)) for name in names}
    return [(step, [name for name in names if ends[name] == index]) for index, step in enumerate(steps)]


@given(history=histories(), whole=st.booleans())
def test_every_order_and_every_end_is_told_exactly_once(
    history: list[tuple[list[tuple[str, int, bool]], list[str]]], whole: bool
) -> None:
    rig = met(Rig(whole_requests=whole))
    done, finished, spoilt = dict[OrderId, int](), list[str](), set[tuple[str, int]]()
    for loads, ends in history:
        orders = []
        for name, block, is_known in loads:
            orders.append(InOrder(name, rig.copy(block, region=STAGING if is_known else RegionId("unknown"))))
            if not is_known:
                spoilt.add((name, block))
        results, report = rig.step(
            StepOrders(loads=tuple(orders), ends=tuple(LoadEnd(name, failed=False) for name in ends))
        )
        if report is not None:
            assert not done.keys() & report.done.keys()
            done |= report.done
        finished += results.finished
        assert sorted(results.finished) == sorted(ends)
        hit = {name for name, _ in spoilt if name in ends}
        assert results.failed == (hit if whole else set())
        assert results.invalid == (set() if whole else {block for name, block in spoilt if name in ends})
    assert done == {OrderId(number + 1): 1 for number in range(rig.orders)}
    assert sorted(finished) == ["one", "three", "two"]
    rig.close()
