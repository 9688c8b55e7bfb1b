"""The sequences of one HTTP request: submitted together, listened to together, and never left behind.

Laws:
    * Whoever enters a `Generation` and leaves it, by whatever way, leaves no sequence of it in the engine.
    * A sequence that the engine ended is left alone; one whose text ended at a stop string is completed.
    * Whatever came by the time somebody looks is handed out at once: who reads slowly gets more in each piece of work.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from kvist.base.ids import RequestId
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn
from kvist.server.choice import Choice, Piece
from kvist.server.errors import ApiError, of_failure, of_refusal
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
        self._events: deque[Event] = deque()
        self._has_come = asyncio.Event()

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

    async def pieces(self) -> AsyncGenerator[list[Piece]]:
        """The pieces of all choices as they come, at least one at a time; ends when all choices have.

        Raises:
            ApiError: a sequence was refused or failed.
        """
        while self._live:
            await self._has_come.wait()
            self._has_come.clear()
            pieces: list[Piece] = []
            try:
                while self._events:
                    self._take_next(pieces)
            except ApiError:
                if pieces:
                    yield pieces  # what came before is not lost
                raise
            if pieces:
                yield pieces

    def _take_next(self, pieces: list[Piece]) -> None:
        event = self._events.popleft()
        choice = self._live.get(event.request_id)
        # Without one, its text ended at a stop string before the engine heard of it.
        piece = None if choice is None else self._take(choice, event)
        if piece is not None:
            pieces.append(piece)

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
        self._events.append(event)
        self._has_come.set()
