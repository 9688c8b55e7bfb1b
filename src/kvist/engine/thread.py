"""The engine's own thread: the only one that touches blocks.

Callers leave messages in an inbox; the thread takes them between steps, and sleeps on one condition while
there is nothing to do. If a step fails in a way nobody foresaw, every request is told, and later ones too:
nobody waits for an engine that will not answer.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvist.base.ids import RequestId
from kvist.engine.core import Deliver, EngineCore
from kvist.engine.messages import EngineLimits, EngineStatistics, Failed
from kvist.engine.request import Request

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submit:
    request: Request
    deliver: Deliver


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abort:
    request_id: RequestId


class EngineThread:
    """Runs an `EngineCore`; its methods may be called from any thread and return at once."""

    def __init__(self, core: EngineCore, limits: EngineLimits) -> None:
        """Wraps a core, which nobody else may touch from now on; `start` makes it run."""
        self._core = core
        self._limits = limits
        self._inbox: list[_Submit | _Abort] = []
        self._wake = threading.Condition()
        self._stopping = False
        self._fault: str | None = None
        self._snapshot = core.statistics()
        self._thread = threading.Thread(target=self._run, name="kvist-engine", daemon=True)

    @property
    def limits(self) -> EngineLimits:
        """Bounds fixed at start."""
        return self._limits

    @property
    def fault(self) -> str | None:
        """Why the engine answers nobody any more, or None while it is well."""
        return self._fault

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends every request with a failure, then the thread; returns when it has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queues a request; `deliver` is called on the engine's thread and must neither block nor raise."""
        self._post(_Submit(request=request, deliver=deliver))

    def abort(self, request_id: RequestId) -> None:
        """Ends a request within one step; unknown and ended ids are ignored."""
        self._post(_Abort(request_id=request_id))

    def statistics(self) -> EngineStatistics:
        """The snapshot taken after the latest step."""
        return self._snapshot

    def _post(self, message: _Submit | _Abort) -> None:
        with self._wake:
            self._inbox.append(message)
            self._wake.notify()

    def _run(self) -> None:
        serve: Callable[[list[_Submit | _Abort]], None] = self._serve
        while (messages := self._next_messages()) is not None:
            try:
                serve(messages)
            except Exception as error:  # noqa: BLE001  the last line of defence: whatever it is, nobody may be left waiting
                _log.exception("the engine stopped answering")
                self._fault = f"the engine failed: {error!r}"
                serve = self._fail
                serve(messages)
        self._core.fail_all("the engine was stopped")
        self._fail(self._inbox)

    def _next_messages(self) -> list[_Submit | _Abort] | None:
        """Sleeps until there is something to do; None when it is time to stop."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._stopping or (self._core.has_work and not self._fault))
            if self._stopping:
                return None
            messages, self._inbox = self._inbox, []
            return messages

    def _serve(self, messages: list[_Submit | _Abort]) -> None:
        for message in messages:
            if isinstance(message, _Submit):
                self._core.submit(message.request, self._limits, message.deliver)
            else:
                self._core.abort(message.request_id)
        if self._core.has_work:
            self._core.step()
        self._snapshot = self._core.statistics()

    def _fail(self, messages: list[_Submit | _Abort]) -> None:
        reason = self._fault or "the engine was stopped"
        self._core.fail_all(reason)
        for message in messages:
            if isinstance(message, _Submit):
                message.deliver(Failed(request_id=message.request.id, message=reason))
