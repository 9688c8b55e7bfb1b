import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from kvist.base.errors import ConfigError
from kvist.lab.client import BODY_BYTES_MAX, ServedModel, parse_url
from kvist.lab.failure import CallError

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
TOKEN = b'data: {"choices": [{"text": "x", "finish_reason": null}]}\n\n'


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def ask(opened: Callable, handler: Callable, **target: object) -> object:
    async def go() -> object:
        async with opened(handler, **target) as client:
            return await client.stream("completions", {"prompt": [1]}, output_tokens=4)

    return asyncio.run(go())


def list_models(opened: Callable, handler: Callable | None = None) -> tuple[ServedModel, ...]:
    async def go() -> tuple[ServedModel, ...]:
        async with opened(handler) as client:
            return await client.models()

    return asyncio.run(go())


def failure(opened: Callable, handler: Callable, **target: object) -> CallError:
    with pytest.raises(CallError) as caught:
        ask(opened, handler, **target)
    return caught.value


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://h/v1", "http://h"),
        ("https://h/v1/", "https://h"),
        ("http://h/api/v1", "http://h/api"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_a_base_url_is_understood_with_and_without_its_version(typed: str, meant: str) -> None:
    assert parse_url(typed) == meant


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http:///v1",
        "http://h:0",
        "http://h:99999",
        "http://h:x",
        "http://[::1",
        "http://h?a=1",
        "http://h#a",
        "http://h /",
        "http://h\n",
        "http://h\x00",
        "file:///etc/passwd",
        "http://\u2603.x",
        "http://xn--a:80",
    ],
)
def test_what_is_no_base_url_is_refused_with_an_example(typed: str) -> None:
    with pytest.raises(ConfigError, match=r"write it like http://127\.0\.0\.1:8000"):
        parse_url(typed)


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url("http://user:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_chunks_are_timed_by_the_clock_that_was_passed_in(opened: Callable, clock: object) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        clock.advance(2.0)
        yield TOKEN
        clock.advance(0.5)
        yield TOKEN[:20]
        clock.advance(0.5)
        yield TOKEN[20:]
        yield b"data: [DONE]\n\n"
        clock.advance(60.0)  # what comes after the end mark is not waited for in any figure
        yield b": bye\n\n"

    answer = ask(opened, lambda _: httpx.Response(200, headers=EVENTS, content=slowly()))
    assert (answer.started_s, answer.ttft_s, answer.token_times_s, answer.latency_s) == (100.0, 2.0, (2.0, 3.0), 3.0)


def test_a_request_is_a_stream_without_compression_and_with_the_key(opened: Callable) -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, headers=EVENTS, content=TOKEN + b"data: [DONE]\n\n")

    ask(opened, handler, api_key="k3y")
    assert seen[0].url == "http://sim/v1/completions"
    assert b'"stream": true' in seen[0].content
    assert seen[0].headers["accept-encoding"] == "identity"
    assert seen[0].headers["authorization"] == "Bearer k3y"


@pytest.mark.parametrize("raised", sorted(subclasses(httpx.HTTPError), key=lambda each: each.__name__))
def test_every_exception_of_the_http_library_becomes_a_failed_call(opened: Callable, raised: type[Exception]) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if raised is httpx.HTTPStatusError:
            raise httpx.HTTPStatusError("broke", request=request, response=httpx.Response(500))
        raise raised("broke")

    assert failure(opened, handler).kind in {"connect", "timeout", "disconnected", "malformed"}


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (httpx.ConnectError("refused"), "connect"),
        (httpx.ConnectTimeout(""), "connect"),
        (httpx.ReadTimeout(""), "timeout"),
        (httpx.ReadError(""), "disconnected"),
        (httpx.RemoteProtocolError("incomplete"), "disconnected"),
        (httpx.InvalidURL("bad"), "malformed"),
        (httpx.StreamClosed(), "malformed"),
    ],
)
def test_how_a_call_failed_is_told_apart(opened: Callable, raised: Exception, kind: str) -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise raised

    error = failure(opened, handler)
    assert error.kind == kind
    assert "http://sim/v1/completions" in str(error)


def test_a_connection_that_breaks_after_the_end_mark_does_no_harm(opened: Callable) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield TOKEN + b"data: [DONE]\n\n"
        raise httpx.ReadError("reset")

    assert ask(opened, lambda _: httpx.Response(200, headers=EVENTS, content=broken())).text == "x"


def test_a_connection_that_breaks_before_it_does(opened: Callable) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield TOKEN
        raise httpx.ReadError("reset")

    assert failure(opened, lambda _: httpx.Response(200, headers=EVENTS, content=broken())).kind == "disconnected"


def test_a_stream_that_never_ends_is_cut_off_in_time(opened: Callable) -> None:
    async def forever() -> AsyncIterator[bytes]:
        yield TOKEN
        await asyncio.Event().wait()

    error = failure(opened, lambda _: httpx.Response(200, headers=EVENTS, content=forever()), timeout_s=0.05)
    assert error.kind == "timeout"
    assert "0.05 s" in str(error)


def test_a_stream_that_stays_open_after_its_end_mark_is_complete(opened: Callable) -> None:
    async def lingering() -> AsyncIterator[bytes]:
        yield TOKEN + b"data: [DONE]\n\n"
        await asyncio.Event().wait()

    answer = ask(opened, lambda _: httpx.Response(200, headers=EVENTS, content=lingering()), timeout_s=0.05)
    assert answer.text == "x"


@pytest.mark.parametrize(
    ("response", "kind", "complaint"),
    [
        (httpx.Response(404, json={"error": {"message": "no model 'x'"}}), "http_404", "answered 404: no model 'x'"),
        (httpx.Response(503, text="<h1>busy</h1>"), "http_503", "<h1>busy</h1>"),
        (httpx.Response(500, content=b"\xff\x00\x1b[31m"), "http_500", "answered 500"),
        (httpx.Response(307, headers={"location": "http://elsewhere"}), "http_307", "nothing"),
        (httpx.Response(400, content=b"[" * 100_000), "http_400", "[[["),
        (httpx.Response(200, html="<p>hello</p>"), "malformed", "<p>hello</p>"),
        (httpx.Response(200, content=b""), "malformed", "no content type"),
        (httpx.Response(200, headers=EVENTS | {"content-encoding": "gzip"}, content=b""), "malformed", "compressed"),
    ],
)
def test_an_answer_that_is_no_stream_is_shown(
    opened: Callable, response: httpx.Response, kind: str, complaint: str
) -> None:
    error = failure(opened, lambda _: response)
    assert error.kind == kind
    assert complaint in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 500


def test_a_huge_error_body_is_read_in_part(opened: Callable) -> None:
    sent = []

    async def huge() -> AsyncIterator[bytes]:
        for _ in range(1000):
            sent.append(2**16)
            yield b"x" * 2**16

    assert failure(opened, lambda _: httpx.Response(500, content=huge())).status == 500
    assert sum(sent) <= BODY_BYTES_MAX + 2**16


def test_models_are_listed_with_their_bound(opened: Callable, simulated: object) -> None:
    simulated.models = {
        "data": [
            {"id": "a", "max_model_len": 2048},
            {"id": "b"},
            {"id": "c", "max_model_len": True},
            {"id": "d", "max_model_len": "many"},
            {"id": "e", "max_model_len": -1},
            {"id": 7},
            "f",
        ]
    }
    names = {model.name: model.tokens_max for model in list_models(opened)}
    assert names == {"a": 2048, "b": None, "c": None, "d": None, "e": None}


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": 3}', b'{"models": []}', b"\xff"])
def test_a_server_of_another_kind_is_told_so(opened: Callable, body: bytes) -> None:
    with pytest.raises(CallError, match="does not list models as OpenAI's API does") as caught:
        list_models(opened, lambda _: httpx.Response(200, content=body))
    assert caught.value.kind == "malformed"


def test_a_server_without_a_listing_is_told_so(opened: Callable) -> None:
    with pytest.raises(CallError, match="GET http://sim/v1/models answered 404: Not Found"):
        list_models(opened, lambda _: httpx.Response(404, json={"detail": "Not Found"}))
