"""A worker's side: carries out what the scheduler's side orders, between shared memory and this worker's KV tensors.

    a step of the engine    fence, begin ──▶ (compute) ──▶ load, store ──▶ results, report

All in the engine's own thread. Knows no policy: what to copy, and what becomes of a request, the orders say.

Laws:
    * An order ends exactly once: done or failed, and is reported; none of them ever raises into the engine.
    * A block ordered to be stored is read before the engine begins a step after the one that ordered it.
    * A load's end is told once, after all orders given for it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from kvist.base.clock import Clock
from kvist.connectors.vllm.host_copies import Done
from kvist.connectors.vllm.orders import CopyOrder, InOrder, LoadEnd, OrderId, StepOrders, StepReport
from kvist.connectors.vllm.reach import Complaints, Reach, WorkerFacts
from kvist.connectors.vllm.shapes import EngineGroup, WorkerShape


class Results(NamedTuple):
    """What the engine is told of requests after a step; each is told once.

    Attributes:
        finished: their loads are over.
        failed: of these, those to recompute from the start.
        invalid: blocks from whose first on the others are recomputed.
        freed: finished requests whose blocks are no longer needed.
    """

    finished: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    invalid: frozenset[int] = frozenset()
    freed: frozenset[str] = frozenset()


class _Running(NamedTuple):
    """A copy that has begun; `request` where it is a load."""

    order: CopyOrder
    request: str | None
    done: Done


@dataclass(slots=True, kw_only=True)
class _Load:
    """What is known of a request's load until its end has been told.

    Attributes:
        open: orders not carried out.
        spoilt: blocks of orders that failed.
        end: once it has been ordered.
    """

    open: int = 0
    spoilt: set[int] = field(default_factory=set)
    end: LoadEnd | None = None


class WorkerSide:
    """Owns what has been ordered and not told yet; one thread at a time."""

    def __init__(self, groups: Sequence[EngineGroup], facts: WorkerFacts, clock: Clock) -> None:
        """Takes what is known before there are tensors.

        Args:
            groups: those that are stored, with this worker's layers.
            facts: of this worker.
            clock: times copies.
        """
        self._complaints = Complaints()
        self._reach = Reach(groups, facts, self._complaints)
        self._whole_requests = facts.whole_requests
        self._clock = clock
        self._stores: list[CopyOrder] = []
        self._loads: list[InOrder] = []
        self._running: list[_Running] = []
        self._requests: dict[str, _Load] = {}
        self._freed: set[str] = set()
        self._tally = _Tally()

    def register(self, kv_caches: Mapping[str, torch.Tensor], blocks: int) -> None:
        """Looks at the engine's KV tensors; may be repeated when they have moved.

        Args:
            kv_caches: every layer's, ``[blocks * parts, heads, tokens, content]``.
            blocks: of the engine's pool.

        Raises:
            ConfigError: they cannot be stored.
        """
        self._reach.register(kv_caches, blocks)

    def shape(self) -> WorkerShape:
        """What this worker says of itself; its tensors must be there."""
        return self._reach.shape()

    def begin(self, orders: StepOrders) -> None:
        """Takes the orders of a step, before it computes; what earlier ones left to read is read first."""
        self.fence()
        self._tally.learnt |= self._reach.learn(orders.shapes)
        self._reach.map(orders.regions)
        self._stores += orders.stores
        self._loads += orders.loads
        for load in orders.loads:
            self._requests.setdefault(load.request, _Load()).open += 1
        for end in orders.ends:
            self._requests.setdefault(end.request, _Load()).end = end
        self._freed.update(orders.freed)

    def fence(self) -> None:
        """Reads what is still to be read, since the engine may write over it in the step that comes."""
        self.store()

    def load(self) -> None:
        """Begins to copy in what has been ordered."""
        loads, self._loads = self._loads, []
        for load in loads:
            self._start(load.copy, load.request)

    def store(self) -> None:
        """Copies out what has been ordered, or, on a device, has it read in its turn, before what is computed next."""
        stores, self._stores = self._stores, []
        for order in stores:
            self._start(order, None)

    def results(self) -> Results:
        """What the engine is to be told of requests."""
        self._settle()
        failed, invalid = set[str](), set[int]()
        over = [(name, load, load.end) for name, load in self._requests.items() if load.end and not load.open]
        for name, load, end in over:
            del self._requests[name]
            found = load.spoilt.union(end.invalid)
            if (end.failed and not end.invalid) or (found and self._whole_requests):
                failed.add(name)
            else:
                invalid |= found
        freed, self._freed = self._freed, set()
        return Results(frozenset(name for name, *_ in over), frozenset(failed), frozenset(invalid), frozenset(freed))

    def report(self) -> StepReport | None:
        """What became of orders since it was last asked; None: nothing to tell."""
        self._settle()
        tally, self._tally = self._tally, _Tally()
        if not (tally.done or tally.learnt):
            return None
        return StepReport(
            done=dict(tally.done), failed=frozenset(tally.failed), copy_s=tally.copy_s, copied_bytes=tally.copied_bytes
        )

    def close(self) -> None:
        """Gives up shared memory, once what runs beside is over; what has not begun never does. May be repeated."""
        self._stores.clear()
        self._loads.clear()
        self._reach.close()
        self._running.clear()

    def _start(self, order: CopyOrder, request: str | None) -> None:
        """Begins one copy; whatever goes wrong is the order's failure."""
        begun_s = self._clock.now_s()
        try:
            copies, payload = self._reach.copies[order.group], self._reach.payload(order.buffer)
            verb: Callable[[Sequence[int], memoryview], Done] = copies.copy_out if request is None else copies.copy_in
            done = verb(order.blocks, payload)
        except Exception as error:  # noqa: BLE001  the last line of defence: an order that fails is a miss, not a crash
            self._complaints.say("copy a block out" if request is None else "copy a block in", error)
            self._over(order, request, failed=True)
            return
        self._tally.copy_s += self._clock.now_s() - begun_s
        self._tally.copied_bytes += copies.out_bytes if request is None else copies.in_bytes
        self._running.append(_Running(order, request, done))

    def _settle(self) -> None:
        """Finds out which copies are over."""
        still: list[_Running] = []
        for each in self._running:
            try:
                is_done, failed = each.done(), False
            except RuntimeError as error:  # what torch raises for a device that has failed
                self._complaints.say("copy on the device", error)
                is_done, failed = True, True
            if is_done:
                self._over(each.order, each.request, failed=failed)
            else:
                still.append(each)
        self._running = still

    def _over(self, order: CopyOrder, request: str | None, *, failed: bool) -> None:
        self._tally.done[order.id] += 1
        if failed:
            self._tally.failed.add(order.id)
        if request is not None:
            load = self._requests[request]
            load.open -= 1
            if failed:
                load.spoilt.update(order.blocks)


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What the next report will say."""

    done: Counter[OrderId] = field(default_factory=Counter)
    failed: set[OrderId] = field(default_factory=set)
    copy_s: float = 0.0
    copied_bytes: int = 0
    learnt: bool = False
