import pytest

from kvist.connectors.vllm.orders import OrderId, StepReport
from kvist.connectors.vllm.outstanding import Outstanding


def test_an_order_is_over_once_every_worker_has_acknowledged_it() -> None:
    outstanding = Outstanding[str](3)
    first, second = outstanding.give("first"), outstanding.give("second")
    assert outstanding.acknowledge(StepReport(done={first: 2, second: 1})) == []
    assert outstanding.acknowledge(StepReport(done={first: 1})) == [("first", True)]
    assert list(outstanding.owners) == ["second"]
    assert outstanding.acknowledge(StepReport(done={second: 2})) == [("second", True)]
    assert len(outstanding) == 0


def test_one_worker_that_fails_is_enough() -> None:
    outstanding = Outstanding[str](2)
    order = outstanding.give("both")
    assert outstanding.acknowledge(StepReport(done={order: 1}, failed=frozenset({order}))) == []
    assert outstanding.acknowledge(StepReport(done={order: 1})) == [("both", False)]


def test_numbers_are_never_used_twice() -> None:
    outstanding = Outstanding[int](1)
    numbers = set()
    for each in range(5):
        numbers.add(outstanding.give(each))
        outstanding.acknowledge(StepReport(done=dict.fromkeys([max(numbers)], 1)))
    assert len(numbers) == 5


@pytest.mark.parametrize(("known", "workers"), [(False, 1), (True, 3)])
def test_a_report_that_cannot_be_is_a_mistake(known: bool, workers: int) -> None:
    outstanding = Outstanding[str](2)
    order = outstanding.give("it")
    report = StepReport(done={order if known else OrderId(99): workers})
    with pytest.raises(AssertionError, match="was acknowledged"):
        outstanding.acknowledge(report)
