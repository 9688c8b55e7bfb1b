"""The scheduler's side as vLLM calls it: vLLM's objects in, our orders out, and nothing ever raised.

An exception that nobody expected ends the use of the cache, not of the engine: every load that vLLM waits for is ended
as failed, blocks that were held are given back, and from then on nothing is claimed, loaded or stored. For that this
keeps its own short record of what vLLM waits for, which does not depend on books that may be wrong by then.

What stands in orders under way stays as it is: the fabric is left alone until it is closed.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kvist.blocks.keys import Namespace
from kvist.connectors.vllm.counts import SchedulerStatistics
from kvist.connectors.vllm.orders import LoadEnd, StepOrders, StepReport
from kvist.connectors.vllm.reading import Blocks, Foreign, allocated_blocks, request_of, step_of
from kvist.connectors.vllm.scheduler import SchedulerSide

_log = logging.getLogger(__name__)

T = TypeVar("T")

_NOT_HELD = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Awaited:
    """A load that vLLM has parked a request for: tokens [start, end), into these blocks."""

    start: int
    end: int
    blocks: Blocks


class Front:
    """Stands between vLLM's scheduler and the side that decides."""

    def __init__(self, side: SchedulerSide, *, block_tokens: int, groups: int) -> None:
        """Stands before a side.

        Args:
            side: that decides.
            block_tokens: of vLLM's blocks, which counts only where it has one group.
            groups: of vLLM, stored or not.
        """
        self._side = side
        self._block_tokens = block_tokens
        self._groups = groups
        self._detached = False
        self._requests: dict[str, Foreign] = {}
        self._starts: dict[str, int] = {}
        self._awaited: dict[str, _Awaited] = {}
        self._held: set[str] = set()
        self._going: set[str] = set()  # named as freed, and not given back by vLLM yet: steps may overlap

    @property
    def is_detached(self) -> bool:
        """Whether the cache is no longer used."""
        return self._detached

    def detach(self, why: str) -> None:
        """Ends the use of the cache; whatever vLLM waits for, it is told with the next step."""
        if not self._detached:
            self._detached = True
            _log.error("%s, so the KV cache is not used from now on; vLLM goes on without", why)

    def arrived(self, request: Foreign) -> None:
        """As `SchedulerSide.arrived`."""
        self._requests[request.request_id] = request
        self._guarded("an arrival", lambda: self._side.arrived(request_of(request)), None)

    def matched(self, request: Foreign, computed: int) -> tuple[int | None, bool]:
        """As `SchedulerSide.matched`; detached: nothing matches."""
        self._starts[request.request_id] = computed
        nothing: tuple[int | None, bool] = (0, False)
        return self._guarded("a lookup", lambda: self._side.matched(request_of(request), computed), nothing)

    def allocated(self, request: Foreign, blocks: Foreign, external: int) -> None:
        """As `SchedulerSide.allocated`."""
        if external > 0:  # first: vLLM waits for the load from now on, whatever becomes of the call
            start = self._starts.get(request.request_id, 0)
            given = allocated_blocks(blocks)
            self._awaited[request.request_id] = _Awaited(start=start, end=start + external, blocks=given)
        self._guarded(
            "an allocation",
            lambda: self._side.allocated(request_of(request), allocated_blocks(blocks), external),
            None,
        )

    def sources(self, request: Foreign, external: int) -> Mapping[str, int]:
        """As `SchedulerSide.sources`; detached: nobody knows."""
        return self._guarded("the sources of a load", lambda: self._side.sources(request.request_id, external), {})

    def step(self, output: Foreign) -> StepOrders:
        """As `SchedulerSide.step`; the first one after detaching ends and frees whatever vLLM waits for."""
        orders = self._guarded("a step", lambda: self._side.step(step_of(output, self._requests)), None)
        if orders is None:
            ends = tuple(self._failed(name, each) for name, each in self._awaited.items())
            orders = StepOrders(ends=ends, freed=tuple(self._held))
        for end in orders.ends:
            self._awaited.pop(end.request, None)
        self._held.difference_update(orders.freed)
        self._going.update(orders.freed)
        return orders

    def reported(
        self, report: StepReport | None, finished: Collection[str], freed: Collection[str] = frozenset()
    ) -> None:
        """As `SchedulerSide.reported`; `freed` are those whose blocks vLLM gives back with it."""
        self._going.difference_update(freed)
        self._guarded("a report", lambda: self._side.reported(report, finished), None)

    def finished(self, request: Foreign, blocks: Blocks) -> bool:
        """As `SchedulerSide.finished`; detached: no blocks are held."""
        request_id = request.request_id
        self._requests.pop(request_id, None)
        self._starts.pop(request_id, None)
        if held := self._guarded("an end", lambda: self._side.finished(request_of(request), blocks), _NOT_HELD):
            self._held.add(request_id)
        return held

    def relieve(self) -> bool:
        """As `SchedulerSide.relieve`, or whether blocks are on their way; detached: whether some are still held."""
        return self._guarded("a relief", self._side.relieve, bool(self._held)) or bool(self._going)

    def reset(self, namespace: Namespace) -> None:
        """As `SchedulerSide.reset`."""
        self._guarded("a reset", lambda: self._side.reset(namespace), None)

    def statistics(self) -> SchedulerStatistics | None:
        """As `SchedulerSide.statistics`; None: detached."""
        return self._guarded("statistics", self._side.statistics, None)

    def close(self) -> None:
        """As `SchedulerSide.close`."""
        self._guarded("closing", self._side.close, None)

    def _guarded(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        if self._detached:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001  whatever it is, vLLM must go on: that is what this class is for
            self._detached = True
            _log.error("%s failed, so the KV cache is not used from now on; vLLM goes on without", what, exc_info=error)
            return otherwise

    def _failed(self, request_id: str, awaited: _Awaited) -> LoadEnd:
        """The end of a load of which nothing may be relied on."""
        if self._groups > 1:
            return LoadEnd(request=request_id, failed=True)
        first, end = awaited.start // self._block_tokens, -(-awaited.end // self._block_tokens)
        return LoadEnd(request=request_id, failed=True, invalid=tuple(awaited.blocks[0][first:end]))
