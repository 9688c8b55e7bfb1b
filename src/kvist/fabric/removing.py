"""Removes what an operator wants gone, from books and tier, a few records at a time.

Law: the lock is held for a few records, never for all; what could not be removed in time is still there, and told.
"""

from collections.abc import Sequence

from kvist.base.errors import TierError
from kvist.blocks.keys import TenantTag
from kvist.fabric.control import Fabric
from kvist.fabric.jobs import Changed, DeleteJob, Report
from kvist.fabric.messages import Ticket
from kvist.fabric.orders import BATCH, Orders
from kvist.fabric.outcome import Outcome
from kvist.fabric.tier_state import TierState
from kvist.tiers.ports import Address

_DELETIONS = 4 * BATCH
"""Records that are waited for at once."""


class Removing:
    """Removals from one fabric. May be used from several threads at once."""

    def __init__(self, fabric: Fabric, orders: Orders) -> None:
        """Acts on this fabric."""
        self._fabric = fabric
        self._orders = orders

    def remove(self, state: TierState, addresses: Sequence[Address], until_s: float) -> Outcome:
        """Removes records, pinned or not; what is being read goes when that ends."""
        outcome = Outcome()
        for first in range(0, len(addresses), _DELETIONS):
            some = addresses[first : first + _DELETIONS]
            outcome += (
                self._remove_keyed(state, some, until_s) if state.book is None else self._go(state, some, until_s)
            )
            if outcome.left or self._orders.left_s(until_s) <= 0:
                return outcome + Outcome(left=max(0, len(addresses) - first - _DELETIONS))
        return outcome

    def purge(self, state: TierState, tenant: TenantTag | None, until_s: float) -> Outcome:
        """Removes all that a tier has, or has of one tenant, and what is on its way there."""
        with self._fabric.inside() as inside:
            inside.storing.refuse(state, tenant)
            coming = inside.writing.running_of(state, tenant)
            if state.book is not None:
                for address in coming:  # these go when they are acknowledged
                    inside.writing.owe(state, state.book.remove(address.key))
        # What is being written to a keyed tier is deleted behind it, in the same lane.
        outcome = Outcome() if state.book is not None else self.remove(state, coming, until_s)
        outcome = Outcome(done=outcome.done, left=outcome.left)
        try:
            for part in self._orders.parts(state, tenant, until_s, _DELETIONS):
                if outcome.left or self._orders.left_s(until_s) <= 0:
                    outcome += Outcome(left=len(part))
                    if state.book is None:
                        break  # how many there are, nobody knows
                else:
                    outcome += self.remove(state, [entry.address for entry in part], until_s)
        except TierError:
            return outcome + Outcome(left=1)
        return outcome

    def _go(self, state: TierState, addresses: Sequence[Address], until_s: float) -> Outcome:
        """Removes from the books, and waits for the tier."""
        assert state.book is not None, f"{state.name} keeps no books here"
        for first in range(0, len(addresses), BATCH):
            with self._fabric.inside() as inside:
                for address in addresses[first : first + BATCH]:
                    inside.writing.owe(state, state.book.remove(address.key))
        self._orders.deleted(state, until_s)
        with self._fabric.inside():
            left = sum(address in state.undeleted for address in addresses)
        return Outcome(done=len(addresses) - left, left=left)

    def _remove_keyed(self, state: TierState, addresses: Sequence[Address], until_s: float) -> Outcome:
        def removed(report: Report) -> None:
            if isinstance(report, Changed):
                state.tally.purged += sum(report.present)
                for address in addresses:
                    state.known.discard(address.key)

        def job(ticket: Ticket) -> DeleteJob:
            return DeleteJob(ticket=ticket, tier=state.name, addresses=tuple(addresses))

        try:
            report = self._orders.ask(state, job, self._orders.left_s(until_s), removed)
        except TierError:
            return Outcome(left=len(addresses))
        assert isinstance(report, Changed), f"{report} answers no deletion"
        with self._fabric.inside():
            removed(report)
        gone = sum(report.present)
        return Outcome(done=gone, absent=len(addresses) - gone)
