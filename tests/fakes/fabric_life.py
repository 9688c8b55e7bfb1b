"""A small engine and its tiers on virtual time, from a seed: requests come, ask, load, compute, store and go.

Time moves from event to event. Each job takes as long as the manners of its tier say, in as many threads as real movers
have, or hangs until the tier is healed. Nothing is faster or slower because of the machine the test runs on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from fakes.dice import Dice
from fakes.fabric import BLOCK_TOKENS, BLUE, RED, HandMovers, Rig, chain_of
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import TenantTag
from kvist.fabric.carry import Reach
from kvist.fabric.jobs import Job, StampJob
from kvist.fabric.messages import Offer, Plan, Room, Ticket

STEP_S = 0.01
_THREADS = {"ask": 1, "read": 2, "change": 1, "list": 1}

Takes = Callable[[Job, Dice, float], float | None]
"""Seconds that a job takes, begun at some time; None: it hangs."""


def well(job: Job, dice: Dice, now_s: float) -> float | None:
    """A tier that does what it should: some hundred microseconds a job."""
    return dice.number(1, 5) * 1e-4


class TimedMovers(HandMovers):
    """Movers whose jobs end by themselves as time goes by."""

    def __init__(self, reach: Reach, dice: Dice, takes: Takes) -> None:
        super().__init__(reach)
        self.takes = takes
        self._dice = dice
        self._clock = reach.clock
        self._order = count()
        self._ends: list[tuple[float, int, Job]] = []
        self._hung: list[Job] = []
        self._busy: dict[tuple[str, str], int] = {}

    def next_s(self) -> float:
        """When the next job ends."""
        self._fill()
        return self._ends[0][0] if self._ends else float("inf")

    def end_next(self) -> None:
        """Ends the job whose time has come."""
        _, _, job = heappop(self._ends)
        self._busy[self._lane(job)] -= 1
        self.do(job)

    def heal(self) -> None:
        """What hangs ends now."""
        for job in self._hung:
            heappush(self._ends, (self._clock.now_s(), next(self._order), job))
        self._hung.clear()

    def _fill(self) -> None:
        """Threads that are free begin what waits."""
        for lane, queue in self._jobs.items():
            threads = 1 if lane[0] == "stamp" else _THREADS[lane[1]]
            for job in [each for each in queue if each.ticket not in self._begun]:
                if self._busy.get(lane, 0) >= threads:
                    break
                self._busy[lane] = self._busy.get(lane, 0) + 1
                self.begin(job)
                now_s = self._clock.now_s()
                seconds = 1e-5 if isinstance(job, StampJob) else self.takes(job, self._dice, now_s)
                if seconds is None:
                    self._hung.append(job)
                else:
                    heappush(self._ends, (now_s + seconds, next(self._order), job))


@dataclass(slots=True)
class Request:
    """One sequence on its way."""

    chain: list[BlockHash]
    tenant: TenantTag
    ticket: Ticket
    begun_s: float
    plan: Plan | None = None
    loaded: set[int] = field(default_factory=set)
    compute_until_s: float | None = None
    waited_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """What became of requests and of their blocks."""

    finished: int = 0
    aborted: int = 0
    complete: int = 0
    failed: int = 0
    blocks_loaded: int = 0
    blocks_computed: int = 0
    stores_dropped: int = 0


class Life:
    """An engine of four sequences over a rig."""

    def __init__(
        self, seed: int, *, takes: Takes = well, sequences: int = 4, documents: int = 6, **rig: object
    ) -> None:
        self.dice = Dice(seed)
        movers: list[TimedMovers] = []

        def make(reach: Reach) -> TimedMovers:
            movers.append(TimedMovers(reach, self.dice, takes))
            return movers[0]

        self.rig = Rig(make_movers=make, **{"staging_records": 48, "tier_records": 200, **rig})
        self.movers = movers[0]
        self.fabric = self.rig.fabric
        self.tally = Tally()
        self.live: list[Request] = []
        self._sequences = sequences
        self._documents = documents
        self._unsaved: list[Offer] = []
        self._questions = count()

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.rig.clock.now_s()

    def run(self, steps: int) -> None:
        """So many steps of the engine, with all that ends meanwhile."""
        for step in range(steps):
            self._until(self.now_s + STEP_S)
            if len(self.live) < self._sequences:
                self._arrive()
            for request in list(self.live):
                self._advance(request)
            self._save()
            if step % 4 == 0:
                self.fabric.audit()

    def end(self) -> None:
        """Ends everything, healed, and proves that nothing is left."""
        self.movers.takes = well
        self.movers.heal()
        for request in self.live:
            self.fabric.drop(request.ticket)
        self.live.clear()
        self._until(self.now_s + 100.0)
        self.fabric.audit()
        statistics = self.fabric.statistics()
        left = (statistics.loads_running, statistics.stores_running, statistics.staging_bytes_used)
        assert left == (0, 0, 0), f"loads, stores, bytes of staging are left: {left}"
        for books in statistics.tiers:
            gone = books.evicted + books.expired + books.purged + books.quarantined + books.lost
            assert books.stored == books.resident + gone, books
        self.rig.close()

    def _until(self, until_s: float) -> None:
        while self.movers.next_s() <= until_s:
            self._set(self.movers.next_s())
            self.movers.end_next()
        self._set(until_s)

    def _set(self, now_s: float) -> None:
        seconds = max(0.0, now_s - self.now_s)
        self.rig.clock.advance(seconds)
        self.rig.calendar.time_unix_s += seconds

    def _arrive(self) -> None:
        """A question about a document that was perhaps asked about before."""
        tenant = self.dice.pick([BLUE, RED])
        document = chain_of(
            f"document {self.dice.number(1, self._documents)} of {tenant[:4]!r}", self.dice.number(1, 14)
        )
        question = chain_of(f"question {next(self._questions)} of {tenant[:4]!r}", self.dice.number(0, 3))
        chain = document + question
        ticket = self.rig.ask(chain, tenant=tenant)
        self.live.append(Request(chain=chain, tenant=tenant, ticket=ticket, begun_s=self.now_s))

    def _advance(self, request: Request) -> None:
        if self.dice.number(1, 40) == 1:
            self.tally.aborted += 1
            self._leave(request)
        elif request.compute_until_s is not None:
            if self.now_s >= request.compute_until_s:
                self._finish(request)
        elif request.plan is not None:
            self._take(request)
        elif self.fabric.is_answered(request.ticket):
            assert self.now_s - request.begun_s <= 0.25 + 2 * STEP_S, "a question held a request up"
            request.plan = self.rig.plan(request.ticket)
            if request.plan.wants:
                self.fabric.load(request.ticket, request.plan)
            self._take(request)

    def _take(self, request: Request) -> None:
        assert request.plan is not None
        for piece in self.rig.take(request.ticket, request.chain):
            request.loaded.add(piece.want.index)
        state = self.fabric.state(request.ticket)
        if state == "loading":
            assert self.now_s <= request.plan.deadline_s + STEP_S, "a load held a request up beyond its deadline"
            return
        if state == "complete":
            assert len(request.loaded) * BLOCK_TOKENS == request.plan.tokens, "a complete load is not complete"
            self.tally.complete += bool(request.plan.wants)
        else:
            self.tally.failed += 1
        left = len(request.chain) - len(request.loaded)
        request.compute_until_s = self.now_s + STEP_S * left

    def _finish(self, request: Request) -> None:
        self.tally.finished += 1
        self.tally.blocks_loaded += len(request.loaded)
        self.tally.blocks_computed += len(request.chain) - len(request.loaded)
        self._unsaved += [
            Offer(tenant=request.tenant, group=GroupId(0), hash=block_hash, index=index)
            for index, block_hash in enumerate(request.chain)
            if index not in request.loaded
        ]
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self.fabric.drop(request.ticket)
        self.live.remove(request)

    def _save(self) -> None:
        """Offers what was computed; what finds no room waits, up to a bound."""
        rooms, waiting = [], []
        for offer in self._unsaved:
            answer = self.fabric.offer(offer)
            if isinstance(answer, Room):
                self.rig.write(answer, offer.hash)
                rooms.append(answer)
            elif answer.reason == "busy":
                waiting.append(offer)
        self.fabric.store(rooms)
        self.tally.stores_dropped += max(0, len(waiting) - 60)
        self._unsaved = waiting[-60:]
