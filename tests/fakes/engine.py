"""An engine that computes nothing and keeps the contract of `kvist.server.ports.Engine`.

Each request goes as a script says; events come from a thread of the engine's own, one step at a time, in the order
that `kvist.engine.messages` promises. A step takes in what was submitted and aborted, admits whom there is room for,
and draws one token for each that runs. Tests wait for a state of the engine, never for time to pass.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from kvist.base.ids import RequestId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.engine.messages import (
    Admitted,
    BlockCounts,
    EngineLimits,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    FinishReason,
    Refused,
    TokenDrawn,
)
from kvist.engine.request import Request
from kvist.server.ports import Deliver

LIMITS = EngineLimits(
    model_tokens_max=Tokens(1000),
    prompt_tokens_max=Tokens(900),
    output_tokens_max=Tokens(500),
    longest_request_tokens=Tokens(800),
    sequences_max=8,
    waiting_max=300,
    vocab_size=260,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How one request goes.

    Attributes:
        tokens: drawn in this order, again and again, until a stop token or the request's bound.
        tokens_cached: prompt tokens said to come from the cache.
        prefix_end: why no more.
        refusal: the request is refused with this kind.
        fails_after: the request fails after so many tokens.
        stalls_after: nothing more is drawn after so many tokens, until `release` or an abort.
        waits: it is not admitted until `release`.
    """

    tokens: tuple[int, ...] = tuple(b"Hello, world! ")
    tokens_cached: int = 0
    prefix_end: str = "nothing in the cache begins like this"
    refusal: Literal["invalid", "busy"] | None = None
    fails_after: int | None = None
    stalls_after: int | None = None
    waits: bool = False


Program = Callable[[Request], Script]


def text_script(text: str | bytes, **rest: object) -> Script:
    """Says a text, a byte a token, and stops."""
    data = text.encode() if isinstance(text, str) else text
    return Script(tokens=(*data, 257), **rest)  # type: ignore[arg-type]  # the rest are fields of Script, by name


@dataclass(slots=True)
class _Sequence:
    request: Request
    deliver: Deliver
    script: Script
    tokens: Iterator[int]
    output: int = 0


@dataclass(slots=True)
class _Counts:
    cached: int = 0
    computed: int = 0
    output: int = 0
    steps: int = 0
    refusals: int = 0
    aborts: int = 0
    finished: int = 0
    failures: int = 0
    aborted: list[RequestId] = field(default_factory=list)
    completed: list[RequestId] = field(default_factory=list)


class ScriptedEngine:
    """Runs scripts on a thread of its own; close it when done."""

    def __init__(self, program: Program | Script = Script(), limits: EngineLimits = LIMITS) -> None:  # frozen
        self.limits = limits
        self._program = program if callable(program) else lambda _: program
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._waiting: dict[RequestId, _Sequence] = {}
        self._running: dict[RequestId, _Sequence] = {}
        self._counts = _Counts()
        self._released = False
        self._closed = False
        self.requests: list[Request] = []
        self.fault: str | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    # The port

    def submit(self, request: Request, deliver: Deliver) -> None:
        self._post(lambda: self._accept(request, deliver))

    def abort(self, request_id: RequestId) -> None:
        self._post(lambda: self._abort(request_id))

    def complete(self, request_id: RequestId) -> None:
        self._post(lambda: self._complete(request_id))

    def statistics(self) -> EngineStatistics:
        with self._changed:
            return self._statistics()

    # For tests

    def release(self) -> None:
        """Lets all go on that wait or stall, now and from now on."""

        def release() -> None:
            self._released = True

        self._post(release)

    def wait_for(self, holds: Callable[[EngineStatistics], bool], timeout_s: float = 20.0) -> EngineStatistics:
        """Waits until a snapshot fulfils a condition, which is tried after every step."""
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self._statistics()), timeout_s):
                raise AssertionError(f"not within {timeout_s} s: {self._statistics()}")
            return self._statistics()

    def close(self) -> None:
        """Ends the thread; whoever runs hears no more."""

        def close() -> None:
            self._closed = True

        self._post(close)
        self._thread.join()

    # The engine's thread

    def _post(self, command: Callable[[], None]) -> None:
        with self._changed:
            self._inbox.append(command)
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                self._changed.wait_for(lambda: self._inbox or self._has_work())
                self._step()
                self._changed.notify_all()

    def _has_work(self) -> bool:
        admittable = any(self._may_start(sequence) for sequence in self._waiting.values())
        return (admittable and len(self._running) < self.limits.sequences_max) or any(
            not self._stalls(sequence) for sequence in self._running.values()
        )

    def _step(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        for sequence in list(self._waiting.values()):
            if self._may_start(sequence) and len(self._running) < self.limits.sequences_max:
                self._admit(sequence)
        for sequence in list(self._running.values()):
            if not self._stalls(sequence):
                self._draw(sequence)
        self._counts.steps += 1

    def _may_start(self, sequence: _Sequence) -> bool:
        return self._released or not sequence.script.waits

    def _stalls(self, sequence: _Sequence) -> bool:
        return not self._released and sequence.output == sequence.script.stalls_after

    def _accept(self, request: Request, deliver: Deliver) -> None:
        self.requests.append(request)
        script = self._program(request)
        kind = script.refusal or ("busy" if len(self._waiting) >= self.limits.waiting_max else None)
        if kind is not None:
            self._counts.refusals += 1
            deliver(Refused(request_id=request.id, kind=kind, message=f"scripted: {kind}"))
            return
        self._waiting[request.id] = _Sequence(request, deliver, script, itertools.cycle(script.tokens))

    def _admit(self, sequence: _Sequence) -> None:
        request, script = sequence.request, sequence.script
        self._running[request.id] = self._waiting.pop(request.id)
        self._counts.cached += script.tokens_cached
        self._counts.computed += len(request.prompt) - script.tokens_cached
        cached = Tokens(script.tokens_cached)
        sequence.deliver(Admitted(request_id=request.id, tokens_cached=cached, prefix_end=script.prefix_end))

    def _draw(self, sequence: _Sequence) -> None:
        request = sequence.request
        if sequence.output == sequence.script.fails_after:
            self._counts.failures += 1
            self._end(sequence, Failed(request_id=request.id, message="scripted: out of memory"))
            return
        token = TokenId(next(sequence.tokens))
        sequence.output += 1
        self._counts.output += 1
        sequence.deliver(_drawn(request, token))
        if token in request.stop_tokens:
            self._finish(sequence, "stop")
        elif sequence.output == request.output_tokens_max:
            self._finish(sequence, "length")

    def _abort(self, request_id: RequestId) -> None:
        sequence = self._running.get(request_id) or self._waiting.get(request_id)
        if sequence is not None:
            self._counts.aborts += 1
            self._finish(sequence, "abort")

    def _complete(self, request_id: RequestId) -> None:
        sequence = self._running.get(request_id) or self._waiting.get(request_id)
        if sequence is not None:
            self._counts.completed.append(request_id)
            self._finish(sequence, "stop")

    def _finish(self, sequence: _Sequence, reason: FinishReason) -> None:
        self._counts.finished += 1
        self._end(
            sequence,
            Finished(
                request_id=sequence.request.id,
                reason=reason,
                tokens_prompt=Tokens(len(sequence.request.prompt)),
                tokens_cached=Tokens(sequence.script.tokens_cached),
                tokens_output=Tokens(sequence.output),
                preemptions=0,
            ),
        )

    def _end(self, sequence: _Sequence, event: Event) -> None:
        self._waiting.pop(sequence.request.id, None)
        self._running.pop(sequence.request.id, None)
        sequence.deliver(event)

    def _statistics(self) -> EngineStatistics:
        counts = self._counts
        return EngineStatistics(
            running=len(self._running),
            waiting=len(self._waiting),
            tokens_prompt_cached=counts.cached,
            tokens_prompt_computed=counts.computed,
            tokens_recomputed=0,
            tokens_output=counts.output,
            blocks=(BlockCounts(used=len(self._running), cached=0, free=100 - len(self._running)),),
            evictions=0,
            steps=counts.steps,
            preemptions=0,
            refusals=counts.refusals,
            aborts=counts.aborts,
            finished=counts.finished,
            failures=counts.failures,
            out_of_memory=0,
            kv_bytes=Bytes(2**20),
            kv_bytes_per_token=Bytes(256),
        )


def _drawn(request: Request, token: TokenId) -> TokenDrawn:
    wanted = request.sampling.logprobs
    if wanted is None:
        return TokenDrawn(request_id=request.id, token=token)
    # The drawn token is the second best, so that those who leave it out are seen.
    ranked = [TokenId((token + 1) % 256), token, *(TokenId((token + each) % 256) for each in range(2, 21))]
    top = tuple((each, -0.5 * (rank + 1)) for rank, each in enumerate(ranked[:wanted]))
    return TokenDrawn(request_id=request.id, token=token, logprob=-1.0, top=top)
