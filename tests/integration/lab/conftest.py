"""A small server of OpenAI's shape on a real loopback socket, with a prefix cache, real work per token, and faults.

Its tokens are the ids it is sent, or words. Prefill hashes each token that its cache does not hold, so cold
prompts really take longer than warm ones. Faults are what servers and networks do to a stream.
"""

import hashlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pytest
import uvicorn

BLOCK = 16
ROUNDS_PER_TOKEN = 300
EVENT_STREAM = [(b"content-type", b"text/event-stream")]
Send = Callable[[dict[str, object]], Awaitable[None]]


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@dataclass(kw_only=True)
class Pocket:
    """What the server does; `fault_every` applies `fault` to each so-manieth request that streams, 1 to all."""

    model: str = "pocket"
    tokens_max: int = 100_000
    fault: str | None = None
    fault_every: int = 1
    fault_after: int = 1
    takes_ids: bool = True
    takes_ignore_eos: bool = True
    counts_cached: bool = True
    caches: bool = True
    blocks: set[bytes] = field(default_factory=set)
    asked: int = 0
    keys: set[str] = field(default_factory=set)
    hanging: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope: dict, receive: Callable, send: Send) -> None:
        if scope["path"] == "/v1/models":
            listing = {"data": [{"id": self.model, "max_model_len": self.tokens_max}]}
            return await self.answer(send, 200, json.dumps(listing).encode())
        if not scope["path"].endswith("completions"):
            return await self.answer(send, 404, b'{"detail": "Not Found"}')
        self.keys.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        body = json.loads(await self.read(receive))
        refusal = self.refusal(body)
        if refusal:
            return await self.answer(send, 400, json.dumps({"error": {"message": refusal}}).encode())
        self.asked += 1
        faulty = self.fault if self.asked > self.fault_after and self.asked % self.fault_every == 0 else None
        return await self.stream(body, receive, send, fault=faulty)

    async def read(self, receive: Callable) -> bytes:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        return body

    def refusal(self, body: dict[str, object]) -> str:
        if body["model"] != self.model:
            return f"no model {body['model']}"
        if isinstance(body.get("prompt"), list) and not self.takes_ids:
            return "token ids are not supported"
        if "ignore_eos" in body and not self.takes_ignore_eos:
            return "ignore_eos is not supported"
        return ""

    async def answer(self, send: Send, status: int, body: bytes, kind: bytes = b"application/json") -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": body})

    async def stream(self, body: dict, receive: Callable, send: Send, *, fault: str | None) -> None:
        if fault == "busy":
            return await self.answer(send, 503, b'{"error": {"message": "queue is full"}}')
        if fault == "html":
            return await self.answer(send, 200, b"<html>hello</html>", b"text/html")
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        tokens = self.tokens(body)
        cached = self.prefill(tokens)
        for index in range(body["max_tokens"]):
            if fault is not None and index == min(2, body["max_tokens"] - 1):
                return await self.spoil(fault, receive, send)
            await self.chunk(send, event({"choices": [self.choice(body, f" w{index}", None)]}))
        await self.chunk(send, event({"choices": [self.choice(body, "", "length")]}))
        usage = {"prompt_tokens": len(tokens), "completion_tokens": body["max_tokens"]}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}} if self.counts_cached else {}
        await self.chunk(send, event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return await send({"type": "http.response.body", "body": b""})

    async def spoil(self, fault: str, receive: Callable, send: Send) -> None:
        if fault == "hang":
            self.hanging.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
        if fault == "reset":
            raise ConnectionError("the fault that was asked for")
        spoilt = {
            "error": event({"error": {"message": "out of blocks"}}),
            "garbage": b"data: {not json\n\n",
            "long": b"data: " + b"x" * 5 * 2**20,
            "flood": event({"choices": [{"text": "x", "finish_reason": None}]}) * 10_000,
        }
        await send({"type": "http.response.body", "body": spoilt.get(fault, b"")})

    async def chunk(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    def choice(self, body: dict, text: str, finish: str | None) -> dict[str, object]:
        said = {"delta": {"content": text}} if "messages" in body else {"text": text}
        return said | {"finish_reason": finish}

    def tokens(self, body: dict) -> list[object]:
        if "messages" in body:
            return [word for message in body["messages"] for word in message["content"].split()]
        return body["prompt"] if isinstance(body["prompt"], list) else body["prompt"].split()

    def prefill(self, tokens: list[object]) -> int:
        """Hashes what is not cached; tokens that were, of whole blocks, the last token never."""
        chain, cached, hit = b"", 0, self.caches
        for end in range(BLOCK, len(tokens) + BLOCK, BLOCK):
            part = tokens[end - BLOCK : end]
            chain = hashlib.sha256(chain + repr(part).encode()).digest()
            hit = hit and chain in self.blocks and end < len(tokens)
            cached = end if hit else cached
            if not hit:
                hashlib.pbkdf2_hmac("sha256", chain, b"work", len(part) * ROUNDS_PER_TOKEN)
            if len(part) == BLOCK:
                self.blocks.add(chain)
        return cached


@contextmanager
def _running(app: Pocket) -> Iterator[str]:
    """Runs the server in a thread; lends its URL."""
    # asyncio turns Nagle's algorithm off only for sockets that name their protocol; with it on, each answer waits 40 ms
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)  # from here on, so nobody has to wait for it
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@pytest.fixture
def pocket() -> type[Pocket]:
    """The kind of server, to be made as a test needs it."""
    return Pocket


@pytest.fixture
def running() -> Callable[[Pocket], AbstractContextManager[str]]:
    """Runs one of them."""
    return _running
