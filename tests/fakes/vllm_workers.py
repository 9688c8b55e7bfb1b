"""Workers that copy between made-up KV and shared memory as they are ordered: some late, some never.

The KV of a block is a function of what it stands for: hash, group, worker and the weights of its time; so whether a
block holds what it should can be told from its bytes. Groups share one memory, as vLLM's do.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from fakes.dice import Dice
from kvist.connectors.vllm.orders import CopyOrder, LoadEnd, OrderId, StepOrders, StepReport
from kvist.tiers.regions import Buffer

CELL = 16
"""Bytes of one block of one worker."""

GARBAGE = b"\xee" * CELL

MIXED = 255
"""The era of KV that was computed with new weights from KV of old ones: of no use to anybody."""


def cell(block_hash: bytes, group: int, worker: int, era: int) -> bytes:
    """What a block holds at one worker."""
    return blake3(block_hash + bytes([group, worker, era])).digest(CELL)


@dataclass(slots=True)
class Manners:
    """How workers behave: one order in so many fails (0: none does), and copies take up to so many steps longer."""

    fails: int = 0
    late: int = 0


@dataclass(slots=True)
class Told:
    """What vLLM is told after a step, of all workers together."""

    report: StepReport | None
    finished: set[str]
    failed: set[str]
    invalid: set[int]
    freed: set[str]


@dataclass(slots=True)
class _Job:
    order: CopyOrder
    request: str | None
    due: int
    cells: list[bytes] | None = None


@dataclass(slots=True)
class _Worker:
    memory: dict[int, bytes] = field(default_factory=dict)
    jobs: list[_Job] = field(default_factory=list)
    ends: dict[str, LoadEnd] = field(default_factory=dict)
    spoilt: dict[str, set[int]] = field(default_factory=dict)


class Workers:
    """All workers of one engine.

    Attributes:
        expected: what the record of a load must hold, so that it can be checked when it is read.
        touched: order ids that some worker has not finished, with their buffers.
    """

    def __init__(self, count: int, groups: int, view: Callable[[Buffer], memoryview], dice: Dice, manners: Manners):
        self.manners = manners
        self.expected: dict[OrderId, bytes] = {}
        self.touched: dict[OrderId, tuple[Buffer, bool]] = {}
        self._workers = [_Worker() for _ in range(count)]
        self._whole_requests = groups > 1
        self._view = view
        self._dice = dice
        self._step = 0
        self._told_by: Counter[str] = Counter()
        self._failed: set[str] = set()

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._workers)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is ordered and not done."""
        return not any(worker.jobs or worker.ends for worker in self._workers)

    def write(self, block: int, cells: Sequence[bytes]) -> None:
        """The engine has computed a block."""
        for worker, each in zip(self._workers, cells, strict=True):
            worker.memory[block] = each

    def read(self, block: int) -> list[bytes]:
        """What a block holds."""
        return [worker.memory.get(block, GARBAGE) for worker in self._workers]

    def carry_out(self, orders: StepOrders) -> Told:
        """What is ordered with a step, after it has computed, and what is left of earlier steps."""
        self._step += 1
        self._check(orders)
        told = Told(None, set(), set(), set(), set(orders.freed))
        report = StepReport()
        for number, worker in enumerate(self._workers):
            self._accept(worker, orders)
            done, failed = self._do(number, worker)
            report = report.merged(StepReport(done=done, failed=frozenset(failed)))
            self._end(worker, told)
        told.report = report if report.done else None
        for order in list(self.touched):
            if not any(job.order.id == order for worker in self._workers for job in worker.jobs):
                del self.touched[order]
        return told

    def _check(self, orders: StepOrders) -> None:
        """No buffer that stands in an order is written by another one."""
        new = [(order, True) for order in orders.stores] + [(load.copy, False) for load in orders.loads]
        for order, writes in new:
            assert any(order.blocks), f"{order} is about no block"
            assert all(order.blocks) or not writes, f"{order} stores what is not there"
            for buffer, written in self.touched.values():
                apart = order.buffer.region != buffer.region or (
                    order.buffer.offset + order.buffer.length <= buffer.offset
                    or buffer.offset + buffer.length <= order.buffer.offset
                )
                assert apart or not (writes or written), f"{order} stands in another order: {buffer}"
            assert order.id not in self.touched, f"{order.id} was given twice"
            self.touched[order.id] = (order.buffer, writes)

    def _accept(self, worker: _Worker, orders: StepOrders) -> None:
        late = self.manners.late
        for order in orders.stores:
            cells = [worker.memory.get(block, GARBAGE) for block in order.blocks]  # read now, written when it is due
            worker.jobs.append(_Job(order, None, self._step + self._dice.number(0, late), cells))
        for load in orders.loads:
            assert load.request not in worker.ends, f"{load.request} loads after its end"
            worker.jobs.append(_Job(load.copy, load.request, self._step + self._dice.number(0, late)))
        for end in orders.ends:
            assert end.request not in worker.ends, f"the end of {end.request} was ordered twice"
            worker.ends[end.request] = end

    def _do(self, number: int, worker: _Worker) -> tuple[dict[OrderId, int], set[OrderId]]:
        done: dict[OrderId, int] = {}
        failed: set[OrderId] = set()
        for job in [job for job in worker.jobs if job.due <= self._step]:
            worker.jobs.remove(job)
            done[job.order.id] = 1
            if self.manners.fails and self._dice.number(1, self.manners.fails) == 1:
                failed.add(job.order.id)
                if job.request is not None:
                    worker.spoilt.setdefault(job.request, set()).update(job.order.blocks)
            else:
                self._copy(number, worker, job)
        return done, failed

    def _copy(self, number: int, worker: _Worker, job: _Job) -> None:
        payload = self._view(job.order.buffer)
        for place, block in enumerate(job.order.blocks):
            start = (place * self.count + number) * CELL
            if job.cells is not None:
                payload[start : start + CELL] = job.cells[place]
            elif block:
                worker.memory[block] = bytes(payload[start : start + CELL])
        if job.cells is None:
            assert bytes(payload) == self.expected[job.order.id], f"{job.order} is read, and holds something else"

    def _end(self, worker: _Worker, told: Told) -> None:
        loading = {job.request for job in worker.jobs}
        for request, end in list(worker.ends.items()):
            if request in loading:
                continue
            del worker.ends[request]
            spoilt = worker.spoilt.pop(request, set()) | set(end.invalid)
            if (spoilt or end.failed) and self._whole_requests:
                self._failed.add(request)
            else:
                told.invalid |= spoilt
            self._told_by[request] += 1
            if self._told_by[request] == self.count:
                del self._told_by[request]
                told.finished.add(request)
                told.failed |= self._failed & {request}
                self._failed.discard(request)
