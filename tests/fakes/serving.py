"""A served engine within one process: app, clock, requests and events without a socket."""

import asyncio
import json
from typing import Any

import httpx
from fastapi import FastAPI

from kvist.base.units import Bytes, Tokens
from kvist.server.app import create_app
from kvist.server.ports import Engine, Tokenizer
from kvist.server.service import Service
from kvist.server.settings import MemoryCard, ModelCard, ServerSettings

MODEL = ModelCard(id="owner/model", root="/models/model", created_s=1_700_000_000)
MEMORY = MemoryCard(
    weights_bytes=Bytes(2**21),
    workspace_bytes=Bytes(2**19),
    dtype="bfloat16",
    block_tokens=16,
    step_tokens=1024,
    sequences_max=64,
    model_tokens_max=Tokens(4096),
    window_checkpoint_tokens=Tokens(2048),
)
SETTINGS = ServerSettings(model=MODEL, memory=MEMORY)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


def app_of(engine: Engine, tokenizer: Tokenizer, settings: ServerSettings = SETTINGS) -> FastAPI:
    """An app whose ids and seeds are zeros."""
    return create_app(engine, tokenizer, settings, ManualClock(), lambda: 0)


def service_of(engine: Engine, tokenizer: Tokenizer, settings: ServerSettings = SETTINGS) -> Service:
    """What the handlers of such an app share."""
    return Service(engine, tokenizer, settings, ManualClock(), lambda: 0)


def ask(app: FastAPI, path: str, body: dict[str, Any] | None = None, **rest: Any) -> httpx.Response:
    """One request on an event loop of its own: a POST if there is anything to send, else a GET."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://kvist") as client:
            method = "POST" if body is not None or rest else "GET"
            return await client.request(method, path, json=body, **rest)

    return asyncio.run(request())


def chat(**fields: Any) -> dict[str, Any]:
    """A chat body with these fields."""
    return {"model": MODEL.id, "messages": [{"role": "user", "content": "Hi"}]} | fields


def completion(**fields: Any) -> dict[str, Any]:
    """A completion body with these fields."""
    return {"model": MODEL.id, "prompt": "Hi"} | fields


def events_of(text: str) -> list[dict[str, Any] | str]:
    """The events of a stream: objects, and "[DONE]" as it is."""
    datas = [each.removeprefix("data: ") for each in text.split("\n\n") if each]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]
