"""What an operator may do with what is kept: list, pin, copy, move, purge, verify; and take over what was there before.

Runs in the caller's thread, which waits; the engine is not involved. Works in batches, so that it never holds the lock
for long and never takes more of staging than a load may. Every verb takes seconds that it may take at most; what was
not done by then is told, and nothing is left half-done.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from kvist.base.errors import ConfigError, TierError, TierTimeoutError, TierUnavailableError
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.control import Fabric, Inside
from kvist.fabric.jobs import (
    Answered,
    Broken,
    Changed,
    FindJob,
    Job,
    KeepJob,
    Listed,
    ListJob,
    Report,
    Skipped,
)
from kvist.fabric.loads import Errand
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Address, Entry

_BATCH = 64
"""Records per step."""

Progress = Callable[[int, int], None]
"""Told how many records are done, and of how many; 0 where nobody knows."""


def _quiet(done: int, of: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the records that an operator named.

    Attributes:
        done: copied, moved, verified or removed, as was asked.
        damaged, absent: found so, and taken out of the books.
        left: not done: the tier failed, had no room, or time was over.
    """

    done: int = 0
    damaged: int = 0
    absent: int = 0
    left: int = 0

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            done=self.done + other.done,
            damaged=self.damaged + other.damaged,
            absent=self.absent + other.absent,
            left=self.left + other.left,
        )


class Administration:
    """An operator's verbs over one fabric. Each may be called from any thread, several at once."""

    def __init__(self, fabric: Fabric) -> None:
        """Acts on this fabric."""
        self._fabric = fabric

    def restore(self, tier: TierName, entries: Iterable[Entry], timeout_s: float) -> Outcome:
        """Takes over what a placed tier has from before, once, before anything is stored.

        Returns:
            `done`: kept; `absent`: did not fit or was not right, and is being deleted; `left`: not deleted in time,
            which happens before the places are used.
        """
        known = list(entries)
        with self._fabric.inside() as inside:
            state = self._state(inside, tier)
            if state.book is None:
                raise ConfigError(f"{tier} keeps its own books; there is nothing to restore")
            refused = state.book.restore(known, inside.desk.calendar.now_unix_s())
            inside.writing.owe(state, refused)
        self._deleted(tier, self._until(timeout_s))
        return Outcome(done=len(known) - len(refused), absent=len(refused), left=len(state.undeleted))

    def entries(
        self,
        tier: TierName,
        *,
        tenant: TenantTag | None = None,
        first: int = 0,
        most: int = 1000,
        timeout_s: float = 30,
    ) -> Sequence[Entry]:
        """Entries [first, first + most) of a tier, in an order that stays while nothing changes.

        Raises:
            TierError: a keyed tier could not be asked in time.
        """
        with self._fabric.inside() as inside:
            state = self._state(inside, tier)
            if state.book is not None:
                return list(islice(state.book.entries(tenant), first, first + most))
        listed = self._ask(
            state, lambda ticket: ListJob(ticket=ticket, tier=tier, tenant=tenant, first=first, most=most), timeout_s
        )
        return listed.entries if isinstance(listed, Listed) else ()

    def where(self, key: BlockKey, tenant: TenantTag, timeout_s: float) -> Mapping[TierName, Entry | None]:
        """Which tiers have a record; a keyed one only says that it does.

        Raises:
            TierError: a keyed tier could not be asked in time.
        """
        copies: dict[TierName, Entry | None] = {}
        with self._fabric.inside() as inside:
            now_unix_s = inside.desk.calendar.now_unix_s()
            tiers = list(inside.desk.tiers)
            found = {tier.name: tier.book.find(key, now_unix_s) for tier in tiers if tier.book is not None}
        for tier in tiers:
            if tier.book is not None:
                entry = found[tier.name]
                if entry is not None and entry.address.tenant == tenant:
                    copies[tier.name] = entry
            elif self._is_in(tier, key, tenant, timeout_s):
                copies[tier.name] = None
        return copies

    def pin(self, tier: TierName, entries: Sequence[Entry], *, pinned: bool, timeout_s: float) -> Outcome:
        """Keeps records from being evicted, or lets them again. In a keyed tier a pinned record does not expire."""
        until_s = self._until(timeout_s)
        with self._fabric.inside() as inside:
            state = self._state(inside, tier)
            expires = inside.desk.settings.policies.retention.expires_unix_s(inside.desk.calendar.now_unix_s())
        outcome = Outcome()
        for group, batch in _batches(entries, lambda entry: entry.expires_unix_s):
            keep_s = group if state.book is not None else None if pinned else expires
            outcome += self._pin(state, batch, until_s, pinned=pinned, expires_unix_s=keep_s)
        return outcome

    def copy(
        self,
        source: TierName,
        target: TierName,
        entries: Sequence[Entry],
        timeout_s: float,
        progress: Progress = _quiet,
    ) -> Outcome:
        """Copies records from one tier to another; those that are there already count as done."""
        until_s = self._until(timeout_s)
        outcome, seen = Outcome(), 0
        for _, batch in _batches(entries, lambda entry: entry.address.tenant):
            outcome += self._read(source, target, batch, until_s)
            seen += len(batch)
            progress(seen, len(entries))
        return outcome

    def move(
        self,
        source: TierName,
        target: TierName,
        entries: Sequence[Entry],
        timeout_s: float,
        progress: Progress = _quiet,
    ) -> Outcome:
        """Copies records, and then removes those that have arrived from where they were."""
        until_s = self._until(timeout_s)
        outcome = self.copy(source, target, entries, timeout_s, progress)
        with self._fabric.inside() as inside:
            state, now_unix_s = self._state(inside, target), inside.desk.calendar.now_unix_s()
            arrived = [entry for entry in entries if state.has(entry.address.key, now_unix_s)]
        self._remove(source, arrived, until_s)
        return outcome

    def purge(self, tenant: TenantTag | None, timeout_s: float, progress: Progress = _quiet) -> Outcome:
        """Removes all records, or those of one tenant, from every tier."""
        until_s = self._until(timeout_s)
        outcome = Outcome()
        with self._fabric.inside() as inside:
            names = [tier.name for tier in inside.desk.tiers]
        for name in names:
            outcome += self._purge(name, tenant, until_s)
            progress(outcome.done, outcome.done + outcome.left)
        return outcome

    def verify(
        self, tier: TierName, *, tenant: TenantTag | None = None, timeout_s: float, progress: Progress = _quiet
    ) -> Outcome:
        """Reads every record of a tier and proves it; what is damaged or missing is taken out."""
        until_s = self._until(timeout_s)
        outcome, first = Outcome(), 0
        while batch := self.entries(tier, tenant=tenant, first=first, most=_BATCH, timeout_s=self._left_s(until_s)):
            for _, part in _batches(batch, lambda entry: entry.address.tenant):
                outcome += self._read(tier, None, part, until_s)
            progress(outcome.done + outcome.damaged + outcome.absent, 0)
            first = outcome.done + outcome.left  # what was taken out is no longer listed
            if self._left_s(until_s) <= 0:
                break
        self._deleted(tier, until_s)
        return outcome

    def remove(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Removes records from one tier, pinned or not; what is being read goes when that ends."""
        return self._remove(tier, entries, self._until(timeout_s))

    def purge_tier(self, tier: TierName, tenant: TenantTag | None, timeout_s: float) -> Outcome:
        """Removes all records of a tier, or those of one tenant; what is being written goes when that ends."""
        return self._purge(tier, tenant, self._until(timeout_s))

    def verify_entries(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Reads some records of a tier and proves them; what is damaged or missing is taken out."""
        until_s = self._until(timeout_s)
        outcome = Outcome()
        for _, batch in _batches(entries, lambda entry: entry.address.tenant):
            outcome += self._read(tier, None, batch, until_s)
        self._deleted(tier, until_s)
        return outcome

    # ---- steps

    def _deleted(self, tier: TierName, until_s: float) -> None:
        """Waits until a tier has forgotten what it must, or the time is over."""
        with self._fabric.inside() as inside:
            state = self._state(inside, tier)
            inside.writing.flush(state)
        self._fabric.until(lambda: not state.undeleted, self._left_s(until_s))

    def _read(self, source: TierName, target: TierName | None, entries: Sequence[Entry], until_s: float) -> Outcome:
        """Reads some records of one tenant, and writes them to the target if there is one."""
        with self._fabric.inside() as inside:
            to = None if target is None else self._state(inside, target)
            now_unix_s = inside.desk.calendar.now_unix_s()
            wanted = [each for each in entries if to is None or not to.has(each.address.key, now_unix_s)]
            if not wanted:
                return Outcome(done=len(entries))
            errand = Errand(target=to)
            load = inside.loading.run(errand, wanted, self._state(inside, source), until_s)
            writing = inside.writing
        keys = [entry.address.key for entry in wanted]
        self._fabric.until(
            lambda: load.is_over and (to is None or not writing.writes_any(to, keys)), self._left_s(until_s)
        )
        with self._fabric.inside() as inside:
            inside.loading.drop(load.ticket)
            now_unix_s = inside.desk.calendar.now_unix_s()
            done = errand.sound if to is None else sum(to.has(key, now_unix_s) for key in keys)
        gone = errand.damaged + errand.absent
        return Outcome(
            done=len(entries) - len(wanted) + done,
            damaged=errand.damaged,
            absent=errand.absent,
            left=max(0, len(wanted) - done - gone),
        )

    def _pin(
        self, state: TierState, entries: Sequence[Entry], until_s: float, *, pinned: bool, expires_unix_s: float | None
    ) -> Outcome:
        """Books first when pinning, the tier first when not: a record that a tier thinks pinned is so in the books."""
        addresses = tuple(entry.address for entry in entries)
        if pinned:
            self._pin_in_book(state, addresses, pinned=True)
        try:
            report = self._ask(
                state,
                lambda ticket: KeepJob(
                    ticket=ticket,
                    tier=state.name,
                    addresses=addresses,
                    pinned=pinned,
                    expires_unix_s=expires_unix_s,
                ),
                self._left_s(until_s),
            )
        except TierError:
            if pinned:
                self._pin_in_book(state, addresses, pinned=False)
            return Outcome(left=len(entries))
        if not pinned:
            self._pin_in_book(state, addresses, pinned=False)
        done = sum(report.present) if isinstance(report, Changed) else 0
        return Outcome(done=done, absent=len(entries) - done)

    def _pin_in_book(self, state: TierState, addresses: Sequence[Address], *, pinned: bool) -> None:
        if state.book is not None:
            with self._fabric.inside():
                for address in addresses:
                    state.book.pin(address.key, pinned=pinned)

    def _purge(self, name: TierName, tenant: TenantTag | None, until_s: float) -> Outcome:
        with self._fabric.inside() as inside:
            state = self._state(inside, name)
        if state.book is not None:
            entries = list(self.entries(name, tenant=tenant, most=state.book.statistics().resident))
            with self._fabric.inside() as inside:
                inside.writing.owe(state, state.book.purge(tenant))
            self._deleted(name, until_s)
            return Outcome(done=len(entries) - len(state.undeleted), left=len(state.undeleted))
        outcome = Outcome()
        while self._left_s(until_s) > 0:
            try:
                batch = self.entries(name, tenant=tenant, most=_BATCH, timeout_s=self._left_s(until_s))
            except TierError:
                return outcome + Outcome(left=1)
            if not batch:
                break
            removed = self._remove(name, batch, until_s)
            outcome += removed
            if removed.left:
                break
        return outcome

    def _remove(self, name: TierName, entries: Sequence[Entry], until_s: float) -> Outcome:
        with self._fabric.inside() as inside:
            state = self._state(inside, name)
            for entry in entries:
                if state.book is not None:
                    inside.writing.owe(state, state.book.remove(entry.address.key))
                else:
                    state.tally.purged += 1
                    state.known.discard(entry.address.key)
                    inside.writing.owe(state, (entry.address,))
        self._deleted(name, until_s)
        left = sum(entry.address in state.undeleted for entry in entries)
        return Outcome(done=len(entries) - left, left=left)

    def _is_in(self, state: TierState, key: BlockKey, tenant: TenantTag, timeout_s: float) -> bool:
        groups = ((key.group, (key.hash,)),)
        report = self._ask(
            state,
            lambda ticket: FindJob(
                ticket=ticket, tier=state.name, tenant=tenant, namespace=key.namespace, groups=groups
            ),
            timeout_s,
        )
        return isinstance(report, Answered) and report.found[0][0]

    def _ask(self, state: TierState, make_job: Callable[[Ticket], Job], timeout_s: float) -> Report:
        """Has a job done, and waits for it.

        Raises:
            TierError: it failed, or not in time.
        """
        reports: list[Report] = []
        with self._fabric.inside() as inside:
            job = make_job(inside.desk.dispatch.new_ticket())
            if not inside.desk.dispatch.send(job, state, reports.append, now_s=inside.desk.clock.now_s()):
                raise TierUnavailableError("it is left alone because it failed, or has too much to do", tier=state.name)
        if not self._fabric.until(lambda: bool(reports), timeout_s):
            with self._fabric.inside() as inside:
                inside.desk.dispatch.withdraw(job.ticket, inside.desk.clock.now_s())
            raise TierTimeoutError(f"no answer within {timeout_s:g} s", tier=state.name)
        report = reports[0]
        if isinstance(report, Broken):
            raise report.error if isinstance(report.error, TierError) else TierError(str(report.error), tier=state.name)
        if isinstance(report, Skipped):
            raise TierUnavailableError("it is closing", tier=state.name)
        return report

    @staticmethod
    def _state(inside: Inside, name: TierName) -> TierState:
        state = inside.desk.by_name.get(name)
        if state is None:
            raise ConfigError(f"there is no tier called {name!r}; there are {', '.join(inside.desk.by_name)}")
        return state

    def _until(self, timeout_s: float) -> float:
        with self._fabric.inside() as inside:
            return inside.desk.clock.now_s() + timeout_s

    def _left_s(self, until_s: float) -> float:
        with self._fabric.inside() as inside:
            return max(0.0, until_s - inside.desk.clock.now_s())


Field = TypeVar("Field")


def _batches(entries: Sequence[Entry], field: Callable[[Entry], Field]) -> Iterator[tuple[Field, list[Entry]]]:
    """Entries that share a field, in batches."""
    by_field: dict[Field, list[Entry]] = {}
    for entry in entries:
        by_field.setdefault(field(entry), []).append(entry)
    for value, group in by_field.items():
        for first in range(0, len(group), _BATCH):
            yield value, group[first : first + _BATCH]
