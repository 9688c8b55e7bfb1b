"""An `EngineCore` over a `MemoryBackend`, with everything that is true of every engine checked after every step.

Knows what each request must get and what the books must say; the tests only choose what happens.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from itertools import accumulate

from fakes.backend import MemoryBackend, Truth, answer_alone
from fakes.below import DictTiers
from fakes.fabric_below import FabricTiers
from fakes.shape import VOCAB, Shape, groups_of
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockHash, BlockId, RequestId, TenantId, TokenId
from kvist.blocks.keys import namespace_of
from kvist.blocks.lifecycle import State
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.window import first_block_of_hit
from kvist.engine.backend import Backend, BackendError
from kvist.engine.below import Below
from kvist.engine.core import EngineCore
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn
from kvist.engine.request import Request
from kvist.engine.sequence import Sequence


class EngineTrial:
    """One engine and all that was asked of it.

    `around` may put something between the core and the backend, `tiers` something below it, which knows what the
    engine `before` this one was asked.

    Attributes:
        core, backend, pools: the parts.
        requests, events: by request, in the order of submission and of delivery.
        faults: runs that were told to fail.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        around: Callable[[MemoryBackend], Backend] = lambda inner: inner,
        tiers: DictTiers | FabricTiers | None = None,
        before: "EngineTrial | None" = None,
    ) -> None:
        self.shape = shape
        self.tiers = tiers
        self.truth = Truth()
        self.pools = [BlockPool(count) for count in shape.blocks]
        self.backend = MemoryBackend(
            shape.blocks, shape.windows, block_tokens=shape.block_tokens, vocab=VOCAB, truth=self.truth
        )
        windows = [group.window for group in groups_of(shape.windows)]
        cache = PrefixCache(namespace_of({}), self.pools, windows, block_tokens=shape.block_tokens)
        below = Below() if tiers is None else Below(tiers=tiers.tiers, view=tiers.view, time_s=tiers.clock.now_s)
        self.core = EngineCore(around(self.backend), cache, shape.settings, secret=b"secret", below=below)
        self.past: list[tuple[TenantId, list[TokenId]]] = [] if before is None else before.asked()
        self.requests: dict[RequestId, Request] = {}
        self.events: dict[RequestId, list[Event]] = defaultdict(list)
        self.aborted: set[RequestId] = set()
        self._queue: list[RequestId] = []
        self._contents: dict[tuple[int, BlockHash], tuple[int | None, ...]] = {}
        self._before: dict[str, int] = {}

    # What happens

    def submit(self, *requests: Request) -> None:
        """Submits requests that arrive together."""
        for request in requests:
            assert request.id not in self.requests, "a mistake of the test"
            self.requests[request.id] = request
            self.truth.add(request)
            self.core.submit(request, self.shape.limits, self._deliver)
        self.check()

    def abort(self, request_id: RequestId) -> None:
        """Aborts a request in whatever state it is; its blocks are free at once."""
        ended = self.ended(request_id)
        self.core.abort(request_id)
        assert self.ended(request_id), f"{request_id} goes on"
        if not ended:
            self.aborted.add(request_id)
        assert all(
            request_id not in pool.holders(BlockId(block)) for pool in self.pools for block in range(len(pool))
        ), f"{request_id} is gone and holds blocks"
        self.check()

    def step(self, fault: CapacityError | BackendError | None = None) -> None:
        """One step, which fails when told to."""
        assert self.core.has_work, "a mistake of the test"
        self.backend.fault = fault
        oldest = min(self.core._holding(), key=lambda sequence: sequence.turn, default=None)
        preemptions = oldest.preemptions if oldest else 0
        runs, failed, computed = self.backend.runs, self.backend.runs_failed, self.backend.computed.total()
        self._queue = self._check_queue()
        is_useful = self.core.step()
        if self.tiers is None:
            assert self.backend.runs == runs + 1, "one step is one run"
        if self.backend.runs > runs:
            assert self.backend.runs_failed > failed or self.backend.computed.total() > computed, "a step did nothing"
        assert self.backend.computed.total() - computed <= self.shape.step_tokens
        assert oldest is None or oldest.preemptions == preemptions, "the oldest was preempted"
        self.check()
        if not is_useful:
            self._wait()
        elif self.tiers is not None:
            self.tiers.tick()
        if self.backend.runs_failed == failed:
            self._check_waste()

    def _wait(self) -> None:
        """Nothing can be done before something changes below; it must be waited for, and will come in time."""
        self.backend.fault = None  # nothing ran
        assert self.core.heeds_tiers, "it sleeps, and nothing will wake it"
        patience_s = self.core.patience_s()
        assert not self.core.has_work or (patience_s is not None and patience_s > 0), "it would spin, or sleep for ever"
        self.tiers.tick()

    def drain(self) -> None:
        """Steps until nothing is left to do, within the bound that the law of the oldest gives.

        The oldest running sequence is never preempted and computes a token in each step that succeeds; when memory
        is short each success may take as many tries as there are sequences.
        """
        live = [request for request in self.requests.values() if not self.ended(request.id)]
        tries = 1 if self.backend.batch_tokens_max is None else self.shape.sequences_max + 1
        if self.tiers is not None:  # each may wait once for an answer, and once for a load
            tries += self.tiers.manners.answer_s + self.tiers.manners.patience_s
        for _ in range(tries * sum(len(request.prompt) + request.output_tokens_max for request in live)):
            if self.core.has_work:
                self.step()
        assert not self.core.has_work, "requests wait for ever"

    # What must be true

    def ended(self, request_id: RequestId) -> bool:
        """Whether a request got its last event."""
        return any(isinstance(event, Finished | Failed | Refused) for event in self.events[request_id])

    def asked(self, *, but: RequestId | None = None) -> list[tuple[TenantId, list[TokenId]]]:
        """Tenant and tokens of every request, but perhaps one, here and before."""
        tokens = ((name, each) for name, each in self.truth.tokens.items() if name != but)
        return [*self.past, *((self.requests[name].tenant, each) for name, each in tokens)]

    def answer(self, request_id: RequestId) -> list[TokenId]:
        """The tokens delivered."""
        return [event.token for event in self.events[request_id] if isinstance(event, TokenDrawn)]

    def finished(self) -> list[Finished]:
        """The last events of the requests that ended by themselves."""
        last = [events[-1] for events in self.events.values() if events]
        return [event for event in last if isinstance(event, Finished) and event.reason != "abort"]

    def check(self) -> None:
        """What is true between any two calls of the core."""
        self.core.audit()
        if self.tiers is not None:
            self.tiers.check_tickets(set(self.core._loading.tickets.values()))
        now = {name: value for name, value in asdict(self.core.statistics()).items() if isinstance(value, int)}
        events = {name: value for name, value in now.items() if name not in {"running", "loading", "waiting"}}
        fallen = {
            name: (self._before[name], events[name]) for name in self._before if events[name] < self._before[name]
        }
        assert not fallen, f"counters went back: {fallen}"
        self._before = events
        if self.shape.overcommit == 1.0:
            assert now["preemptions"] <= now["out_of_memory"], "preempted with overcommit 1 and enough memory"
            self._check_claims()
        self._check_contents()
        for sequence in self.core._holding():
            most = self._peak(sequence)
            held = sequence.table.held_counts()
            assert all(h <= m for h, m in zip(held, most, strict=True)), f"{held} blocks held, {most} promised"

    def check_ended(self) -> None:
        """What is true once every request has ended."""
        statistics = self.core.statistics()
        assert (statistics.running, statistics.loading, statistics.waiting) == (0, 0, 0)
        if self.tiers is not None:
            while self.core.heeds_tiers:
                self.tiers.tick()
                self.core.step()
            self.tiers.check_left()
        statistics = self.core.statistics()
        for counts, pool in zip(statistics.blocks, self.pools, strict=True):
            assert (counts.used, counts.cached + counts.free) == (0, len(pool)), f"{counts} of {len(pool)}"
        for request in self.requests.values():
            self._check_story(request)
        self._check_totals()

    def _deliver(self, event: Event) -> None:
        request_id = event.request_id
        assert not self.ended(request_id), f"{event} after the last event"
        if isinstance(event, Admitted):
            assert not self.events[request_id], f"{event} comes first or not at all"
            self._check_admitted(event)
        elif isinstance(event, TokenDrawn):
            assert self.events[request_id], f"{event} before admission"
        self.events[request_id].append(event)

    def _check_admitted(self, event: Admitted) -> None:
        """A hit is possible, and nobody was overtaken but those who wait for a block that is being computed."""
        request = self.requests[event.request_id]
        assert event.tokens_cached % self.shape.block_tokens == 0
        assert event.tokens_cached < len(request.prompt)
        if event.tokens_cached:
            assert any(
                tokens[: event.tokens_cached] == list(request.prompt[: event.tokens_cached])
                for tenant, tokens in self.asked(but=request.id)
                if tenant == request.tenant
            ), f"{event}: no other request of the tenant begins like that"
        assert sum(source.tokens for source in event.sources) == event.tokens_cached
        if request.id not in self._queue:
            return  # its turn came when it began to load
        waiting = {sequence.request.id: sequence for sequence in self.core._waiting}
        for ahead in self._queue[: self._queue.index(request.id)]:
            ticket = self.core._loading.tickets.get(ahead)
            is_unanswered = ticket is not None and not self.tiers.tiers.is_answered(ticket)
            if ahead in waiting and not is_unanswered:
                assert waiting[ahead].awaited in self.core._in_flight, f"{request.id} overtakes {ahead}"

    def _check_queue(self) -> list[RequestId]:
        """Who waits, first to last: those who held blocks before the others, who stand in the order of arrival."""
        waiting, order = list(self.core._waiting), list(self.requests)
        fresh = [sequence.request.id for sequence in waiting if not sequence.turn]
        assert fresh == sorted(fresh, key=order.index), f"{fresh} arrived in another order"
        ids = [sequence.request.id for sequence in waiting]
        assert ids[len(ids) - len(fresh) :] == fresh, f"{ids}: not {fresh} in the end"
        return ids

    def _peak(self, sequence: Sequence) -> list[int]:
        """Most blocks that a sequence holds from now on, by group."""
        rules = self.shape.rules
        return rules.peak(sequence.tokens_bound, min(rules.step_tokens, max(1, sequence.remaining)))

    def _check_claims(self) -> None:
        """What the running may still ask for is there; a window's blocks may be shared today and not tomorrow."""
        for group, pool in enumerate(self.pools):
            running = list(self.core._holding())
            peaks = sum(self._peak(sequence)[group] for sequence in running)
            held = sum(sequence.table.held_counts()[group] for sequence in running)
            if self.shape.windows[group] is None:
                assert peaks - held <= pool.available, (
                    f"group {group}: {peaks} promised, {held} held, {pool.available} left"
                )
            else:
                assert peaks <= len(pool), f"group {group}: {peaks} promised of {len(pool)}"

    def _check_contents(self) -> None:
        """A sealed block holds what its hash says, from the first time that hash is seen to the last."""
        for group, pool in enumerate(self.pools):
            for block in map(BlockId, range(len(pool))):
                block_hash = pool.hash(block)
                if block_hash is not None:
                    content = tuple(self.backend.memory[group][block])
                    first = self._contents.setdefault((group, block_hash), content)
                    assert content == first, f"block {block} of group {group} changed from {first} to {content}"
                    assert None not in content, f"block {block} of group {group} was sealed with holes: {content}"

    def _check_waste(self) -> None:
        """A running sequence holds at most one partly filled block per group, and nothing that it has passed."""
        size = self.shape.block_tokens
        for sequence in self.core._running.values():
            for group, held in enumerate(sequence.table.held()):
                pool, window = self.pools[group], groups_of(self.shape.windows)[group].window
                assert sum(pool.state(block) is State.FILLING for block in held) <= 1
                first = first_block_of_hit(sequence.computed // size * size, window, size)
                assert len(held) == -(-sequence.computed // size) - first, f"{sequence.request.id} holds {held}"

    def _check_story(self, request: Request) -> None:
        """A request got its events in the promised order and the answer it would have got alone."""
        events, alone = self.events[request.id], answer_alone(request, VOCAB)
        last, answer = events[-1], self.answer(request.id)
        assert isinstance(last, Finished | Failed | Refused), f"{request.id} was left with {events}"
        if not isinstance(last, Finished):
            assert answer == alone[: len(answer)], f"{request.id}: {answer} instead of {alone}"
            assert not isinstance(last, Refused) or len(events) == 1
            return
        assert last.tokens_prompt == len(request.prompt)
        assert last.tokens_output == len(answer)
        assert (last.reason == "abort") == (request.id in self.aborted)
        if last.reason == "abort":
            assert answer == alone[: len(answer)], f"{request.id}: {answer} instead of {alone}"
            return
        assert answer == alone, f"{request.id}: {answer} instead of {alone}"
        assert last.reason == ("stop" if answer[-1] in request.stop_tokens else "length")
        computed = sum(self.backend.computed[request.id, position] > 0 for position in range(last.tokens_prompt))
        assert last.tokens_prompt <= computed + last.tokens_cached
        if not last.preemptions:
            assert last.tokens_prompt == computed + last.tokens_cached, f"{last} and {computed} computed"

    def _check_totals(self) -> None:
        """The totals are the sums of what each request was told, each token counted once."""
        statistics, finished = self.core.statistics(), self.finished()
        last = [events[-1] for events in self.events.values()]
        assert statistics.finished == len(finished)
        assert statistics.aborts == len(self.aborted)
        assert statistics.refusals == sum(isinstance(event, Refused) for event in last)
        assert statistics.failures == sum(isinstance(event, Failed) for event in last)
        assert statistics.tokens_output == sum(len(self.answer(name)) for name in self.requests)
        assert statistics.steps == self.backend.runs
        assert sum(tokens for _, tokens in statistics.tokens_by_tier) == statistics.tokens_prompt_cached
        assert self._computed_again() <= statistics.tokens_recomputed
        if not statistics.preemptions:
            assert statistics.tokens_recomputed == 0
            assert statistics.tokens_prompt_cached == sum(
                self._cached_at_admission(events) for events in self.events.values()
            )
            assert statistics.tokens_prompt_computed == sum(
                count for (name, position), count in self.backend.computed.items() if position < self._prompt(name)
            )
        if len(finished) + statistics.refusals == len(self.requests):
            assert statistics.tokens_prompt_cached == sum(event.tokens_cached for event in finished)
            prompts = sum(event.tokens_prompt for event in finished)
            assert statistics.tokens_prompt_cached + statistics.tokens_prompt_computed == prompts

    def _computed_again(self) -> int:
        """Tokens of chunks below where an earlier chunk of the same request had ended."""
        again = 0
        for spans in self.backend.spans.values():
            ends = [0, *accumulate((start + tokens for start, tokens in spans), max)]
            again += sum(
                max(0, min(end, start + tokens) - start) for end, (start, tokens) in zip(ends, spans, strict=False)
            )
        return again

    def _prompt(self, request_id: RequestId) -> int:
        return len(self.requests[request_id].prompt)

    def _cached_at_admission(self, events: list[Event]) -> int:
        return sum(event.tokens_cached for event in events if isinstance(event, Admitted))
