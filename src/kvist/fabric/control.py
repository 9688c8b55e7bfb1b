"""The engine's face of everything below it: ask, plan, load, land; offer, store.

One lock; no I/O, no copies, nothing that blocks but `wait` and `close`. Safe to call from any thread; movers report
into it.

    begin ─▶ is_answered ─▶ plan ─▶ load ─▶ (landed ─▶ taken)* ─▶ drop        drop at any time, as often as you like
    offer ─▶ Room ─▶ store | withdraw
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvist.base.clock import Calendar, Clock
from kvist.base.errors import ConfigError
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import format_bytes
from kvist.blocks.keys import BlockKey, Namespace
from kvist.fabric.asking import Asking, Inquiry
from kvist.fabric.desk import Desk
from kvist.fabric.dispatch import Dispatch
from kvist.fabric.jobs import Report
from kvist.fabric.loading import Loading
from kvist.fabric.messages import (
    Declined,
    FabricStatistics,
    Landed,
    LoadState,
    Offer,
    Plan,
    Query,
    Room,
    Ticket,
)
from kvist.fabric.parcels import Parcels
from kvist.fabric.planning import Moment, Planning
from kvist.fabric.ports import Carrier
from kvist.fabric.reading import Reading
from kvist.fabric.settings import FabricSettings
from kvist.fabric.staging import Staging
from kvist.fabric.storing import Storing
from kvist.fabric.tier_state import TierState
from kvist.fabric.writing import Writing

_EXPIRY_S = 1.0
"""How often the books are looked through for what has expired."""

_EXPIRIES = 64
"""Records that expire in one turn; the others in the next ones."""


class _Asked:
    """What control remembers of a ticket until it is dropped."""

    __slots__ = ("inquiry", "is_counted", "query")

    def __init__(self, query: Query, inquiry: Inquiry) -> None:
        self.query = query
        self.inquiry = inquiry
        self.is_counted = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The parts of control."""

    desk: Desk
    writing: Writing
    storing: Storing
    loading: Loading


class Fabric:
    """Decides what is kept, where, and what is loaded; moves nothing itself.

    Attributes:
        on_change: called without the lock, from a mover's thread, after anything that a waiting engine might want to
            know: a question answered, a piece landed, a load failed, staging freed. Must be short and must not raise.
    """

    def __init__(self, settings: FabricSettings, movers: Carrier, clock: Clock, calendar: Calendar) -> None:
        """Binds control to its movers and starts them.

        Raises:
            ConfigError: there are two tiers of one name, or staging has no room for a single record.
        """
        self.on_change: Callable[[], None] | None = None
        self._settings = settings
        self._movers = movers
        self._lock = threading.Condition(threading.Lock())
        self._changes = self._changes_seen = 0
        self._expiry_s = float("-inf")
        self._asked: dict[Ticket, _Asked] = {}
        self._desk = _desk(settings, movers, clock, calendar)
        self._writing = Writing(self._desk)
        self._storing = Storing(self._desk, self._writing)
        self._loading = Loading(self._desk, Reading(self._desk, self._writing))
        self._asking = Asking(self._desk)
        self._planning = Planning(settings, self._desk.tiers)
        movers.start(self._report)

    # ---- from tiers to the engine

    def begin(self, query: Query) -> Ticket:
        """Asks the keyed tiers about a sequence, in one batched question each; cheap where there are none.

        The ticket must be given to `drop` in the end, whatever became of it.
        """
        limit = max(0, query.tokens - 1) // self._settings.block_tokens
        chain = tuple(query.chain[:limit])  # a copy: the caller's grows
        kept = Query(tenant=query.tenant, chain=chain, tokens=query.tokens)
        with self._turn():
            ticket = self._desk.dispatch.new_ticket()
            at = self._moment()
            inquiry = self._asking.ask(query.tenant, chain, at.monotonic_s, at.unix_s)
            self._asked[ticket] = _Asked(kept, inquiry)
            return ticket

    def is_answered(self, ticket: Ticket) -> bool:
        """Whether `plan` has nothing more to wait for: no question is open, or its deadline has passed."""
        with self._turn():
            return self._asking.is_answered(self._asked[ticket].inquiry, self._desk.clock.now_s())

    def plan(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:
        """Says how the sequence should begin; may be repeated, and is counted once. Holds nothing.

        Args:
            ticket: from `begin`.
            resident: `[group][index]`: which blocks of the chain G1 has; shorter lists end with False.
        """
        with self._turn():
            asked = self._asked[ticket]
            is_first, asked.is_counted = not asked.is_counted, True
            return self._planning.plan(asked.query, asked.inquiry, resident, self._moment(), is_first=is_first)

    def foresee(self, ticket: Ticket, resident: Sequence[Sequence[bool]]) -> Plan:
        """What `plan` would say, for whoever wants to know and not to load: nothing is counted or spent."""
        with self._turn():
            asked = self._asked[ticket]
            return self._planning.foresee(asked.query, asked.inquiry, resident, self._moment())

    def load(self, ticket: Ticket, plan: Plan) -> None:
        """Begins to load what the plan wants; at most once per ticket."""
        with self._turn():
            asked = self._asked[ticket]
            self._loading.begin(ticket, asked.query, plan, is_void=asked.inquiry.is_void)

    def landed(self, ticket: Ticket) -> Sequence[Landed]:
        """Pieces that have landed since the last call, in no particular order; each is told once."""
        with self._turn():
            return self._loading.landed(ticket)

    def taken(self, ticket: Ticket, pieces: Sequence[Landed]) -> None:
        """The engine has copied these pieces and looks at their buffers no more."""
        with self._turn():
            self._loading.taken(ticket, pieces)

    def state(self, ticket: Ticket) -> LoadState:
        """How a load is doing.

        "complete": everything landed and was taken. "failed": more will not come, or not in time, and what came was
        taken. Until then "loading". A ticket that loads nothing is complete.
        """
        with self._turn():
            return self._loading.state(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Forgets a ticket in whatever state; unknown ones are ignored. Staging under I/O stays until that returns."""
        with self._turn():
            asked = self._asked.pop(ticket, None)
            if asked is not None:
                self._asking.forget(asked.inquiry, self._desk.clock.now_s())
            self._loading.drop(ticket)

    # ---- from the engine to tiers

    def offer(self, offer: Offer) -> Room | Declined:
        """Asks for room to copy a block to, which is then to be stored in every tier that should have it."""
        with self._turn():
            return self._storing.offer(offer)

    def store(self, rooms: Sequence[Room]) -> None:
        """The payloads lie in their rooms: begin to write them. The rooms are no longer the caller's."""
        with self._turn():
            self._storing.store(rooms)

    def withdraw(self, room: Room) -> None:
        """Gives back a room that was not stored."""
        with self._turn():
            self._storing.withdraw(room)

    def has_copy(self, group: GroupId, block_hash: BlockHash) -> bool:
        """Whether some tier has the block, as far as control knows; about a microsecond."""
        key = BlockKey(self._desk.namespace, group, "prefix", block_hash)
        now_unix_s = self._desk.calendar.now_unix_s()
        with self._lock:
            return any(tier.has(key, now_unix_s) for tier in self._desk.tiers)

    def learn_prefill(self, start: int, end: int, seconds: float) -> None:
        """A step that did nothing but compute tokens [start, end) of one sequence took so long."""
        with self._lock:
            self._planning.learn_prefill(start, end, seconds)

    # ---- a change of the world

    def renew(self, namespace: Namespace) -> None:
        """From now on everything is asked, planned, loaded and stored in another namespace, one that never was.

        Tickets begun before find nothing any more: their plans want nothing, their loads have failed as soon as what
        was handed over is taken. Rooms given out before are dropped when they are stored. What the tiers have stays
        there, until it is evicted or somebody comes back with its namespace.
        """
        assert namespace != self._desk.namespace, f"{namespace.hex()} is what it was before"
        with self._turn():
            self._desk.namespace = namespace
            for asked in self._asked.values():
                self._asking.void(asked.inquiry, self._desk.clock.now_s())
            self._loading.void()
            for tier in self._desk.tiers:
                tier.known.clear()
            self._changes += 1
            self._lock.notify_all()

    # ---- waiting

    def next_deadline_s(self) -> float | None:
        """When, by the monotonic clock, the next open question or running load is late; None: nothing waits."""
        with self._lock:
            questions = (
                question.deadline_s
                for asked in self._asked.values()
                for question in asked.inquiry.questions.values()
                if question.open
            )
            times = [*questions, self._loading.next_deadline_s()]
            return min((time for time in times if time is not None), default=None)

    def wait(self, timeout_s: float) -> bool:
        """Sleeps until something has changed since the last `wait`, or so long; whether something has."""
        with self._lock:
            self._lock.wait_for(lambda: self._changes > self._changes_seen, timeout_s)
            changed, self._changes_seen = self._changes > self._changes_seen, self._changes
            return changed

    def close(self, timeout_s: float) -> bool:
        """Lets running stores and deletions end, at most so long, then ends the movers; whether all ended in time."""
        until_s = self._desk.clock.now_s() + timeout_s
        with self._lock:
            self._storing.is_closing = True
            for tier in self._desk.tiers:
                self._writing.flush(tier)
            quiet = self._lock.wait_for(self._is_quiet, timeout_s)
        return self._movers.close(max(0.0, until_s - self._desk.clock.now_s())) and quiet

    def _is_quiet(self) -> bool:
        """Whether nothing is being stored, and nothing is owed to a tier that still takes it."""
        now_s = self._desk.clock.now_s()
        owing = any(tier.undeleted and tier.writes.would_allow(now_s) for tier in self._desk.tiers)
        return not (self._storing.running or self._writing.running or owing)

    # ---- looking

    def statistics(self) -> FabricStatistics:
        """A frozen snapshot."""
        with self._lock:
            now_s = self._desk.clock.now_s()
            return FabricStatistics(
                tiers=tuple(tier.books(now_s) for tier in self._desk.tiers),
                loads_running=self._loading.running,
                stores_running=self._storing.running + self._writing.running,
                stores_dropped=self._storing.dropped,
                staging_bytes_used=self._desk.parcels.bytes_used,
                staging_bytes=self._desk.parcels.bytes_max,
            )

    def audit(self) -> None:
        """Proves that holders, staging, books and jobs agree with the live tickets.

        Raises:
            AssertionError: naming what does not add up.
        """
        with self._lock:
            jobs, loads = self._desk.dispatch.live(), self._loading.live()
            self._loading.audit(self._asked.keys(), jobs)
            self._desk.parcels.audit(jobs | loads | self._storing.live())
            for tier in self._desk.tiers:
                self._writing.audit(tier, jobs)
                if tier.book is not None:
                    tier.book.audit(jobs | loads)
                books = tier.books(self._desk.clock.now_s())
                assert books.queried == books.hit + books.miss, f"{tier.name}: {books}"
                assert 0 <= books.hit <= books.queried, f"{tier.name}: {books}"

    # ---- for operators

    @contextmanager
    def inside(self) -> Iterator[Inside]:
        """The parts, under the lock; for `kvist.fabric.administration`, which must not keep them."""
        with self._turn():
            yield Inside(desk=self._desk, writing=self._writing, storing=self._storing, loading=self._loading)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Sleeps until a report makes a condition over the parts true, or so long; whether it is true."""
        with self._lock:
            return self._lock.wait_for(condition, timeout_s)

    # ---- turns

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock, and what time alone may have changed before whoever holds it looks."""
        with self._lock:
            now_s = self._desk.clock.now_s()
            self._desk.dispatch.watch(now_s)
            self._loading.check()
            if now_s >= self._expiry_s:
                self._expiry_s = now_s + _EXPIRY_S
                self._expire()
            yield

    def _report(self, report: Report) -> None:
        """A mover has done a job."""
        with self._turn():
            self._desk.dispatch.report(report, self._desk.clock.now_s())
            self._loading.pump()
            for tier in self._desk.tiers:
                self._writing.flush(tier)
            self._changes += 1
            self._lock.notify_all()
        if self.on_change is not None:
            self.on_change()

    def _expire(self) -> None:
        now_unix_s = self._desk.calendar.now_unix_s()
        for tier in self._desk.tiers:
            if tier.book is not None:
                before = tier.book.statistics().expired
                self._writing.owe(tier, tier.book.expire(now_unix_s, _EXPIRIES))
                if tier.book.statistics().expired - before >= _EXPIRIES:
                    self._expiry_s = float("-inf")
            self._writing.flush(tier)

    def _moment(self) -> Moment:
        return Moment(monotonic_s=self._desk.clock.now_s(), unix_s=self._desk.calendar.now_unix_s())


def _desk(settings: FabricSettings, movers: Carrier, clock: Clock, calendar: Calendar) -> Desk:
    names = [each.name for each in settings.tiers]
    if len(set(names)) < len(names):
        raise ConfigError(f"two tiers have one name: {', '.join(names)}")
    dispatch = Dispatch(movers, stall_s=settings.stall_s)
    staging = Staging(settings.staging, settings.staging_bytes, extent_bytes=settings.staging_extent_bytes)
    for form in settings.forms:
        reason = staging.why_never(form.record_bytes)
        if reason is not None:
            raise ConfigError(f"staging of {format_bytes(settings.staging_bytes)} is too small: {reason}")
    share = int(settings.staging_bytes * settings.tier_share)
    tiers = [TierState(each, known_max=settings.known_max, bytes_share=share) for each in settings.tiers]
    return Desk(
        namespace=settings.namespace,
        settings=settings,
        tiers=tiers,
        by_name={tier.name: tier for tier in tiers},
        dispatch=dispatch,
        parcels=Parcels(staging, dispatch.new_ticket),
        record_bytes=[form.record_bytes for form in settings.forms],
        clock=clock,
        calendar=calendar,
    )
