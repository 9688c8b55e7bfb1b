"""Listings that have begun and not ended: a tier is gone through once, however many parts its entries are asked for in.

Whoever asks may go away, so only a few stay open; the one that was longest not asked for gives way.
"""

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from kvist.base.errors import TierUnavailableError
from kvist.fabric.jobs import ListJob
from kvist.fabric.messages import Ticket, TierName
from kvist.tiers.ports import Entry, Tier

OPEN_MAX = 8
"""Of one tier."""


class Listings:
    """Open listings by tier; those of one tier are asked for by one thread."""

    def __init__(self) -> None:
        self._open: dict[TierName, OrderedDict[Ticket, Iterator[Entry]]] = {}

    def part(self, job: ListJob, tier: Tier) -> tuple[Entry, ...]:
        """The next entries of a listing; fewer than asked for: it has ended.

        Raises:
            TierError: the tier failed, which ends the listing, or it was ended to make room for others.
        """
        there = self._open.setdefault(job.tier, OrderedDict())
        left = there.pop(job.listing, None)
        if left is None:
            if job.most == 0:
                return ()
            if job.listing != job.ticket:
                raise TierUnavailableError(f"more than {OPEN_MAX} listings at once; ask again", tier=job.tier)
            left = tier.entries(job.tenant)
        entries = tuple(islice(left, job.most))
        if 0 < job.most == len(entries):
            there[job.listing] = left
            if len(there) > OPEN_MAX:
                there.popitem(last=False)
        return entries
