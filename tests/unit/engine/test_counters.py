from dataclasses import fields

import pytest

from fakes.shape import groups_of
from kvist.base.ids import BlockHash, RequestId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.pool import BlockPool
from kvist.engine.counters import Counters, Queues
from kvist.engine.messages import BlockCounts, EngineStatistics
from kvist.engine.settings import EngineSettings
from kvist.fabric.messages import Source

SETTINGS = EngineSettings(groups=groups_of((None,)), kv_bytes=Bytes(4096), kv_bytes_per_token=Bytes(64))
A = RequestId("A")


def hash_of(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(32, "little"))


@pytest.mark.parametrize("name", [each.name for each in fields(Counters)])
def test_each_counter_is_reported_under_its_own_name(name: str) -> None:
    counters = Counters()
    value = {"G1": 7} if name == "tokens_by_tier" else 7
    setattr(counters, name, value)
    snapshot = counters.snapshot(SETTINGS, [], Queues(running=0, loading=0, waiting=0))
    shown = {7, (("G1", 7),)}
    assert {each.name for each in fields(Counters) if getattr(snapshot, each.name) in shown} == {name}


def test_everything_but_queues_pools_and_sizes_is_a_counter() -> None:
    others = {each.name for each in fields(Queues)} | {"blocks", "evictions", "evicted_without_copy", "stores_dropped"}
    others |= {"kv_bytes", "kv_bytes_per_token", "fabric"}
    assert {each.name for each in fields(EngineStatistics)} - others == {each.name for each in fields(Counters)}


def test_blocks_are_used_cached_or_free() -> None:
    one, two = BlockPool(5), BlockPool(1)
    blocks = [one.allocate(A) for _ in range(3)]
    for block in blocks[:2]:
        one.seal(block, A, hash_of(block))
    one.release(blocks[0], A)
    for number in (8, 9):
        two.release(two.seal(two.allocate(A), A, hash_of(number)), A)
    snapshot = Counters().snapshot(SETTINGS, [one, two], Queues(running=1, loading=3, waiting=2))
    assert snapshot.blocks == (BlockCounts(used=2, cached=1, free=2), BlockCounts(used=0, cached=1, free=0))
    assert (snapshot.running, snapshot.loading, snapshot.waiting, snapshot.evictions) == (1, 3, 2, 1)
    assert snapshot.evicted_without_copy == 1
    assert (snapshot.kv_bytes, snapshot.kv_bytes_per_token) == (4096, 64)


def test_cached_tokens_are_counted_once_and_under_the_name_of_their_tier() -> None:
    counters = Counters()
    for tier, tokens in (("disk", 16), ("G1", 32), ("disk", 48)):
        counters.count_cached([Source(tier=tier, tokens=Tokens(tokens), bytes=Bytes(0))])
    snapshot = counters.snapshot(SETTINGS, [], Queues(running=0, loading=0, waiting=0))
    assert snapshot.tokens_by_tier == (("G1", 32), ("disk", 64))
    assert snapshot.tokens_prompt_cached == 96


def test_a_snapshot_stays_as_it_was() -> None:
    counters, pool = Counters(), BlockPool(2)
    before = counters.snapshot(SETTINGS, [pool], Queues(running=0, loading=0, waiting=0))
    counters.steps += 1
    pool.allocate(A)
    assert (before.steps, before.blocks[0].used) == (0, 0)
