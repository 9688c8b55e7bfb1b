import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fakes.engine import Script, ScriptedEngine, text_script
from fakes.serving import ManualClock, completion, service_of
from fakes.tokenizer import ByteTokenizer
from kvist.server.choice import Choice, Piece
from kvist.server.errors import ApiError
from kvist.server.generation import Generation
from kvist.server.schemas import CompletionBody, validated
from kvist.server.service import Service
from kvist.server.translate import completion_job


def generation_of(service: Service, **fields: Any) -> Generation:
    job = completion_job(validated(CompletionBody, completion(**fields)), service)
    choices = [
        Choice(index, each, job.stops, service.tokenizer, service.texts) for index, each in enumerate(job.requests)
    ]
    return Generation(service, choices, arrived_s=service.clock.now_s())


async def pieces_of(generation: Generation) -> list[Piece]:
    async with generation:
        return [piece async for pieces in generation.pieces() for piece in pieces]


def texts_of(pieces: list[Piece], count: int) -> list[str]:
    return ["".join(piece.text for piece in pieces if piece.index == index) for index in range(count)]


def run(
    engine: ScriptedEngine, work: Callable[[Service], Coroutine[Any, Any, Any]], timeout_s: float = 20.0
) -> tuple[Any, Service]:
    service = service_of(engine, ByteTokenizer())
    return asyncio.run(asyncio.wait_for(work(service), timeout_s)), service


def test_all_choices_come_to_their_end(start) -> None:
    engine = start(lambda request: text_script(f"prompt {chr(request.prompt[1])}"))
    pieces, _ = run(engine, lambda service: pieces_of(generation_of(service, prompt=["a", "b"], n=2, max_tokens=50)))
    assert texts_of(pieces, 4) == ["prompt a", "prompt a", "prompt b", "prompt b"]
    assert [piece.finish for piece in pieces if piece.finish] == ["stop"] * 4
    assert engine.statistics().aborts == 0


def test_a_stop_string_ends_the_sequence_in_the_engine(start) -> None:
    engine = start(Script(tokens=tuple(b"abc"), stalls_after=5))
    pieces, _ = run(engine, lambda service: pieces_of(generation_of(service, stop="ca", max_tokens=400)))
    assert texts_of(pieces, 1) == ["ab"]
    assert pieces[-1].finish == "stop"
    after = engine.wait_for(lambda each: each.running == 0)
    assert (after.finished, after.aborts) == (1, 0)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (Script(refusal="busy"), 429),
        (Script(refusal="invalid"), 400),
        (Script(fails_after=0), 500),
        (Script(fails_after=3), 500),
    ],
)
def test_one_choice_that_fails_ends_the_others(start, script: Script, status: int) -> None:
    scripts = iter([Script(stalls_after=1), script, Script(waits=True)])
    engine = start(lambda _: next(scripts))
    with pytest.raises(ApiError) as caught:
        run(engine, lambda service: pieces_of(generation_of(service, n=3)))
    assert caught.value.family.status == status
    after = engine.wait_for(lambda each: each.running + each.waiting == 0)
    assert after.aborts == 2


@pytest.mark.parametrize("script", [Script(waits=True), Script(stalls_after=0), Script(stalls_after=5)])
def test_whoever_leaves_leaves_nothing_behind(start, script: Script) -> None:
    engine = start(script)

    async def leave(service: Service) -> None:
        async with generation_of(service, n=4):
            await asyncio.to_thread(engine.wait_for, lambda each: each.running + each.waiting == 4)

    run(engine, leave)
    assert engine.wait_for(lambda each: each.running + each.waiting == 0).aborts == 4


def test_an_abort_is_reported_by_every_choice(start) -> None:
    engine = start(Script(stalls_after=2))

    async def abort(service: Service) -> list[Piece]:
        generation = generation_of(service, n=2)
        async with generation:
            await asyncio.to_thread(engine.wait_for, lambda each: each.tokens_output == 4)
            generation.abort()
            return [piece async for pieces in generation.pieces() for piece in pieces]

    pieces, _ = run(engine, abort)
    assert texts_of(pieces, 2) == ["He", "He"]
    assert [piece.finish for piece in pieces if piece.finish] == ["abort", "abort"]


def test_latencies_are_measured_from_the_arrival_and_between_tokens(start) -> None:
    engine = start(text_script("abcd"))

    async def generate(service: Service) -> None:
        clock = service.clock
        assert isinstance(clock, ManualClock)
        generation = generation_of(service)
        clock.time_s += 3.0  # spent on the way in
        await pieces_of(generation)

    _, service = run(engine, generate)
    text = service.metrics.text().decode()
    assert "kvist_time_to_first_token_seconds_count 1.0" in text
    assert "kvist_time_to_first_token_seconds_sum 3.0" in text
    assert "kvist_inter_token_latency_seconds_count 4.0" in text


def test_what_came_by_then_is_handed_out_at_once(start) -> None:
    engine = start(text_script("several tokens"))

    async def look_late(service: Service) -> list[list[Piece]]:
        generation = generation_of(service, n=2, max_tokens=50)
        async with generation:
            await asyncio.to_thread(engine.wait_for, lambda each: each.finished == 2)
            return [pieces async for pieces in generation.pieces()]

    handed_out, _ = run(engine, look_late)
    assert len(handed_out) == 1
    assert texts_of(handed_out[0], 2) == ["several tokens"] * 2


def test_what_came_before_a_failure_is_handed_out_before_it(start) -> None:
    engine = start(Script(tokens=tuple(b"abcd"), fails_after=3))

    async def look_late(service: Service) -> list[Piece]:
        generation = generation_of(service, max_tokens=50)
        async with generation:
            await asyncio.to_thread(engine.wait_for, lambda each: each.failures == 1)
            coming = generation.pieces()
            pieces = await anext(coming)
            with pytest.raises(ApiError):
                await anext(coming)
        return pieces

    pieces, _ = run(engine, look_late)
    assert texts_of(pieces, 1) == ["abc"]
