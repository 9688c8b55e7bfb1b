"""Does one job: bytes between shared memory and a tier, in bulk, and says what came of it.

Knows jobs, tiers and regions; knows neither queues nor threads, so that the same code runs in the movers' threads and,
with a seed, in a simulation. Whatever happens ends in a report.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import assert_never

from kvist.base.clock import Clock
from kvist.base.errors import KvistError, TierError
from kvist.blocks.form import stamp_record
from kvist.blocks.keys import BlockKey
from kvist.fabric.jobs import (
    Answered,
    Broken,
    Changed,
    DeleteJob,
    FindJob,
    Job,
    KeepJob,
    Listed,
    ListJob,
    Loaded,
    LoadJob,
    LoadOrder,
    Report,
    Skipped,
    Stamped,
    StampJob,
    StoreJob,
    Written,
)
from kvist.fabric.listings import Listings
from kvist.fabric.messages import TierName
from kvist.tiers.ports import Address, Found, Lender, Read, ReadOutcome, Tier, Write
from kvist.tiers.regions import Regions
from kvist.tiers.verified import examine, examine_lent

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a mover can touch.

    Attributes:
        tiers: by name.
        regions: shared memory.
        clock: measures how long the tiers take.
        listings: those that have begun and not ended.
    """

    tiers: Mapping[TierName, Tier]
    regions: Regions
    clock: Clock
    listings: Listings = field(default_factory=Listings)


def carry(job: Job, reach: Reach) -> Report:
    """Does a job and reports; never raises."""
    try:
        return _do(job, reach)
    except TierError as error:
        return Broken(ticket=job.ticket, error=error)
    except Exception as error:  # noqa: BLE001  the last line of defence: no job is ever without a report
        _log.exception("a mover could not do its job")
        return Broken(ticket=job.ticket, error=KvistError(f"a mover failed: {error!r}"))


def _do(job: Job, reach: Reach) -> Report:
    match job:
        case FindJob():
            return _find(job, reach)
        case LoadJob():
            return _load(job, reach)
        case StampJob():
            return _stamp(job, reach.regions)
        case StoreJob():
            return _store(job, reach)
        case DeleteJob() | KeepJob():
            return _change(job, reach.tiers[job.tier])
        case ListJob():
            return Listed(ticket=job.ticket, entries=reach.listings.part(job, reach.tiers[job.tier]))
        case _:
            assert_never(job)


def _stamp(job: StampJob, regions: Regions) -> Report:
    for buffer, header in job.orders:
        stamp_record(regions.view(buffer), header)
    return Stamped(ticket=job.ticket)


def _change(job: DeleteJob | KeepJob, tier: Tier) -> Report:
    if isinstance(job, DeleteJob):
        present = tier.delete(job.addresses)
    else:
        present = tier.keep(job.addresses, pinned=job.pinned, expires_unix_s=job.expires_unix_s)
    return Changed(ticket=job.ticket, present=tuple(present))


def _find(job: FindJob, reach: Reach) -> Report:
    addresses = [
        Address(key=BlockKey(job.namespace, group, "prefix", block_hash), tenant=job.tenant)
        for group, hashes in job.groups
        for block_hash in hashes
    ]
    begun = reach.clock.now_s()
    found = iter(reach.tiers[job.tier].find(addresses))
    seconds = reach.clock.now_s() - begun
    by_group = tuple(list(islice(found, len(hashes))) for _, hashes in job.groups)
    return Answered(ticket=job.ticket, found=by_group, seconds=seconds)


def _load(job: LoadJob, reach: Reach) -> Report:
    begun = reach.clock.now_s()
    if begun >= job.deadline_s:
        return Skipped(ticket=job.ticket)
    tier = reach.tiers[job.tier]
    if any(order.buffer is None for order in job.orders):
        outcomes = _look(job.orders, tier)
    else:
        outcomes = _read(job.orders, tier, reach.regions)
    return Loaded(ticket=job.ticket, outcomes=tuple(outcomes), seconds=reach.clock.now_s() - begun)


def _look(orders: Sequence[LoadOrder], tier: Tier) -> list[ReadOutcome]:
    assert isinstance(tier, Lender), f"{tier.name} shows no records in place"
    places = tier.lend([order.address for order in orders])
    return [examine_lent(place, order.address, order.form) for place, order in zip(places, orders, strict=True)]


def _read(orders: Sequence[LoadOrder], tier: Tier, regions: Regions) -> list[ReadOutcome]:
    views = [regions.view(order.buffer) for order in orders if order.buffer is not None]
    reads = [Read(address=order.address, into=view, form=order.form) for order, view in zip(orders, views, strict=True)]
    return [
        examine(read.into, read.address, read.form) if _is_unproven(outcome) else outcome
        for read, outcome in zip(reads, tier.read(reads), strict=True)
    ]


def _is_unproven(outcome: ReadOutcome) -> bool:
    return isinstance(outcome, Found) and outcome.header is None


def _store(job: StoreJob, reach: Reach) -> Report:
    tier = reach.tiers[job.tier]
    begun = reach.clock.now_s()
    if job.evicted:
        tier.delete(job.evicted)
    writes = [
        Write(
            address=order.address,
            record=reach.regions.view(order.buffer),
            created_unix_s=order.created_unix_s,
            expires_unix_s=order.expires_unix_s,
        )
        for order in job.orders
    ]
    outcomes = tuple(tier.write(writes)) if writes else ()
    return Written(ticket=job.ticket, outcomes=outcomes, seconds=reach.clock.now_s() - begun)
