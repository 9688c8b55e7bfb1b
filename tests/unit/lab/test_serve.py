import asyncio
from collections.abc import Callable

import httpx
import pytest

from kvist.app.clock import SystemClock
from kvist.lab.client import ServedModel, Target, open_client
from kvist.lab.dialect import Completions, Dialect
from kvist.lab.draw import Span
from kvist.lab.serve import Broken, Completed, ServeRun, run_closed_loop, run_open_loop
from kvist.lab.workload import PlannedRequest, ServeWorkload, plan_serve

TINY = ServedModel(name="tiny")
RICH = Dialect(prompt="token ids", ignore_eos=True, usage=True)


def plan(**changes: object) -> tuple[PlannedRequest, ...]:
    settings = {
        "requests": 10,
        "prompt_tokens": Span(low=32, high=64),
        "output_tokens": Span(low=1, high=5),
        "shared_prefix_ratio": 0.5,
        "token_ids": Span(low=1000, high=20000),
        "seed": 0,
    }
    return plan_serve(ServeWorkload(**(settings | changes)))


def closed(opened: Callable, requests: tuple[PlannedRequest, ...], concurrency: int, **how: object) -> ServeRun:
    async def go() -> ServeRun:
        async with opened(how.get("handler")) as client:
            asked = Completions(client, TINY, how.get("dialect", RICH))
            return await run_closed_loop(asked, requests, concurrency, how.get("advance", lambda: None))

    return asyncio.run(go())


def test_every_request_becomes_a_row_with_what_the_server_spent(opened: Callable) -> None:
    requests, steps = plan(), []
    run = closed(opened, requests, 1, advance=lambda: steps.append(1))
    assert len(steps) == 10
    end_s = 0.0
    for request, row in zip(requests, run.rows, strict=True):
        assert isinstance(row, Completed)
        assert (row.index, row.tokens_shared, row.late_s) == (request.index, request.tokens_shared, 0.0)
        assert (row.prompt_tokens, row.output_tokens) == (len(request.prompt), request.output_tokens)
        assert row.output_tokens == row.output_tokens_asked
        assert row.started_s == pytest.approx(end_s)
        assert row.ttft_s == pytest.approx(0.001 * (row.prompt_tokens - row.cached_tokens))
        assert row.gaps_s == pytest.approx([0.01] * (row.output_tokens - 1))
        end_s = row.started_s + row.latency_s
    assert run.duration_s == pytest.approx(end_s)
    assert sum(row.cached_tokens for row in run.rows) > 0


def test_time_per_output_token_is_the_mean_after_the_first(opened: Callable) -> None:
    one, several = closed(opened, plan(requests=1, output_tokens=Span(low=1, high=1)), 1), closed(opened, plan(), 1)
    assert one.rows[0].time_per_output_token_s is None
    longest = max(several.rows, key=lambda row: row.output_tokens)
    assert longest.time_per_output_token_s == pytest.approx(0.01)


def test_without_usage_tokens_are_counted_by_events(opened: Callable) -> None:
    requests = plan()
    run = closed(opened, requests, 1, dialect=Dialect(prompt="token ids", ignore_eos=True, usage=False))
    for request, row in zip(requests, run.rows, strict=True):
        assert (row.prompt_tokens, row.output_tokens) == (len(request.prompt), request.output_tokens)
        assert row.cached_tokens is None


@pytest.mark.parametrize("concurrency", [1, 3, 10, 50])
def test_a_closed_loop_keeps_exactly_so_many_requests_in_flight(opened: Callable, concurrency: int) -> None:
    requests, flight, seen = plan(), [], []
    full = asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        flight.append(request)
        seen.append(len(flight))
        if len(flight) == min(concurrency, 10):
            full.set()
        await full.wait()  # nobody is answered before so many are waiting at once
        flight.remove(request)
        return httpx.Response(503)

    closed(opened, requests, concurrency, handler=handler)
    assert max(seen) == min(concurrency, 10)


def test_failures_are_rows_and_do_not_end_the_run(opened: Callable, simulated: object) -> None:
    async def handler(request: httpx.Request) -> httpx.Response:
        if len(simulated.bodies) % 3 == 2:
            simulated.bodies.append({})
            raise httpx.ReadError("reset by peer")
        return await simulated(request)

    run = closed(opened, plan(), 2, handler=handler)
    kinds = [type(row) for row in run.rows]
    assert (kinds.count(Completed), kinds.count(Broken)) == (7, 3)
    broken = [row for row in run.rows if isinstance(row, Broken)]
    assert {row.error_kind for row in broken} == {"disconnected"}
    assert all("reset by peer" in row.error for row in broken)
    assert [row.index for row in run.rows] == list(range(10))


def test_an_open_loop_sends_at_the_planned_times_whatever_is_still_running() -> None:
    requests = plan(requests=20, rate_per_s=500.0)
    arrived, everyone = [], asyncio.Event()

    async def handler(_: httpx.Request) -> httpx.Response:
        arrived.append(clock.now_s())
        if len(arrived) == 20:
            everyone.set()
        await everyone.wait()  # the first is answered only when the last has come
        return httpx.Response(503)

    clock = SystemClock()

    async def go() -> tuple[float, ServeRun]:
        async with open_client(Target(url="http://sim"), clock, transport=httpx.MockTransport(handler)) as client:
            return clock.now_s(), await run_open_loop(Completions(client, TINY, RICH), requests, lambda: None)

    began_s, run = asyncio.run(go())
    assert len(run.rows) == 20
    for request, time_s in zip(requests, arrived, strict=True):
        assert time_s - began_s >= request.arrival_s - 1e-4  # a timer may fire a clock's tick early


def test_being_late_is_noted_in_an_open_loop(clock: object, simulated: object) -> None:
    requests = plan(requests=2, rate_per_s=1e9)

    async def handler(request: httpx.Request) -> httpx.Response:
        if not simulated.bodies:
            clock.advance(1.0)  # this machine was busy while the second request's time came
        return await simulated(request)

    async def go() -> ServeRun:
        async with open_client(Target(url="http://sim"), clock, transport=httpx.MockTransport(handler)) as client:
            return await run_open_loop(Completions(client, TINY, RICH), requests, lambda: None)

    first, second = asyncio.run(go()).rows
    assert first.late_s == 0.0
    assert second.late_s == pytest.approx(second.started_s - requests[1].arrival_s)
    assert second.late_s >= 0.99
