"""vLLM's scheduler, naively, before the real scheduler's side: what it promises connectors, and what it does to them.

Requests come, wait, hit, load, compute in pieces, are preempted and aborted. The KV of every block is told by its bytes
(`fakes.vllm_workers`), so after each step it is checked that whatever was attended was what the tokens stand for.
"""

from collections.abc import Sequence
from hashlib import blake2b

from fakes.dice import Dice
from fakes.vllm_pool import Pool
from fakes.vllm_shape import Request, Shape
from fakes.vllm_workers import MIXED, Told, Workers, cell
from kvist.connectors.vllm.orders import StepOrders
from kvist.connectors.vllm.requests import EngineRequest, StepView
from kvist.connectors.vllm.scheduler import SchedulerSide


class Engine:
    """One engine; `side` decides for it, `workers` copy for it.

    Attributes:
        era: how often the weights were replaced.
        is_clean: whether all that is cached is of this era; a reset fails while somebody has blocks, as vLLM's does.
        cached, external: tokens that requests began with: found in the engine, and loaded.
    """

    def __init__(self, side: SchedulerSide, workers: Workers, shape: Shape, dice: Dice) -> None:
        self.side, self.workers, self.shape, self.dice = side, workers, shape, dice
        self.pool = Pool(shape.pool_blocks)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.era = self.cached = self.external = self.preemptions = self.finished = self.aborted = 0
        self.failed_loads = self.held = self.reliefs = self.resets_refused = 0
        self.is_clean, self._eras = True, dict[int, int]()
        self._told: set[str] = set()
        self._failed: set[str] = set()
        self._preempted: set[str] = set()

    # ---- what clients do

    def add(self, request: Request) -> None:
        """A request arrives."""
        self._hash(request)
        self.requests[request.id] = request
        self.waiting.append(request)
        self.side.arrived(self.shown(request))

    def abort(self, request: Request) -> None:
        """Its client has gone away."""
        self.aborted += 1
        waits = request.status == "parked" and request.id not in self._told
        self._told.discard(request.id)
        self._failed.discard(request.id)
        self._finish(request, waits=waits)

    def reset(self) -> None:
        """The weights are replaced: what is cached is of no use, what runs goes on as it is."""
        self.era += 1
        self.is_clean = self.pool.free == self.shape.pool_blocks - 1
        self.resets_refused += not self.is_clean
        if self.is_clean:
            self.pool.forget()

    def shown(self, request: Request) -> EngineRequest:
        """As the side sees it."""
        return EngineRequest(
            id=request.id,
            tokens=len(request.tokens),
            prompt_tokens=request.prompt,
            computed_tokens=request.computed,
            hashes=request.hashes,
            salt=request.salt,
            adapter=request.adapter,
            reads_cache=request.reads_cache,
        )

    # ---- a step

    def step(self, now_s: float) -> int:
        """Plans, computes, copies and updates; how many tokens were computed."""
        scheduled = self._schedule(now_s)
        preempted, self._preempted = frozenset(self._preempted), set()
        live = {id_: request for id_, request in self.requests.items() if request.status != "finished"}
        view = StepView(
            scheduled=dict(scheduled),
            requests=lambda id_: self.shown(live[id_]) if id_ in live else None,
            blocks_of=lambda id_: tuple(map(tuple, live[id_].tables)) if id_ in scheduled else None,
            preempted=preempted,
        )
        orders = self.side.step(view)
        self._expect(orders)
        self._compute(scheduled)
        self._check(scheduled)
        self._update(self.workers.carry_out(orders), scheduled)
        return sum(scheduled.values())

    def _schedule(self, now_s: float) -> dict[str, int]:
        scheduled: dict[str, int] = {}
        budget = self.shape.budget
        for request in list(self.running):
            tokens = min(len(request.tokens) - request.computed, budget)
            if request not in self.running or tokens <= 0:
                continue
            while request in self.running and not self._grow(request, request.computed, tokens):
                if self.side.relieve():
                    self.reliefs += 1
                    return scheduled
                self._preempt(self.running[-1])
            if request not in self.running:
                return scheduled
            scheduled[request.id] = tokens
            budget -= tokens
        if not self._preempted:
            self._admit(scheduled, budget, now_s)
        return scheduled

    def _admit(self, scheduled: dict[str, int], budget: int, now_s: float) -> None:
        for request in sorted(self.waiting, key=lambda each: not each.tables):
            if budget <= 0 or len(self.running) >= self.shape.running_max:
                return
            if request.status == "parked":
                if request.id not in self._told:
                    continue
                self._promote(request)
            beginning = (0, 0) if request.computed else self._beginning(request)
            if beginning is None:
                continue
            if not request.computed and not self._begin(request, *beginning):
                return
            if beginning[1]:
                self._park(request, *beginning, now_s)
                continue
            tokens = min(len(request.tokens) - request.computed - beginning[0], budget)
            if not self._start(request, beginning[0], tokens):
                return
            scheduled[request.id] = tokens
            budget -= tokens

    def _beginning(self, request: Request) -> tuple[int, int] | None:
        """Tokens that a request would begin with: found here, and to be loaded; None while that is not known."""
        local = self._local_hit(request)
        external, takes_steps = self.side.matched(self.shown(request), local)
        if external is None:
            return None
        external = external if request.reads_cache else 0
        assert takes_steps == (external > 0), f"{external} tokens of {request.id} are loaded in steps: {takes_steps}"
        assert local + external < len(request.tokens), f"nothing of {request.id} is left to compute"
        return local, external

    def _park(self, request: Request, local: int, external: int, now_s: float) -> None:
        assert not request.load_failed, f"{request.id} loads again after a load of it failed"
        request.external = (local, local + external)
        self.side.allocated(self.shown(request), tuple(map(tuple, request.tables)), external)
        sources = self.side.sources(request.id, external)
        assert sum(sources.values()) == external, f"{external} tokens come from {sources}"
        request.status, request.computed, request.parked_s = "parked", local + external, now_s

    def _start(self, request: Request, local: int, tokens: int) -> bool:
        """Lets a request compute so many tokens; False: there are no blocks for them."""
        if not self._grow(request, request.computed + local, tokens):
            if not request.computed:
                self._release(request)
            return False
        request.computed += local
        self.cached += local
        self.side.allocated(self.shown(request), tuple(map(tuple, request.tables)), 0)
        self.waiting.remove(request)
        request.status = "running"
        self.running.append(request)
        return True

    def _local_hit(self, request: Request) -> int:
        """The longest beginning, in whole blocks of all groups, that leaves a token and that all groups have."""
        size = self.shape.block_tokens
        if not request.reads_cache:
            return 0
        for end in range((len(request.tokens) - 1) // size * size, 0, -size):
            wanted = [
                (group, index)
                for group, (tokens, _) in enumerate(self.shape.groups)
                for index in range(self._skipped(group, end), end // tokens)
            ]
            if all(self.pool.find((group, self._name(request, group, index))) for group, index in wanted):
                return end
        return 0

    def _begin(self, request: Request, local: int, external: int) -> bool:
        """Gives a request the blocks of what it begins with; False: there are not enough."""
        end, tables, new = local + external, list[list[int | None]](), 0
        for group, (tokens, _) in enumerate(self.shape.groups):
            skipped = min(self._skipped(group, end), end // tokens)
            found = [self.pool.find((group, self._name(request, group, i))) for i in range(skipped, local // tokens)]
            assert all(found), "what was found is gone"
            missing = end // tokens - skipped - len(found)
            tables.append([0] * skipped + list(found) + [None] * missing)
            new += missing + sum(self.pool.is_free(block) for block in found if block)
        if new + (self._reserved(request, end) if external else 0) > self.pool.free:
            return False
        reused = [block for table in tables for block in table if block]
        for block in reused:
            self.pool.touch(block)
        request.tables = [[self.pool.take() if block is None else block for block in table] for table in tables]
        request.era = self.era if {self._eras[block] for block in reused} <= {self.era} else MIXED
        return True

    def _reserved(self, request: Request, end: int) -> int:
        """Blocks that those who have begun still need for their prompts, and this one behind what it begins with."""
        begun = [each for each in (*self.running, *self.waiting) if each.tables and each is not request]
        held = [(len(each.tokens), [len(table) for table in each.tables]) for each in begun]
        held.append((len(request.tokens), [end // size for size, _ in self.shape.groups]))
        return sum(
            max(0, -(-length // size) - blocks)
            for length, tables in held
            for blocks, (size, _) in zip(tables, self.shape.groups, strict=True)
        )

    def _grow(self, request: Request, begin: int, tokens: int) -> bool:
        """Gives a request blocks for more tokens, after taking those that its windows have passed."""
        end = begin + tokens
        for group in range(len(self.shape.groups)):
            for index in range(min(self._skipped(group, request.computed), len(request.tables[group]))):
                if block := request.tables[group][index]:
                    self.pool.release(block)
                    request.tables[group][index] = 0
        missing = [
            -(-end // size) - len(table) for table, (size, _) in zip(request.tables, self.shape.groups, strict=True)
        ]
        if sum(missing) > self.pool.free:
            return False
        for table, count in zip(request.tables, missing, strict=True):
            table += [self.pool.take() for _ in range(count)]
        for table, (size, _) in zip(request.tables, self.shape.groups, strict=True):
            self._eras |= dict.fromkeys(table[begin // size :], request.era)  # others may hit them in this very step
        self._cache(request, min(end, len(request.tokens)))
        return True

    def _cache(self, request: Request, end: int) -> None:
        """Full blocks of what is computed now, or was loaded, are found from now on."""
        for group, (size, _) in enumerate(self.shape.groups):
            for index in range(min(end // size, len(request.tables[group]))):
                if block := request.tables[group][index]:
                    self.pool.name(block, (group, self._name(request, group, index)))

    def _promote(self, request: Request) -> None:
        """A load is over: the request goes on from what it has."""
        assert request.id in self._told
        if request.id in self._failed and not request.computed:
            self._release(request)
        else:
            self._cache(request, request.computed)
            begin, end = request.external
            self.external += max(0, min(request.computed, end) - begin)
        self._told.discard(request.id)
        self._failed.discard(request.id)
        request.status = "waiting"

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self.running.remove(request)
        self._release(request)
        request.computed, request.status, request.load_failed = 0, "waiting", False
        self.waiting.insert(0, request)
        self._preempted.add(request.id)

    # ---- what the step computes

    def _expect(self, orders: StepOrders) -> None:
        """What the record of each load must hold, and that it goes where it belongs."""
        for load in orders.loads:
            request, group = self.requests[load.request], load.copy.group
            place = next(
                index
                for index in range(len(request.tables[group]))
                if tuple(request.tables[group][index : index + len(load.copy.blocks)]) == load.copy.blocks
            )
            begin, end = request.external
            size = self.shape.groups[group][0]
            assert begin <= place * size < end, f"{load} goes to tokens {place * size}, of [{begin}, {end})"
            self._eras |= dict.fromkeys(load.copy.blocks, self.era)
            self.workers.expected[load.copy.id] = b"".join(
                each
                for index in range(place, place + len(load.copy.blocks))
                for each in self._cells(request, group, index, self.era)
            )

    def _compute(self, scheduled: dict[str, int]) -> None:
        for id_, tokens in scheduled.items():
            request = self.requests[id_]
            end = request.computed + tokens
            for group, (size, _) in enumerate(self.shape.groups):
                for index in range(request.computed // size, -(-end // size)):
                    full = (index + 1) * size <= end
                    garbage = [b"\xdd" * 16] * self.shape.workers
                    cells = self._cells(request, group, index, request.era) if full else garbage
                    self.workers.write(request.tables[group][index], cells)

    def _check(self, scheduled: dict[str, int]) -> None:
        """Whatever a request attends to is what its tokens stand for."""
        for id_, tokens in scheduled.items():
            request = self.requests[id_]
            for group, (size, window) in enumerate(self.shape.groups):
                first = 0 if window is None else max(0, request.computed - window + 1)
                for index in range(first // size, (request.computed + tokens) // size):
                    block = request.tables[group][index]
                    assert block, f"{id_} attends to block {index} of group {group}, which is not there"
                    era = self._eras[block]
                    is_right = self.workers.read(block) == self._cells(request, group, index, era)
                    assert is_right, f"{id_} attends to a wrong block {index} of group {group}"
                    assert request.era in {era, MIXED}, f"{id_} attends to a block of another era"

    def _update(self, told: Told, scheduled: dict[str, int]) -> None:
        self._fail(told)
        for id_, tokens in scheduled.items():
            request = self.requests[id_]
            request.computed += tokens
            if request.computed == len(request.tokens):
                if len(request.tokens) >= request.until:
                    self.finished += 1
                    self._finish(request, waits=False)
                else:
                    request.tokens.append(self.dice.number(0, 9999))
                    self._hash(request)
        self.side.reported(told.report, told.finished)
        for id_ in told.finished:
            request = self.requests[id_]
            if request.status == "parked":
                assert id_ not in self._told, f"{id_} was told twice"
                self._told.add(id_)
            else:
                assert request.status == "finished", f"{id_} is {request.status}, and its load has ended"
                self._forget(request)
        for id_ in told.freed:
            assert self.requests[id_].status == "finished", f"{id_} lives, and its blocks were freed"
            self._forget(self.requests[id_])

    def _fail(self, told: Told) -> None:
        for id_ in told.failed:
            request = self.requests.get(id_)
            if request is not None and request.status == "parked":
                self._note_failed(request, 0)
        if told.invalid:
            assert len(self.shape.groups) == 1, "blocks of several groups cannot be told apart"
            for request in [each for each in self.waiting if each.status == "parked"]:
                size = self.shape.groups[0][0]
                bad = [i for i in range(-(-request.computed // size)) if request.tables[0][i] in told.invalid]
                if bad:
                    self._note_failed(request, bad[0] * size)

    def _note_failed(self, request: Request, computed: int) -> None:
        request.computed, request.load_failed = computed, True
        self._failed.add(request.id)
        self.failed_loads += 1

    # ---- ends

    def _finish(self, request: Request, *, waits: bool) -> None:
        for queue in (self.running, self.waiting):
            if request in queue:
                queue.remove(request)
        request.status = "finished"
        held = self.side.finished(self.shown(request), tuple(map(tuple, request.tables)))
        self.held += held
        assert not (held and waits), f"{request.id} is held, and waits for the end of its load"
        if not (held or waits):
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._release(request)
        del self.requests[request.id]

    def _release(self, request: Request) -> None:
        for table in request.tables:
            for block in reversed(table):
                if block:
                    self.pool.release(block)
        request.tables = []

    # ---- names and contents

    def _skipped(self, group: int, end: int) -> int:
        """Blocks before a length that no later token attends to."""
        size, window = self.shape.groups[group]
        return 0 if window is None else max(0, end - window + 1) // size

    def _hash(self, request: Request) -> None:
        size = self.shape.hash_tokens
        while (done := len(request.hashes)) < len(request.tokens) // size:
            previous = request.hashes[-1] if done else repr((request.salt, request.adapter)).encode()
            tokens = repr(request.tokens[done * size : (done + 1) * size]).encode()
            request.hashes.append(blake2b(previous + tokens, digest_size=32).digest())

    def _name(self, request: Request, group: int, index: int) -> bytes:
        size = self.shape.groups[group][0]
        return request.hashes[(index + 1) * size // self.shape.hash_tokens - 1]

    def _cells(self, request: Request, group: int, index: int, era: int) -> Sequence[bytes]:
        name = self._name(request, group, index)
        return [cell(name, group, worker, era) for worker in range(self.shape.workers)]
