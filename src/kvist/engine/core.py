"""The engine's step: admit, plan, reserve, compute, commit, hand out.

Knows requests and blocks; does not know threads, clocks or tensors: one caller drives it, a backend computes.

Laws:
    * A sequence is in exactly one of `waiting` and `running`; only a running one holds blocks.
    * Whoever ends, ends through `_end`, which gives back every block and sends the last event; but when the engine
      itself cannot go on, `fail_all` sends the last events and leaves the blocks alone.
    * With overcommit 1 nobody is ever preempted for lack of blocks; with more, the oldest never is.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

from kvist.base.errors import CapacityError
from kvist.base.ids import RequestId
from kvist.base.units import Tokens
from kvist.blocks.keys import HashChain, tenant_key
from kvist.blocks.ledger import check_pool
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.blocks.table import BlockTable
from kvist.engine.admission import AdmissionRules, may_start
from kvist.engine.backend import Backend, BackendError
from kvist.engine.batch import Drawn
from kvist.engine.counters import Counters
from kvist.engine.in_flight import InFlight
from kvist.engine.limits import reason_to_refuse
from kvist.engine.messages import (
    Admitted,
    EngineLimits,
    EngineStatistics,
    Event,
    Failed,
    Finished,
    FinishReason,
    TokenDrawn,
)
from kvist.engine.request import Request
from kvist.engine.schedule import Slice, plan_step
from kvist.engine.sequence import Sequence
from kvist.engine.settings import EngineSettings

Deliver = Callable[[Event], None]


class EngineCore:
    """All requests of one model and the blocks they share."""

    def __init__(self, backend: Backend, cache: PrefixCache, settings: EngineSettings, *, secret: bytes) -> None:
        """Binds a backend to a prefix cache.

        Args:
            backend: computes over the same blocks that `cache` hands out.
            cache: one pool per KV group.
            settings: bounds and choices.
            secret: what tenants' hashes are keyed with; equal secrets are needed only to share blocks.
        """
        self._backend = backend
        self._cache = cache
        self._settings = settings
        self._secret = secret
        self._rules = AdmissionRules(
            groups=settings.groups,
            block_tokens=settings.block_tokens,
            step_tokens=settings.step_tokens,
            overcommit=settings.overcommit,
        )
        self._waiting: deque[Sequence] = deque()
        self._running: dict[RequestId, Sequence] = {}
        self._deliver: dict[RequestId, Deliver] = {}
        self._in_flight = InFlight()
        self._turns = 0
        self._memory_short = False
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._deliver)

    def submit(self, request: Request, limits: EngineLimits, deliver: Deliver) -> None:
        """Queues a request, or sends its refusal."""
        # Everybody who has not ended: who is about to run was taken in with those who will wait.
        refusal = reason_to_refuse(request, limits, live=len(self._deliver), known=request.id in self._deliver)
        if refusal is not None:
            self._counters.refusals += 1
            deliver(refusal)
            return
        chain = HashChain(tenant_key(self._secret, request.tenant), block_tokens=self._settings.block_tokens)
        table = BlockTable(self._cache, request.id, self._settings.retention)
        self._waiting.append(Sequence(request, chain, table))
        self._deliver[request.id] = deliver

    def abort(self, request_id: RequestId) -> None:
        """Ends a request that nobody wants any more, wherever it is; unknown ids are ignored."""
        self._end_early(request_id, "abort")

    def complete(self, request_id: RequestId) -> None:
        """Ends a request whose output is all that was wanted, as at a stop string; unknown ids are ignored."""
        self._end_early(request_id, "stop")

    def fail_all(self, message: str) -> None:
        """Tells every request that it failed and forgets it, as when the engine cannot go on.

        No block is given back, because the books may be what is wrong: the core takes no further step. May be
        repeated where telling somebody raised; nobody is told twice.
        """
        self._running.clear()
        self._waiting.clear()
        while self._deliver:
            request_id, deliver = self._deliver.popitem()
            self._counters.failures += 1
            deliver(Failed(request_id=request_id, message=message))

    def step(self) -> None:
        """Computes up to `step_tokens` tokens for those who run, and tells them."""
        self._admit()
        plan = self._reserve(self._plan())
        assert plan or not self.has_work, "requests wait, nobody runs and nothing can be admitted"
        draws = self._compute(plan)
        if draws is not None:
            self._commit(plan)
            self._hand_out(plan, draws)
        self._counters.steps += 1
        if self._settings.audits:
            self.audit()

    def statistics(self) -> EngineStatistics:
        """A snapshot of queues, pools and counters."""
        return self._counters.snapshot(
            self._settings, self._cache.pools, running=len(self._running), waiting=len(self._waiting)
        )

    def audit(self) -> None:
        """Proves that the books of every pool balance.

        Raises:
            AssertionError: naming the block or request that does not add up.
        """
        for group, pool in enumerate(self._cache.pools):
            check_pool(pool, {owner: sequence.table.held()[group] for owner, sequence in self._running.items()})
        assert not any(any(sequence.table.held_counts()) for sequence in self._waiting), (
            "a waiting request holds blocks"
        )
        assert self._running or not len(self._in_flight), "blocks are in flight and nobody runs"
        assert len(self._deliver) == len(self._running) + len(self._waiting), "a request is in no queue, or in two"

    # The steps of a step

    def _admit(self) -> None:
        if self._memory_short and self._running:
            return  # with more to compute the next step would fail again
        for sequence in list(self._waiting):
            if len(self._running) >= self._settings.sequences_max:
                return
            if sequence.awaited in self._in_flight:
                continue  # somebody is computing its next block
            chain = sequence.chain.extend_to(sequence.tokens)
            hit = self._cache.match(chain, tokens=len(sequence.tokens))
            rest = chain[hit.tokens // self._settings.block_tokens :]
            sequence.awaited = (
                rest[0] if rest and hit.tokens + self._settings.block_tokens < len(sequence.tokens) else None
            )
            if sequence.awaited in self._in_flight:
                continue
            if may_start(self._rules, self._cache.pools, self._running.values(), sequence, hit) is not None:
                return  # those behind must not overtake, or a long prompt might wait for ever
            self._start(sequence, hit)
            self._in_flight.claim(sequence.request.id, rest)

    def _plan(self) -> list[Slice]:
        running = self._running.values()
        return plan_step(running, step_tokens=self._settings.step_tokens, block_tokens=self._settings.block_tokens)

    def _reserve(self, plan: list[Slice]) -> list[Slice]:
        """Allocates blocks, oldest sequence first; takes them from the newest when there are too few."""
        for sequence, tokens in plan:
            end = sequence.computed + tokens
            while sequence.request.id in self._running and not sequence.table.can_grow(end):
                self._preempt(max(self._running.values(), key=lambda other: other.turn))
            if sequence.request.id in self._running:
                sequence.table.grow(end)
        return [piece for piece in plan if piece.sequence.request.id in self._running]

    def _compute(self, plan: Seq[Slice]) -> Seq[Drawn | None] | None:
        try:
            draws = self._backend.run(tuple(sequence.chunk(tokens) for sequence, tokens in plan))
        except CapacityError as error:
            self._memory_short = True
            self._counters.out_of_memory += 1
            if len(plan) == 1:
                self._fail(plan[0].sequence, f"out of memory: {error}")
            else:
                self._preempt(plan[-1].sequence)
        except BackendError as error:
            for sequence, _ in plan:
                self._fail(sequence, str(error))
        else:
            self._memory_short = False
            return draws
        return None

    def _commit(self, plan: Seq[Slice]) -> None:
        for sequence, tokens in plan:
            work = sequence.advance(tokens, self._settings.block_tokens)
            self._counters.tokens_prompt_computed += work.prompt
            self._counters.tokens_recomputed += work.again
            self._in_flight.settle(sequence.request.id, work.blocks)

    def _hand_out(self, plan: Seq[Slice], draws: Seq[Drawn | None]) -> None:
        for (sequence, _), drawn in zip(plan, draws, strict=True):
            if drawn is None:
                continue
            self._counters.tokens_output += 1
            reason = sequence.append(drawn)
            self._send(
                TokenDrawn(request_id=sequence.request.id, token=drawn.token, logprob=drawn.logprob, top=drawn.top)
            )
            if reason is not None:
                self._finish(sequence, reason)

    # What ends or interrupts a sequence

    def _start(self, sequence: Sequence, hit: Hit) -> None:
        self._waiting.remove(sequence)
        self._turns += 1
        self._counters.tokens_prompt_cached += sequence.start(hit, self._turns)
        self._running[sequence.request.id] = sequence
        if sequence.preemptions == 0:
            event = Admitted(request_id=sequence.request.id, tokens_cached=hit.tokens, prefix_end=hit.end)
            self._send(event)

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's blocks; it will be resumed, before those who never ran, by recomputing."""
        self._counters.preemptions += 1
        sequence.preemptions += 1
        self._leave(sequence)
        self._waiting.appendleft(sequence)

    def _end_early(self, request_id: RequestId, reason: FinishReason) -> None:
        sequence = self._running.get(request_id) or next((s for s in self._waiting if s.request.id == request_id), None)
        if sequence is not None:
            self._finish(sequence, reason)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if reason == "abort":
            self._counters.aborts += 1
        else:
            self._counters.finished += 1
        self._end(
            sequence,
            Finished(
                request_id=sequence.request.id,
                reason=reason,
                tokens_prompt=Tokens(len(sequence.request.prompt)),
                tokens_cached=Tokens(sequence.tokens_cached),
                tokens_output=Tokens(sequence.tokens_output),
                preemptions=sequence.preemptions,
            ),
        )

    def _fail(self, sequence: Sequence, message: str) -> None:
        self._counters.failures += 1
        self._end(sequence, Failed(request_id=sequence.request.id, message=message))

    def _end(self, sequence: Sequence, event: Event) -> None:
        if sequence.request.id in self._running:
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        self._send(event)
        del self._deliver[sequence.request.id]

    def _leave(self, sequence: Sequence) -> None:
        del self._running[sequence.request.id]
        self._in_flight.drop(sequence.request.id)
        sequence.stop()

    def _send(self, event: Event) -> None:
        self._deliver[event.request_id](event)
