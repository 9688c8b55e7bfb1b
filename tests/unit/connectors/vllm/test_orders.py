"""What crosses between the two sides: it survives the way, and reports of several workers become one."""

import pickle

from kvist.blocks.form import Form, Part, Plane
from kvist.connectors.vllm.orders import CopyOrder, InOrder, LoadEnd, OrderId, StepOrders, StepReport
from kvist.connectors.vllm.shapes import RecordShape, Share
from kvist.tiers.regions import Buffer, RegionHandle, RegionId

COPY = CopyOrder(OrderId(7), 0, (3, 4), Buffer(region=RegionId("staging"), offset=512, length=96))
SHAPE = RecordShape(
    form=Form(planes=(Plane("kv", "bfloat16", (3, 2, 8, 6)),), part=Part(0, 3, 0, 2)),
    engine_blocks=1,
    shares={(0, 0): Share(layers_first=0, layers=3, heads_first=0, heads=2, writes=True)},
)


def test_orders_come_out_as_they_went_in() -> None:
    orders = StepOrders(
        regions=(RegionHandle(region=RegionId("staging"), size=4096, pid=1, fd=2, inode=3),),
        shapes=(SHAPE,),
        stores=(COPY,),
        loads=(InOrder("one", COPY),),
        ends=(LoadEnd("one", failed=True, invalid=(3, 4)),),
        freed=("two",),
    )
    assert pickle.loads(pickle.dumps(orders)) == orders  # noqa: S301  what the engine does with them


def test_only_copies_ends_and_freed_requests_are_something_to_do() -> None:
    assert StepOrders().is_empty
    assert StepOrders(shapes=(SHAPE,)).is_empty
    assert not StepOrders(stores=(COPY,)).is_empty
    assert not StepOrders(loads=(InOrder("one", COPY),)).is_empty
    assert not StepOrders(ends=(LoadEnd("one", failed=False),)).is_empty
    assert not StepOrders(freed=("one",)).is_empty


def test_an_order_is_done_when_every_worker_has_told_it() -> None:
    one, two = OrderId(1), OrderId(2)
    first = StepReport(done={one: 1, two: 1}, failed=frozenset({two}), copy_s=0.5, copied_bytes=10)
    second = StepReport(done={one: 1}, copy_s=0.25, copied_bytes=20)
    assert first.merged(second) == StepReport(
        done={one: 2, two: 1}, failed=frozenset({two}), copy_s=0.5, copied_bytes=30
    )
    assert StepReport().merged(first) == first
