"""Puts the server's parts together: one engine in, one ASGI app out.

The app opens no sockets, loads nothing from other hosts, and answers to no other origin's scripts.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kvist.base.clock import Clock
from kvist.server.chat import chat_routes
from kvist.server.completions import completion_routes
from kvist.server.errors import ApiError, on_api_error, on_client_gone, on_fault, on_http_error
from kvist.server.health import health_routes
from kvist.server.lifecycle import Lifecycle
from kvist.server.metrics import CountResponses
from kvist.server.models import model_routes
from kvist.server.ports import Engine, Tokenizer
from kvist.server.service import Draw, Service
from kvist.server.settings import ServerSettings

_DRAW: Draw = partial(secrets.randbits, 64)


def create_app(
    engine: Engine, tokenizer: Tokenizer, settings: ServerSettings, clock: Clock, draw: Draw = _DRAW
) -> FastAPI:
    """Makes the app that serves one engine.

    Args:
        engine: generates; already loaded.
        tokenizer: of the engine's model.
        settings: how the model is presented, and bounds on what clients send.
        clock: for latencies.
        draw: 64 random bits for ids and for the seeds that clients leave open.
    """
    service = Service(engine, tokenizer, settings, clock, draw)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.worker.close()

    app = FastAPI(
        title="Kvist",
        lifespan=lifespan,
        # Without a description, FastAPI has no documentation to show either, whose scripts would come from elsewhere;
        # bodies are read here and not by FastAPI, so what it would describe is not what is taken.
        openapi_url=None,
        redirect_slashes=False,  # a path that is not served is a 404 with a body, not an empty redirect
        exception_handlers={
            ApiError: on_api_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_client_gone,
            Exception: on_fault,
        },
    )
    app.state.lifecycle = service.lifecycle
    app.add_middleware(CountResponses, metrics=service.metrics)
    for routes in (chat_routes, completion_routes, model_routes, health_routes):
        app.include_router(routes(service))
    return app


def lifecycle_of(app: FastAPI) -> Lifecycle:
    """The lifecycle of an app that `create_app` made, for whoever runs and drains it."""
    lifecycle = app.state.lifecycle
    assert isinstance(lifecycle, Lifecycle), f"not made by create_app: {app!r}"
    return lifecycle
