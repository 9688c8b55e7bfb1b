"""The engine's own thread: the only one that touches blocks.

Callers leave messages in an inbox; the thread takes them between steps, and sleeps on one condition while there is
nothing to do, or nothing before the tiers below have brought something: they wake it, or its patience ends. If a step
fails in a way nobody foresaw, every request is told, once, and later ones too, even after the thread has ended: nobody
waits for an engine that will not answer.
"""

import logging
import threading
from collections import deque
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from dataclasses import dataclass, replace

from kvist.base.errors import RequestError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.engine.core import Deliver, EngineCore
from kvist.engine.messages import EngineLimits, EngineStatistics, Failed
from kvist.engine.request import Request
from kvist.engine.standing import Standing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submit:
    request: Request
    deliver: Deliver


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abort:
    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class _Complete:
    request_id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    tokens: Seq[TokenId]
    tenant: TenantId
    answer: Future[Standing]


_Message = _Submit | _Abort | _Complete | _Look


class EngineThread:
    """Runs an `EngineCore`; its methods may be called from any thread and return at once."""

    def __init__(self, core: EngineCore, limits: EngineLimits) -> None:
        """Wraps a core, which nobody else may touch from now on; `start` makes it run."""
        self._core = core
        self._limits = limits
        self._inbox: list[_Message] = []
        self._taken: deque[_Message] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._ended = False
        self._has_stalled = False
        self._below_changed = False
        self._fault: str | None = None
        self._snapshot = core.statistics()
        core.listen(self._hear)
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
        """Ends every request with a failure, then the thread; returns when it has ended. May be repeated."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is None:
            self.start()  # those who submitted before a start that never came are told too
        self._thread.join()

    def submit(self, request: Request, deliver: Deliver) -> None:
        """Queues a request; `deliver` is called on the engine's thread and must neither block nor raise.

        Once the thread has ended there is no other thread left than the caller's, so that one tells of the failure.
        """
        if not self._post(_Submit(request=request, deliver=deliver)):
            deliver(Failed(request_id=request.id, message=self._why_not))

    def abort(self, request_id: RequestId) -> None:
        """Ends a request that nobody wants any more within one step; unknown and ended ids are ignored."""
        self._post(_Abort(request_id=request_id))

    def complete(self, request_id: RequestId) -> None:
        """Ends a request whose output is all that was wanted, likewise."""
        self._post(_Complete(request_id=request_id))

    def standing(self, tokens: Seq[TokenId], tenant: TenantId) -> Future[Standing]:
        """What G1 has of a prompt after the step that runs now; cancelled when nobody will look any more.

        Raises:
            RequestError: it is empty, or has a token that is not of the vocabulary.
        """
        if not tokens or not 0 <= min(tokens) <= max(tokens) < self._limits.vocab_size:
            raise RequestError(f"a prompt has tokens in [0, {self._limits.vocab_size}), at least one", param="prompt")
        answer: Future[Standing] = Future()
        if not self._post(_Look(tokens=tokens, tenant=tenant, answer=answer)):
            answer.cancel()
        return answer

    def statistics(self) -> EngineStatistics:
        """The snapshot taken after the latest step; of the tiers, which go on without steps, one of now."""
        return replace(self._snapshot, fabric=self._core.tier_statistics())

    @property
    def _why_not(self) -> str:
        return self._fault or "the engine was stopped"

    def _post(self, message: _Message) -> bool:
        """Leaves a message; False when nobody will read it any more."""
        with self._wake:
            if not self._ended:
                self._inbox.append(message)
                self._wake.notify()
            return not self._ended

    def _hear(self) -> None:
        """Something changed below; called on the threads of the tiers."""
        with self._wake:
            self._below_changed = True
            self._wake.notify()

    def _run(self) -> None:
        while self._sleep():
            try:
                if self._stopping or self._fault:
                    self._turn_away()
                else:
                    self._serve()
            except Exception as error:  # noqa: BLE001  the last line of defence: whatever it is, nobody may be left waiting
                _log.exception("the engine stopped answering")
                self._fault = self._fault or f"the engine failed: {error!r}"
                self._has_stalled = False

    def _sleep(self) -> bool:
        """Sleeps until there is something to do, and takes in the messages; False when it is time to end."""
        patience_s = self._core.patience_s() if self._has_stalled else None
        with self._wake:
            self._wake.wait_for(self._is_due, patience_s)
            self._below_changed = (
                False  # what changes from here on is seen by the next step, or ends the sleep after it
            )
            self._taken.extend(self._inbox)
            self._inbox.clear()
            self._ended = self._stopping and not self._taken and not self._core.has_work
            return not self._ended

    def _is_due(self) -> bool:
        """Whether there is something to do."""
        if self._inbox or self._taken or self._stopping:
            return True
        if self._below_changed and self._core.heeds_tiers:
            return True
        return self._core.has_work and not self._has_stalled

    def _serve(self) -> None:
        while self._taken:
            message = self._taken[0]
            match message:
                case _Submit():
                    self._core.submit(message.request, self._limits, message.deliver)
                case _Abort():
                    self._core.abort(message.request_id)
                case _Complete():
                    self._core.complete(message.request_id)
                case _Look():
                    message.answer.set_result(self._core.standing(message.tokens, message.tenant))
            self._taken.popleft()  # only now: should the core have raised, it does not know of the request
        if self._core.has_work or self._core.heeds_tiers:
            self._has_stalled = not self._core.step()
        self._snapshot = self._core.statistics()

    def _turn_away(self) -> None:
        self._core.fail_all(self._why_not)
        while self._taken:
            message = self._taken.popleft()
            if isinstance(message, _Submit):
                message.deliver(Failed(request_id=message.request.id, message=self._why_not))
            elif isinstance(message, _Look):
                message.answer.cancel()
        self._snapshot = self._core.statistics()
