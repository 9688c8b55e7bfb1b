"""What an operator may do with what is kept: list, pin, copy, move, purge, verify; and take over what was there before.

Runs in the caller's thread, which waits; the engine is not involved. Works in batches, so that it never holds the lock
for long and never takes more of staging than a load may. Every verb takes seconds that it may take at most; what was
not done by then is told, and nothing is left half-done.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from kvist.base.errors import ConfigError, TierError
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.control import Fabric
from kvist.fabric.jobs import Answered, Changed, FindJob, KeepJob, Report
from kvist.fabric.loads import Errand
from kvist.fabric.messages import TierName
from kvist.fabric.orders import BATCH, Orders, state_of
from kvist.fabric.outcome import Outcome
from kvist.fabric.removing import Removing
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Address, Entry

_PART = 1024
"""Records per part of a listing that is told as a whole."""

Progress = Callable[[int, int], None]
"""Told how many records are done, and of how many; 0 where nobody knows."""


def _quiet(done: int, of: int) -> None:
    """Tells nobody."""


class Administration:
    """An operator's verbs over one fabric. Each may be called from any thread, several at once."""

    def __init__(self, fabric: Fabric) -> None:
        """Acts on this fabric."""
        self._fabric = fabric
        self._orders = Orders(fabric)
        self._removing = Removing(fabric, self._orders)

    def restore(self, tier: TierName, entries: Iterable[Entry], timeout_s: float) -> Outcome:
        """Takes over what a placed tier has from before, once, before anything is stored.

        Returns:
            `done`: kept; `absent`: did not fit or was not right, and is being deleted; `left`: not deleted in time,
            which happens before the places are used.
        """
        known = list(entries)
        with self._fabric.inside() as inside:
            state = state_of(inside, tier)
            if state.book is None:
                raise ConfigError(f"{tier} keeps its own books; there is nothing to restore")
            refused = state.book.restore(known, inside.desk.calendar.now_unix_s())
            inside.writing.owe(state, refused)
        self._orders.deleted(state, self._orders.until(timeout_s))
        return Outcome(done=len(known) - len(refused), absent=len(refused), left=len(state.undeleted))

    def entries(
        self,
        tier: TierName,
        *,
        tenant: TenantTag | None = None,
        most: int = 1000,
        timeout_s: float = 30,
        means: Callable[[Entry], bool] = lambda _: True,
    ) -> Sequence[Entry]:
        """The first entries of a tier that are meant, in an order that stays while nothing changes.

        Of the others none is kept, however many there are.

        Raises:
            TierError: a keyed tier could not be asked in time.
        """
        state = self._orders.state(tier)
        found: list[Entry] = []
        with closing(
            self._orders.parts(state, tenant, self._orders.until(timeout_s), max(1, min(most, _PART)))
        ) as parts:
            for part in parts:
                found += filter(means, part)
                if len(found) >= most:
                    break
        return found[:most]

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
        until_s = self._orders.until(timeout_s)
        with self._fabric.inside() as inside:
            state = state_of(inside, tier)
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
        until_s = self._orders.until(timeout_s)
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
        until_s = self._orders.until(timeout_s)
        outcome, here, there = Outcome(), self._orders.state(source), self._orders.state(target)
        for first in range(0, len(entries), BATCH):
            batch = entries[first : first + BATCH]
            outcome += self.copy(source, target, batch, self._orders.left_s(until_s))
            with self._fabric.inside() as inside:
                now_unix_s = inside.desk.calendar.now_unix_s()
                arrived = [each.address for each in batch if there.has(each.address.key, now_unix_s)]
            self._removing.remove(here, arrived, until_s)
            progress(first + len(batch), len(entries))
        return outcome

    def purge(self, tenant: TenantTag | None, timeout_s: float, progress: Progress = _quiet) -> Outcome:
        """Removes all records, or those of one tenant, from every tier; the slowest first, since loads copy upwards."""
        until_s = self._orders.until(timeout_s)
        outcome = Outcome()
        with self._fabric.inside() as inside:
            tiers = list(inside.desk.tiers)
        for tier in reversed(tiers):
            outcome += self._removing.purge(tier, tenant, until_s)
            progress(outcome.done, outcome.done + outcome.left)
        return outcome

    def verify(
        self, tier: TierName, *, tenant: TenantTag | None = None, timeout_s: float, progress: Progress = _quiet
    ) -> Outcome:
        """Reads every record of a tier and proves it; what is damaged or missing is taken out."""
        until_s = self._orders.until(timeout_s)
        outcome, state = Outcome(), self._orders.state(tier)
        with closing(self._orders.parts(state, tenant, until_s)) as parts:
            for part in parts:
                for _, batch in _batches(part, lambda entry: entry.address.tenant):
                    outcome += self._read(tier, None, batch, until_s)
                progress(outcome.done + outcome.damaged + outcome.absent, 0)
                if self._orders.left_s(until_s) <= 0:
                    break
        self._orders.deleted(state, until_s)
        return outcome

    def remove(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Removes records from one tier, pinned or not; what is being read goes when that ends."""
        addresses = [entry.address for entry in entries]
        return self._removing.remove(self._orders.state(tier), addresses, self._orders.until(timeout_s))

    def purge_tier(self, tier: TierName, tenant: TenantTag | None, timeout_s: float) -> Outcome:
        """Removes all records of a tier, or those of one tenant; what is being written goes when that ends."""
        return self._removing.purge(self._orders.state(tier), tenant, self._orders.until(timeout_s))

    def verify_entries(self, tier: TierName, entries: Sequence[Entry], timeout_s: float) -> Outcome:
        """Reads some records of a tier and proves them; what is damaged or missing is taken out."""
        until_s = self._orders.until(timeout_s)
        outcome = Outcome()
        for _, batch in _batches(entries, lambda entry: entry.address.tenant):
            outcome += self._read(tier, None, batch, until_s)
        self._orders.deleted(self._orders.state(tier), until_s)
        return outcome

    # ---- steps

    def _read(self, source: TierName, target: TierName | None, entries: Sequence[Entry], until_s: float) -> Outcome:
        """Reads some records of one tenant, and writes them to the target if there is one."""
        with self._fabric.inside() as inside:
            to = None if target is None else state_of(inside, target)
            now_unix_s = inside.desk.calendar.now_unix_s()
            if to is not None and to.book is None:
                for each in entries:  # it may have lost what it once had: only what it takes now is surely there
                    to.known.discard(each.address.key)
            wanted = [each for each in entries if to is None or not to.has(each.address.key, now_unix_s)]
            if not wanted:
                return Outcome(done=len(entries))
            errand = Errand(target=to)
            load = inside.loading.run(errand, wanted, state_of(inside, source), until_s)
            writing = inside.writing
        keys = [entry.address.key for entry in wanted]
        self._fabric.until(
            lambda: load.is_over and (to is None or not writing.writes_any(to, keys)), self._orders.left_s(until_s)
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
        """Books first when pinning, the tier first when not: a record that a tier thinks pinned is so in the books.

        A tier that is late may still do it, and the books follow. One whose answer is lost may keep a pin that the
        books do not know: they learn of it when they are made anew.
        """
        addresses = tuple(entry.address for entry in entries)
        done_late: list[Report] = []

        def late(report: Report) -> None:
            if isinstance(report, Changed) and state.book is not None:
                done_late.append(report)
                for address in addresses:
                    state.book.pin(address.key, pinned=pinned)

        if pinned:
            self._pin_in_book(state, addresses, pinned=True)
        try:
            report = self._orders.ask(
                state,
                lambda ticket: KeepJob(
                    ticket=ticket,
                    tier=state.name,
                    addresses=addresses,
                    pinned=pinned,
                    expires_unix_s=expires_unix_s,
                ),
                self._orders.left_s(until_s),
                late,
            )
        except TierError:
            with self._fabric.inside():
                for entry in entries if pinned and not done_late and state.book is not None else ():
                    assert state.book is not None
                    state.book.pin(entry.address.key, pinned=entry.pinned)
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

    def _is_in(self, state: TierState, key: BlockKey, tenant: TenantTag, timeout_s: float) -> bool:
        groups = ((key.group, (key.hash,)),)
        report = self._orders.ask(
            state,
            lambda ticket: FindJob(
                ticket=ticket, tier=state.name, tenant=tenant, namespace=key.namespace, groups=groups
            ),
            timeout_s,
        )
        return isinstance(report, Answered) and report.found[0][0]


Field = TypeVar("Field")


def _batches(entries: Sequence[Entry], field: Callable[[Entry], Field]) -> Iterator[tuple[Field, list[Entry]]]:
    """Entries that share a field, in batches."""
    by_field: dict[Field, list[Entry]] = {}
    for entry in entries:
        by_field.setdefault(field(entry), []).append(entry)
    for value, group in by_field.items():
        for first in range(0, len(group), BATCH):
            yield value, group[first : first + BATCH]
