"""Proves that everybody who holds something is alive, and that everybody alive is in one place.

Knows what the engine's parts say of themselves; changes nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass

from kvist.base.ids import RequestId
from kvist.blocks.ledger import check_pool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.in_flight import InFlight
from kvist.engine.loading import Loading
from kvist.engine.offload import STORES, Offload
from kvist.engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Who is where.

    Attributes:
        live: every request that was submitted and has not ended.
        waiting, running: sequences that wait and that run.
        loading: those that load.
        offload: what waits to be stored.
        in_flight: blocks by who will make them.
    """

    live: Collection[RequestId]
    waiting: Collection[Sequence]
    running: Collection[Sequence]
    loading: Loading
    offload: Offload
    in_flight: InFlight


def check_whereabouts(cache: PrefixCache, where: Whereabouts) -> None:
    """Compares the pools of a cache with everybody who may hold blocks.

    Raises:
        AssertionError: naming the block or request that does not add up.
    """
    holding = [*where.running, *where.loading]
    held_to_store = where.offload.held()
    for group, pool in enumerate(cache.pools):
        held = {sequence.request.id: sequence.table.held()[group] for sequence in holding}
        check_pool(pool, held | {STORES: held_to_store[group]})
    assert not any(any(sequence.table.held_counts()) for sequence in where.waiting), "a waiting request holds blocks"
    assert not any(sequence.table.awaited for sequence in where.running), "a running request is not loaded"
    assert holding or not len(where.in_flight), "blocks are in flight and nobody runs"
    ids = [sequence.request.id for sequence in (*holding, *where.waiting)]
    assert sorted(ids) == sorted(where.live), f"in no queue, or in two: {ids} against {set(where.live)}"
    seats = [sequence.seat for sequence in where.running]
    assert None not in seats, "a running request does not sit"
    assert len(set(seats)) == len(seats), f"two sit on one seat: {seats}"
    assert all(sequence.seat is None for sequence in (*where.loading, *where.waiting)), "who does not run sits"
    ran = {sequence.request.id for sequence in where.running}
    strays = where.loading.tickets.keys() - (set(where.live) - ran)
    assert not strays, f"tickets of {strays} are left"
