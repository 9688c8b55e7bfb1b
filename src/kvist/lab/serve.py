"""Puts a planned load on one server and notes what became of each request.

Two kinds of load. A closed loop keeps a number of requests in flight and sends the next when one ends: it
measures what the server can do. An open loop sends each request at its planned time, whatever became of the earlier
ones: it measures what users would meet, since a slow server does not slow its users' arrival. A request that fails
is a row like any other; it never ends the run.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvist.lab.answer import Answer
from kvist.lab.dialect import Completions
from kvist.lab.failure import CallError
from kvist.lab.workload import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A request that was answered in full.

    Attributes:
        index: its place in the plan.
        started_s: when it was sent, after the run began.
        late_s: how long after its planned time that was; 0 in a closed loop. A large one blames this client.
        ttft_s: time to first token, connecting included; latency_s: time to the end of the answer.
        gaps_s: times between consecutive token events.
        prompt_tokens: by the server's count, or else as planned; tokens_shared: planned common prefix.
        cached_tokens: prompt tokens from the server's cache; None when it does not say.
        output_tokens: length of the answer; output_tokens_asked: what was asked for.
    """

    index: int
    started_s: float
    late_s: float
    ttft_s: float
    latency_s: float
    gaps_s: tuple[float, ...]
    prompt_tokens: int
    tokens_shared: int
    cached_tokens: int | None
    output_tokens: int
    output_tokens_asked: int

    @property
    def time_per_output_token_s(self) -> float | None:
        """Mean time of the tokens after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A request that was not.

    Attributes:
        index: its place in the plan.
        started_s: when it was sent, after the run began.
        error_kind: a word of `kvist.lab.failure`.
        error: what went wrong.
    """

    index: int
    started_s: float
    error_kind: str
    error: str


Row = Completed | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRun:
    """What became of a plan.

    Attributes:
        rows: one per request, in the plan's order.
        duration_s: from the first request's start to the last one's end.
    """

    rows: tuple[Row, ...]
    duration_s: float


async def run_closed_loop(
    completions: Completions, plan: Sequence[PlannedRequest], concurrency: int, advance: Callable[[], None]
) -> ServeRun:
    """Sends a plan with a fixed number of requests in flight.

    Args:
        completions: the server to ask.
        plan: what to send, in order.
        concurrency: requests in flight, at least 1.
        advance: called once after each request.
    """
    run = _Run(completions, advance)
    waiting = iter(plan)

    async def work() -> None:
        for request in waiting:  # shared: each worker takes the next one
            await run.send(request)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(plan))):
            group.create_task(work())
    return run.result()


async def run_open_loop(
    completions: Completions, plan: Sequence[PlannedRequest], advance: Callable[[], None]
) -> ServeRun:
    """Sends each request of a plan at its arrival time, however many are in flight.

    Args:
        completions: the server to ask.
        plan: what to send, with arrival times in ascending order.
        advance: called once after each request.
    """
    run = _Run(completions, advance)
    async with asyncio.TaskGroup() as group:
        for request in plan:
            wait_s = (request.arrival_s or 0.0) - run.elapsed_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(run.send(request))
    return run.result()


class _Run:
    """Rows of the run in progress; used on one event loop."""

    def __init__(self, completions: Completions, advance: Callable[[], None]) -> None:
        self._completions = completions
        self._advance = advance
        self._clock = completions.client.clock
        self._began_s = self._clock.now_s()
        self._rows: list[Row] = []

    def elapsed_s(self) -> float:
        return self._clock.now_s() - self._began_s

    async def send(self, request: PlannedRequest) -> None:
        started_s = self.elapsed_s()
        try:
            answer = await self._completions.ask(request.prompt, request.output_tokens)
        except CallError as error:
            row: Row = Broken(index=request.index, started_s=started_s, error_kind=error.kind, error=str(error))
        else:
            row = _completed(request, answer, self._began_s)
        self._rows.append(row)
        self._advance()

    def result(self) -> ServeRun:
        return ServeRun(rows=tuple(sorted(self._rows, key=lambda row: row.index)), duration_s=self.elapsed_s())


def _completed(request: PlannedRequest, answer: Answer, began_s: float) -> Completed:
    started_s = answer.started_s - began_s
    times = answer.token_times_s
    return Completed(
        index=request.index,
        started_s=started_s,
        late_s=0.0 if request.arrival_s is None else max(0.0, started_s - request.arrival_s),
        ttft_s=answer.ttft_s,
        latency_s=answer.latency_s,
        gaps_s=tuple(after - before for before, after in pairwise(times)),
        prompt_tokens=answer.usage.prompt_tokens if answer.usage else len(request.prompt),
        tokens_shared=request.tokens_shared,
        cached_tokens=answer.usage.cached_tokens if answer.usage else None,
        output_tokens=answer.output_tokens,
        output_tokens_asked=request.output_tokens,
    )
