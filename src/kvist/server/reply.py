"""Answers one request: runs its sequences, writes the response, and ends everything when the client leaves.

Knows both ways of answering (one response, a stream of events); does not know how the two endpoints differ.

Laws:
    * The status line is sent with the first piece of text, so that whatever fails before is a proper error status.
    * A stream that fails later ends with an error event and without [DONE].
    * What every event of a stream has in common is written once; an event costs what is new in it.
    * A client that leaves is noticed at once, in every state, and its sequences are aborted.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kvist.server.answer import Shape, joined, usage
from kvist.server.choice import Choice, Piece
from kvist.server.errors import ApiError
from kvist.server.generation import Generation
from kvist.server.job import Job
from kvist.server.service import Service

_log = logging.getLogger(__name__)

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply(Response):
    """The response to one request, which generates while it is written."""

    def __init__(self, service: Service, job: Job, shape: Shape, *, arrived_s: float, explains: bool) -> None:
        """Prepares; generating begins when the response is sent.

        Args:
            service: whose engine generates.
            job: what to generate.
            shape: of the endpoint.
            arrived_s: when the request came, by the service's clock.
            explains: whether the usage says why the cached prefix ended.
        """
        super().__init__()
        self._service = service
        self._job = job
        self._shape = shape
        self._explains = explains
        self._choices = [
            Choice(index, request, job.stops, service.tokenizer, service.texts)
            for index, request in enumerate(job.requests)
        ]
        self._generation = Generation(service, self._choices, arrived_s=arrived_s)
        self._frame = {
            "id": shape.id_prefix + service.new_id(),
            "object": shape.chunk if job.streams else shape.whole,
            "created": service.unix_s(),
            "model": service.settings.model.id,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generates and sends; returns when the response is complete or its reader gone."""
        answer = (
            partial(self._stream, send) if self._job.streams else partial(self._answer_at_once, scope, receive, send)
        )
        try:
            with self._service.lifecycle.admitted(self._generation.abort):
                async with self._generation:
                    if not await _while_connected(answer, receive):
                        self._log("client left")
        except ApiError as error:
            self._log(f"status {error.family.status}")
            self._service.metrics.count_refusal(error)
            await error.response()(scope, receive, send)

    async def _answer_at_once(self, scope: Scope, receive: Receive, send: Send) -> None:
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        async with aclosing(self._generation.pieces()) as coming:
            async for some in coming:
                for piece in some:
                    pieces[piece.index].append(piece)
        choices = [self._shape.choice(joined(each)) for each in pieces]
        self._log("status 200")
        await JSONResponse(self._frame | {"choices": choices, "usage": self._usage()})(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._generation.pieces()) as pieces:
            first = await anext(pieces)
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await self._send_pieces(first, pieces, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_pieces(self, first: list[Piece], rest: AsyncIterator[list[Piece]], send: Send) -> None:
        events = _Events(self._frame, self._shape, includes_usage=self._job.includes_usage)
        try:
            await _send_part(send, events.of(first))
            async for pieces in rest:
                await _send_part(send, events.of(pieces))
        except ApiError as error:
            self._log(f"status 200, then {error.family.status}")
            self._service.metrics.count_refusal(error)
            await _send_part(send, _event(error.body()))
            return
        self._log("status 200")
        usage_event = _event(self._frame | {"choices": [], "usage": self._usage()}) if self._job.includes_usage else b""
        await _send_part(send, usage_event + b"data: [DONE]\n\n")

    def _usage(self) -> dict[str, Any]:
        return usage(self._job, self._choices, explains=self._explains)

    def _log(self, outcome: str) -> None:
        # Numbers alone: what clients write is theirs.
        spent = self._usage()
        _log.info(
            "%s: %s, %d choices, tokens: %d prompt (%d cached), %d output",
            self._frame["id"],
            outcome,
            len(self._choices),
            spent["prompt_tokens"],
            spent["prompt_tokens_details"]["cached_tokens"],
            spent["completion_tokens"],
        )


class _Events:
    """Pieces of text as the events of one stream."""

    def __init__(self, frame: Mapping[str, Any], shape: Shape, *, includes_usage: bool) -> None:
        self._shape = shape
        self._begun: set[int] = set()
        self._before = b"data: " + to_json(frame)[:-1] + b',"choices":['
        # A client that asked for the usage finds the field in every event.
        self._after = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def of(self, pieces: Sequence[Piece]) -> bytes:
        """One event for each piece, one after the other."""
        return b"".join(part for piece in pieces for part in (self._before, self._delta(piece), self._after))

    def _delta(self, piece: Piece) -> bytes:
        is_first = piece.index not in self._begun
        self._begun.add(piece.index)
        return to_json(self._shape.delta(piece, is_first))


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(content) + b"\n\n"


async def _send_part(send: Send, part: bytes) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": True})


async def _while_connected(answer: Callable[[], Coroutine[Any, Any, None]], receive: Receive) -> bool:
    """Runs an answer to its end and returns True, or until its client has left and returns False."""
    answering = asyncio.create_task(answer())
    listening = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait((answering, listening), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            await answering
            return True
        return False
    finally:
        for task in (answering, listening):
            task.cancel()
        await asyncio.gather(answering, listening, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
