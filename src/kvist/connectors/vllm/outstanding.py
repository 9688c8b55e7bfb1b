"""Orders that not every worker has acknowledged: what stands in one is touched by nobody else until then."""

from collections.abc import Collection
from typing import Generic, TypeVar

from kvist.connectors.vllm.orders import OrderId, StepReport

Owner = TypeVar("Owner")


class Outstanding(Generic[Owner]):
    """Orders by number, each with whom it was given for; numbers are never used twice."""

    def __init__(self, workers: int) -> None:
        """Waits for so many acknowledgements of each."""
        assert workers > 0, f"{workers} workers carry out nothing"
        self._workers = workers
        self._last = 0
        self._owners: dict[OrderId, Owner] = {}
        self._missing: dict[OrderId, int] = {}
        self._failed: set[OrderId] = set()

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def owners(self) -> Collection[Owner]:
        """Of whom something stands in an order."""
        return self._owners.values()

    def give(self, owner: Owner) -> OrderId:
        """A new order's number."""
        self._last += 1
        number = OrderId(self._last)
        self._owners[number] = owner
        self._missing[number] = self._workers
        return number

    def acknowledge(self, report: StepReport) -> list[tuple[Owner, bool]]:
        """The owners of orders that everybody is done with, and whether all carried them out."""
        self._failed |= report.failed & self._owners.keys()
        over: list[tuple[Owner, bool]] = []
        for number, workers in report.done.items():
            missing = self._missing.get(number)
            assert missing is not None, f"order {number} was acknowledged and is not outstanding"
            assert workers <= missing, f"order {number} was acknowledged by {workers} workers, {missing} were missing"
            self._missing[number] = missing - workers
            if workers == missing:
                del self._missing[number]
                over.append((self._owners.pop(number), number not in self._failed))
                self._failed.discard(number)
        return over
