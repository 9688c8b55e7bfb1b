"""A server simulated in virtual time behind httpx's transport port: every TTFT is known before it is measured."""

import inspect
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from fakes.clock import HandClock
from kvist.lab.client import Client, Target, open_client

BLOCK = 16
PREFILL_S = 0.001
DECODE_S = 0.01
URL = "http://sim"


class Simulated:
    """One model with a prefix cache of whole blocks; prefill takes 1 ms a token not cached, decode 10 ms a token.

    Fields are set by tests to make it behave otherwise; `bodies` holds what it was asked.
    """

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock
        self.blocks: set[tuple[object, ...]] = set()
        self.bodies: list[dict[str, object]] = []
        self.models: object = {"data": [{"id": "tiny", "max_model_len": 4096}]}
        self.models_status = 200
        self.unknown: tuple[str, ...] = ()
        self.takes_ids = True
        self.takes_chat = True
        self.caches = True
        self.counts = True
        self.counts_cached = True

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(self.models_status, json=self.models)
        body = json.loads(request.content)
        self.bodies.append(body)
        refusal = self.refusal(request, body)
        if refusal:
            return httpx.Response(400, json={"error": {"message": refusal}})
        chat = request.url.path.endswith("/chat/completions")
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=self.stream(body, chat))

    def refusal(self, request: httpx.Request, body: dict[str, object]) -> str:
        for name in self.unknown:
            if name in body:
                return f"unknown field {name}"
        if isinstance(body.get("prompt"), list) and not self.takes_ids:
            return "prompt must be a string"
        if request.url.path.endswith("/chat/completions") and not self.takes_chat:
            return "this model has no chat template"
        return ""

    async def stream(self, body: dict[str, object], chat: bool) -> AsyncIterator[bytes]:
        tokens = self.tokens(body)
        cached = self.match(tokens)
        self.clock.advance(PREFILL_S * (len(tokens) - cached))
        for index in range(body["max_tokens"]):
            self.clock.advance(DECODE_S if index else 0.0)
            text = {"delta": {"content": f" w{index}"}} if chat else {"text": f" w{index}"}
            yield b"data: " + json.dumps({"choices": [text | {"finish_reason": None}]}).encode() + b"\n\n"
        end = {"delta": {}} if chat else {"text": ""}
        yield b"data: " + json.dumps({"choices": [end | {"finish_reason": "length"}]}).encode() + b"\n\n"
        if "stream_options" in body and self.counts:
            usage = {"prompt_tokens": len(tokens), "completion_tokens": body["max_tokens"]}
            usage |= {"prompt_tokens_details": {"cached_tokens": cached}} if self.counts_cached else {}
            yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    def tokens(self, body: dict[str, object]) -> list[object]:
        if isinstance(body.get("prompt"), list):
            return body["prompt"]
        if "prompt" in body:
            return body["prompt"].split()
        said = "".join(f"<{message['role']}> {message['content']} </>" for message in body["messages"])
        return [*said.split(), "<assistant>"]

    def match(self, tokens: list[object]) -> int:
        """Tokens found in the cache; all whole blocks are in it afterwards, the last token is always computed."""
        if not self.caches:
            return 0
        ends = range(BLOCK, len(tokens) + 1, BLOCK)
        found = 0
        for end in ends:
            if end < len(tokens) and found == end - BLOCK and tuple(tokens[:end]) in self.blocks:
                found = end
        self.blocks |= {tuple(tokens[:end]) for end in ends}
        return found


class Chunks(httpx.AsyncByteStream):
    """A body that was given whole, as a network would bring it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._content:
            yield self._content


class Port(httpx.AsyncBaseTransport):
    """Carries requests to a handler instead of a network."""

    def __init__(self, handler: Callable) -> None:
        self._handler = handler

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = self._handler(request)
        response = await response if inspect.isawaitable(response) else response
        if not response.is_stream_consumed:
            return response
        return httpx.Response(response.status_code, headers=response.headers, stream=Chunks(response.content))


@pytest.fixture
def clock() -> HandClock:
    """Virtual time."""
    return HandClock(100.0)


@pytest.fixture
def simulated(clock: HandClock) -> Simulated:
    """The server."""
    return Simulated(clock)


Opener = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def opened(clock: HandClock, simulated: Simulated) -> Opener:
    """Opens a client of the simulated server, or of another handler of requests."""

    def opened(handler: Callable | None = None, **target: object) -> AbstractAsyncContextManager[Client]:
        transport = Port(handler or simulated)
        return open_client(Target(url=URL, **target), clock, transport=transport)

    return opened
