"""The engine's step: admit, land, plan, reserve, compute, commit, hand out, offload.

Knows requests and blocks; does not know threads or tensors: one caller drives it, a backend computes, and the tiers
below take and bring what they can without ever being waited for.

Laws:
    * A sequence is in exactly one of `waiting`, `loading` and `running`; a waiting one holds no blocks.
    * Whoever ends, ends through `_end`, which gives back every block and sends the last event; but when the engine
      itself cannot go on, `fail_all` sends the last events and leaves the blocks alone.
    * With overcommit 1 nobody is ever preempted for lack of blocks; with more, the oldest never is.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq

from kvist.base.errors import CapacityError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.blocks.keys import tenant_key
from kvist.blocks.prefix import Hit, PrefixCache
from kvist.engine.admission import may_start, rules_of
from kvist.engine.audit import Whereabouts, check_whereabouts
from kvist.engine.backend import Backend, BackendError
from kvist.engine.batch import Drawn
from kvist.engine.below import Below
from kvist.engine.counters import Counters, Queues
from kvist.engine.in_flight import InFlight
from kvist.engine.limits import reason_to_refuse
from kvist.engine.loading import Beginning, Loading
from kvist.engine.messages import (
    Admitted,
    EngineLimits,
    EngineStatistics,
    Event,
    Failed,
    FinishReason,
    TokenDrawn,
)
from kvist.engine.offload import STORES, Offload
from kvist.engine.request import Request
from kvist.engine.schedule import Plan, plan_of, plan_step
from kvist.engine.seats import Seats
from kvist.engine.sequence import Sequence, advance_each, sequence_of
from kvist.engine.settings import EngineSettings
from kvist.engine.sources import sources_of
from kvist.engine.standing import Standing, standing_of
from kvist.fabric.messages import FabricStatistics, Want

Deliver = Callable[[Event], None]


class EngineCore:
    """All requests of one model and the blocks they share."""

    def __init__(
        self,
        backend: Backend,
        cache: PrefixCache,
        settings: EngineSettings,
        *,
        secret: bytes,
        below: Below | None = None,
    ) -> None:
        """Binds a backend to a prefix cache.

        Args:
            backend: computes over the same blocks that `cache` hands out.
            cache: one pool per KV group.
            settings: bounds and choices.
            secret: what tenants' hashes are keyed with; equal secrets are needed only to share blocks.
            below: the tiers below G1; none by default.
        """
        below = Below() if below is None else below
        self._backend = backend
        self._cache = cache
        self._settings = settings
        self._secret = secret
        self._rules = rules_of(settings)
        self._tiers, self._time_s = below.tiers, below.time_s
        self._loading = Loading(backend, cache, below)
        self._offload = Offload(backend, cache.pools, below, settings)
        self._waiting: deque[Sequence] = deque()
        self._running: dict[RequestId, Sequence] = {}
        self._deliver: dict[RequestId, Deliver] = {}
        self._in_flight = InFlight()
        self._seats = Seats(settings.sequences_max, groups=len(cache.pools), block_tokens=settings.block_tokens)
        self._turns = 0
        self._memory_short = False
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._deliver)

    @property
    def heeds_tiers(self) -> bool:
        """Whether anything depends on what the tiers do next."""
        return bool(self._loading.tickets) or self._offload.is_waiting

    def patience_s(self) -> float | None:
        """Seconds until a step may do something although nothing happened; None: for ever."""
        deadline_s = self._loading.next_deadline_s()
        return None if deadline_s is None else max(0.0, deadline_s - self._time_s())

    def listen(self, on_change: Callable[[], None]) -> None:
        """Has this called, from any thread, whenever the tiers may have made another step worth while."""
        self._tiers.on_change = on_change

    def submit(self, request: Request, limits: EngineLimits, deliver: Deliver) -> None:
        """Queues a request, or sends its refusal."""
        # Everybody who has not ended: who is about to run was taken in with those who will wait.
        known = request.id in self._deliver or request.id == STORES
        refusal = reason_to_refuse(request, limits, live=len(self._deliver), known=known)
        if refusal is not None:
            self._counters.refusals += 1
            deliver(refusal)
            return
        sequence = sequence_of(request, self._cache, self._settings, tenant_key(self._secret, request.tenant))
        self._waiting.append(sequence)
        self._deliver[request.id] = deliver
        self._loading.ask(sequence)  # so that the answer is here when its turn comes

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
        self._loading.drop_all()
        while self._deliver:
            request_id, deliver = self._deliver.popitem()
            self._counters.failures += 1
            deliver(Failed(request_id=request_id, message=message))

    def step(self) -> bool:
        """Computes up to `step_tokens` tokens for those who run, and tells them.

        Returns:
            Whether it did anything: if not, a step is of no use before something arrives, from above or from below.
        """
        self._admit()
        landed = self._land()
        plan = self._reserve(self._plan())
        assert plan or landed or self._loading.tickets or not self.has_work, "all wait, for nothing"
        draws = self._compute(plan)
        if draws is not None:
            self._commit(plan)
            self._hand_out(plan, draws)
        self._offload.run()
        self._counters.steps += bool(plan)
        if self._settings.audits:
            self.audit()
        return landed or bool(plan)

    def statistics(self) -> EngineStatistics:
        """A snapshot of queues, pools and counters."""
        return self._counters.snapshot(
            self._settings,
            self._cache.pools,
            Queues(running=len(self._running), loading=len(self._loading), waiting=len(self._waiting)),
            stores_dropped=self._offload.dropped,
            fabric=self._tiers.statistics(),
        )

    def standing(self, tokens: Seq[TokenId], tenant: TenantId) -> Standing:
        """What G1 has of a prompt, for whoever explains; changes nothing."""
        return standing_of(self._cache, tenant_key(self._secret, tenant), tokens)

    def tier_statistics(self) -> FabricStatistics | None:
        """A snapshot of the tiers alone; may be taken from any thread."""
        return self._tiers.statistics()

    def audit(self) -> None:
        """Proves that the books of every pool balance.

        Raises:
            AssertionError: naming the block or request that does not add up.
        """
        check_whereabouts(
            self._cache,
            Whereabouts(
                live=self._deliver.keys(),
                waiting=self._waiting,
                running=self._running.values(),
                loading=self._loading,
                offload=self._offload,
                in_flight=self._in_flight,
            ),
        )

    # The steps of a step

    def _admit(self) -> None:
        if self._memory_short and self._running:
            return  # with more to compute the next step would fail again
        self._loading.look_again()
        for sequence in list(self._waiting):
            if len(self._running) + len(self._loading) >= self._settings.sequences_max:
                return
            if sequence.awaited in self._in_flight:
                continue  # somebody is computing or loading its next block
            chain = sequence.chain.extend_to(sequence.tokens)
            hit = self._cache.match(chain, tokens=len(sequence.tokens))
            rest = chain[hit.tokens // self._settings.block_tokens :]
            sequence.awaited = (
                rest[0] if rest and hit.tokens + self._settings.block_tokens < len(sequence.tokens) else None
            )
            if sequence.awaited in self._in_flight:
                continue
            if not self._has_room(sequence, hit):
                return  # those behind must not overtake, or a long prompt might wait for ever
            beginning = self._loading.beginning(sequence, chain, hit)
            if beginning is None:
                continue  # the tiers have not answered yet; they have a bounded time for that
            if not self._start(sequence, beginning):
                return
            self._in_flight.claim(sequence.request.id, rest)

    def _land(self) -> bool:
        """Copies in what was loaded; whether that changed anything."""
        if not self._loading:
            return False
        complete, failed = self._loading.land(self._settings.land_bytes_max if self._running else None)
        for load in complete:
            self._counters.loads += 1
            self._in_flight.settle(load.sequence.request.id, load.beginning.blocks_gained)
            self._run(load.sequence, load.beginning, load.served, load.bytes_loaded)
        for load in reversed(failed):  # the oldest in front
            self._counters.loads_failed += 1
            self._give_back(load.sequence)
            self._waiting.appendleft(load.sequence)
        return bool(complete or failed or self._loading.has_arrivals)

    def _plan(self) -> Plan:
        settings = self._settings
        return plan_step(self._running.values(), step_tokens=settings.step_tokens, block_tokens=settings.block_tokens)

    def _reserve(self, plan: Plan) -> Plan:
        """Allocates blocks, oldest sequence first; takes them from the newest when there are too few."""
        preemptions = self._counters.preemptions
        for sequence, count in plan:
            end = sequence.computed + count
            if end <= sequence.table.capacity:
                continue
            while sequence.request.id in self._running and not sequence.table.can_grow(end):
                if not self._offload.give_way():
                    self._preempt(max(self._holding(), key=lambda other: other.turn))
            if sequence.request.id in self._running:
                sequence.table.grow(end)
        if self._counters.preemptions == preemptions:
            return plan
        return plan_of((sequence, count) for sequence, count in plan if sequence.request.id in self._running)

    def _compute(self, plan: Plan) -> Seq[Drawn | None] | None:
        if not plan:
            return None
        began_s = self._time_s()
        try:
            draws = self._backend.run(self._seats.batch(plan))
        except CapacityError as error:
            self._memory_short = True
            self._counters.out_of_memory += 1
            if len(plan) == 1:
                self._fail(plan.sequences[0], f"out of memory: {error}")
            else:
                self._preempt(plan.sequences[-1])
        except BackendError as error:
            for sequence in plan.sequences:
                self._fail(sequence, str(error))
        else:
            self._memory_short = False
            if len(plan) == 1 and plan.counts[0] > 1:
                start = plan.sequences[0].computed
                self._tiers.learn_prefill(start, start + plan.counts[0], self._time_s() - began_s)
            return draws
        return None

    def _commit(self, plan: Plan) -> None:
        for sequence, work in advance_each(plan, self._settings.block_tokens):
            self._counters.count_computed(work.prompt, work.again)
            self._in_flight.settle(sequence.request.id, work.blocks)
            self._offload.collect(sequence, work.kept)

    def _hand_out(self, plan: Plan, draws: Seq[Drawn | None]) -> None:
        deliver = self._deliver
        self._counters.tokens_output += len(draws) - draws.count(None)
        for sequence, drawn in zip(plan.sequences, draws, strict=True):
            if drawn is None:
                continue
            reason = sequence.append(drawn)
            request_id = sequence.request.id
            deliver[request_id](TokenDrawn(request_id, drawn.token, drawn.logprob, drawn.top))
            if reason is not None:
                self._finish(sequence, reason)

    # What ends or interrupts a sequence

    def _has_room(self, sequence: Sequence, hit: Hit) -> bool:
        while may_start(self._rules, self._cache.pools, self._holding(), sequence, hit) is not None:
            # While others hold blocks, they will give them back; else what waits to be stored must not be in the way.
            if any(self._holding()) or not self._offload.give_way():
                return False
        return True

    def _start(self, sequence: Sequence, beginning: Beginning) -> bool:
        """Lets a sequence run, or load first; False when there are too few blocks to load into."""
        self._turns += 1
        try:
            sequence.take(beginning.hit, self._turns)
        except CapacityError:
            return self._offload.give_way() and self._start(sequence, beginning)
        self._waiting.remove(sequence)
        if beginning.hit.loads_count:
            self._loading.start(sequence, beginning)
        else:
            self._loading.drop(sequence.request.id)
            self._run(sequence, beginning, (), {})
        return True

    def _run(self, sequence: Sequence, beginning: Beginning, served: Seq[Want], loaded: Mapping[str, int]) -> None:
        hit, request_id = beginning.hit, sequence.request.id
        sources = sources_of(hit, served, loaded, sequence.begin(hit))
        self._counters.count_cached(sources)
        self._running[request_id] = sequence
        self._seats.seat(sequence)
        if not sequence.has_run:
            sequence.has_run = True
            self._send(
                Admitted(
                    request_id=request_id,
                    tokens_cached=hit.tokens,
                    prefix_end=hit.end,
                    sources=sources,
                    decision=beginning.decision,
                )
            )

    def _preempt(self, sequence: Sequence) -> None:
        """Takes a sequence's blocks; it will be resumed, before those who never ran, by recomputing or loading."""
        self._counters.preemptions += 1
        sequence.preemptions += 1
        self._leave(sequence)
        self._waiting.appendleft(sequence)

    def _end_early(self, request_id: RequestId, reason: FinishReason) -> None:
        sequence = next((each for each in (*self._holding(), *self._waiting) if each.request.id == request_id), None)
        if sequence is not None:
            self._finish(sequence, reason)
            self._offload.run()  # what it leaves in the cache may be gone by the end of another step

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if reason == "abort":
            self._counters.aborts += 1
        else:
            self._counters.finished += 1
        self._end(sequence, sequence.finished(reason))

    def _fail(self, sequence: Sequence, message: str) -> None:
        self._counters.failures += 1
        self._end(sequence, Failed(request_id=sequence.request.id, message=message))

    def _end(self, sequence: Sequence, event: Event) -> None:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            self._loading.drop(sequence.request.id)
        else:
            self._leave(sequence)
        self._send(event)
        del self._deliver[sequence.request.id]

    def _leave(self, sequence: Sequence) -> None:
        """Takes a sequence out of those that run or load."""
        if self._running.pop(sequence.request.id, None) is not None:
            self._seats.leave(sequence)
            sequence.asked = False  # when it comes back, the tiers may have what it lost
        self._loading.drop(sequence.request.id)
        self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._in_flight.drop(sequence.request.id)
        self._offload.collect(sequence, sequence.stop())

    def _holding(self) -> Iterator[Sequence]:
        """Everybody who holds blocks."""
        yield from self._running.values()
        yield from self._loading

    def _send(self, event: Event) -> None:
        self._deliver[event.request_id](event)
