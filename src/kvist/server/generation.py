"""The sequences of one HTTP request: submitted together, listened to together, and never left behind.

Laws:
    * Whoever enters a `Generation` and leaves it, by whatever way, leaves no sequence of it in the engine.
    * A sequence that the engine ended is left alone; one whose text ended at a stop string is completed.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from kvist.base.ids import RequestId
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn
from kvist.server.choice import Choice, Piece
from kvist.server.errors import of_failure, of_refusal
from kvist.server.service import Service


class Generation:
    """An async context in which some choices are generated."""

    def __init__(self, service: Service, choices: Sequence[Choice], *, arrived_s: float) -> None:
        """Prepares; nothing is submitted before the context is entered.

        Args:
            service: whose engine generates.
            choices: each with a request of its own.
            arrived_s: when the HTTP request came, by the service's clock.
        """
        self.choices = tuple(choices)
        self._service = service
        self._arrived_s = arrived_s
        self._live = {choice.request.id: choice for choice in choices}
        self._latest_s: dict[RequestId, float] = {}
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        deliver = self._service.handover().deliver_to(self._arrive)
        for choice in self.choices:
            self._service.engine.submit(choice.request, deliver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
        self._live.clear()

    def abort(self) -> None:
        """Asks the engine to end what it has not ended; the choices then finish with reason "abort"."""
        for request_id in self._live:
            self._service.engine.abort(request_id)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """The pieces of all choices as they come; ends when all choices have.

        Raises:
            ApiError: a sequence was refused or failed.
        """
        while self._live:
            event = await self._events.get()
            choice = self._live.get(event.request_id)
            if choice is None:
                continue  # its text ended at a stop string before the engine heard of it
            piece = self._take(choice, event)
            if piece is not None:
                yield piece

    def _take(self, choice: Choice, event: Event) -> Piece | None:
        match event:
            case Admitted():
                choice.admit(event)
                return None
            case TokenDrawn():
                piece = choice.push(event)
                if piece is not None and piece.finish is not None:
                    del self._live[event.request_id]
                    self._service.engine.complete(event.request_id)
                return piece
            case Finished():
                del self._live[event.request_id]
                return choice.finish(event)
            case Refused():
                del self._live[event.request_id]
                raise of_refusal(event)
            case Failed():
                del self._live[event.request_id]
                raise of_failure(event)

    def _arrive(self, event: Event) -> None:
        # Measured here and not in `pieces`, which may be waiting for a client that reads slowly.
        if isinstance(event, TokenDrawn):
            now_s = self._service.clock.now_s()
            before_s = self._latest_s.get(event.request_id)
            if before_s is None:
                self._service.metrics.first_token.observe(now_s - self._arrived_s)
            else:
                self._service.metrics.inter_token.observe(now_s - before_s)
            self._latest_s[event.request_id] = now_s
        self._events.put_nowait(event)
