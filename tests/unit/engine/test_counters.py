from dataclasses import fields

import pytest

from fakes.trial import groups_of
from kvist.base.ids import BlockHash, RequestId
from kvist.base.units import Bytes
from kvist.blocks.pool import BlockPool
from kvist.engine.counters import Counters
from kvist.engine.messages import BlockCounts, EngineStatistics
from kvist.engine.settings import EngineSettings

SETTINGS = EngineSettings(groups=groups_of((None,)), kv_bytes=Bytes(4096), kv_bytes_per_token=Bytes(64))
A = RequestId("A")


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "little"))


@pytest.mark.parametrize("name", [each.name for each in fields(Counters)])
def test_each_counter_is_reported_under_its_own_name(name: str) -> None:
    counters = Counters()
    setattr(counters, name, 7)
    snapshot = counters.snapshot(SETTINGS, [], running=0, waiting=0)
    assert {each.name for each in fields(Counters) if getattr(snapshot, each.name) == 7} == {name}


def test_everything_but_queues_pools_and_sizes_is_a_counter() -> None:
    others = {"running", "waiting", "blocks", "evictions", "kv_bytes", "kv_bytes_per_token"}
    assert {each.name for each in fields(EngineStatistics)} - others == {each.name for each in fields(Counters)}


def test_blocks_are_used_cached_or_free() -> None:
    one, two = BlockPool(5), BlockPool(1)
    blocks = [one.allocate(A) for _ in range(3)]
    for block in blocks[:2]:
        one.seal(block, A, hash_of(block))
    one.release(blocks[0], A)
    for number in (8, 9):
        two.release(two.seal(two.allocate(A), A, hash_of(number)), A)
    snapshot = Counters().snapshot(SETTINGS, [one, two], running=1, waiting=2)
    assert snapshot.blocks == (BlockCounts(used=2, cached=1, free=2), BlockCounts(used=0, cached=1, free=0))
    assert (snapshot.running, snapshot.waiting, snapshot.evictions) == (1, 2, 1)
    assert (snapshot.kv_bytes, snapshot.kv_bytes_per_token) == (4096, 64)


def test_a_snapshot_stays_as_it_was() -> None:
    counters, pool = Counters(), BlockPool(2)
    before = counters.snapshot(SETTINGS, [pool], running=0, waiting=0)
    counters.steps += 1
    pool.allocate(A)
    assert (before.steps, before.blocks[0].used) == (0, 0)
