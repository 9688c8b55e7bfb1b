"""Replies at the level of ASGI messages, where a client's leaving is one of them."""

import asyncio
import json
from typing import Any

import pytest

from fakes.engine import Script, ScriptedEngine, text_script
from fakes.serving import MODEL, completion, events_of, service_of
from fakes.tokenizer import ByteTokenizer
from kvist.server.completions import SHAPE
from kvist.server.reply import Reply
from kvist.server.schemas import CompletionBody, validated
from kvist.server.service import Service
from kvist.server.translate import completion_job

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}


class Client:
    """One end of an HTTP exchange: leaves when told, and may read slowly."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.messages: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.messages.append(message)

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def is_complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", True)


def reply_of(service: Service, *, explains: bool = False, **fields: Any) -> Reply:
    job = completion_job(validated(CompletionBody, completion(**fields)), service)
    return Reply(service, job, SHAPE, arrived_s=0.0, explains=explains)


def answered(engine: ScriptedEngine, **fields: Any) -> Client:
    """The client after a whole exchange."""

    async def main() -> Client:
        client = Client()
        reply = reply_of(service_of(engine, ByteTokenizer()), **fields)
        await asyncio.wait_for(reply(SCOPE, client.receive, client.send), 20)
        return client

    return asyncio.run(main())


def test_one_response_holds_all_choices_and_the_usage(start) -> None:
    client = answered(start(text_script("yes", tokens_cached=2)), n=2, explains=True)
    answer = json.loads(client.body)
    assert client.status == 200
    assert answer["object"] == "text_completion"
    assert (answer["model"], answer["created"]) == (MODEL.id, MODEL.created_s)
    assert [(each["index"], each["text"], each["finish_reason"]) for each in answer["choices"]] == [
        (0, "yes", "stop"),
        (1, "yes", "stop"),
    ]
    assert answer["usage"]["kvist"]["prefix_end"] == "nothing in the cache begins like this"


def test_a_stream_ends_with_done_and_with_the_usage_when_asked(start) -> None:
    engine = start(text_script("yes"))
    client = answered(engine, stream=True)
    events = events_of(client.body.decode())
    assert client.is_complete
    assert [each["choices"][0]["text"] for each in events[:-1]] == ["y", "e", "s", ""]
    assert events[-1] == "[DONE]"
    assert all("usage" not in each for each in events[:-1])

    events = events_of(answered(engine, stream=True, stream_options={"include_usage": True}).body.decode())
    assert [each["usage"] for each in events[:-2]] == [None] * 4
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("script", "status"), [(Script(refusal="busy"), 429), (Script(fails_after=0), 500)])
def test_what_fails_before_the_first_text_is_a_status(start, stream: bool, script: Script, status: int) -> None:
    client = answered(start(script), stream=stream)
    assert client.status == status
    assert "scripted" in json.loads(client.body)["error"]["message"]


def test_what_fails_later_is_the_streams_last_event(start) -> None:
    client = answered(start(Script(fails_after=2)), stream=True)
    events = events_of(client.body.decode())
    assert client.status == 200
    assert client.is_complete
    assert [each["choices"][0]["text"] for each in events[:-1]] == ["H", "e"]
    assert events[-1]["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [Script(waits=True), Script(stalls_after=0), Script(stalls_after=3)])
def test_a_client_that_leaves_frees_all_its_sequences(start, stream: bool, script: Script) -> None:
    engine = start(script)

    async def main() -> None:
        client = Client()
        service = service_of(engine, ByteTokenizer())
        reply = reply_of(service, n=3, stream=stream, max_tokens=400)
        replying = asyncio.create_task(reply(SCOPE, client.receive, client.send))
        drawn = 3 * (script.stalls_after or 0)
        await asyncio.to_thread(engine.wait_for, lambda each: each.running + each.waiting == 3)
        await asyncio.to_thread(engine.wait_for, lambda each: each.tokens_output == drawn)
        client.left.set()
        await asyncio.wait_for(replying, 20)
        assert not client.is_complete
        assert service.lifecycle.running == 0

    asyncio.run(main())
    assert engine.wait_for(lambda each: each.running + each.waiting == 0).aborts == 3


def test_a_client_that_stops_reading_and_leaves_is_noticed_too(start) -> None:
    engine = start(Script())

    async def main() -> None:
        client = Client()
        client.reads.clear()
        reply = reply_of(service_of(engine, ByteTokenizer()), stream=True, max_tokens=400)
        replying = asyncio.create_task(reply(SCOPE, client.receive, client.send))
        await asyncio.to_thread(engine.wait_for, lambda each: each.finished == 1)
        assert not replying.done()
        client.left.set()
        await asyncio.wait_for(replying, 20)
        assert client.messages == []

    asyncio.run(main())


def test_a_drain_lets_it_finish_and_an_abort_says_so(start) -> None:
    engine = start(Script(stalls_after=2))

    async def main(*, stream: bool) -> Client:
        client = Client()
        service = service_of(engine, ByteTokenizer())
        reply = reply_of(service, stream=stream)
        replying = asyncio.create_task(reply(SCOPE, client.receive, client.send))
        await asyncio.to_thread(engine.wait_for, lambda each: each.running == 1)
        service.lifecycle.drain()
        late = Client()
        await reply_of(service)(SCOPE, late.receive, late.send)
        assert late.status == 503
        service.lifecycle.abort_all()
        await asyncio.wait_for(replying, 20)
        return client

    whole = json.loads(asyncio.run(main(stream=False)).body)
    assert whole["choices"][0]["finish_reason"] == "abort"
    events = events_of(asyncio.run(main(stream=True)).body.decode())
    assert events[-2]["choices"][0]["finish_reason"] == "abort"
    assert events[-1] == "[DONE]"


def test_the_log_has_numbers_and_no_words(start, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    answered(start(text_script("the answer")), prompt="the question")
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("kvist"))
    assert "status 200" in logged
    for word in ("question", "answer"):
        assert word not in logged
