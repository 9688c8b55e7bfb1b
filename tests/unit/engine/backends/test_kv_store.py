"""The KV tensors: as many bytes as the planner says, each block apart, and missing memory missed at the start."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId
from kvist.base.units import Bytes, Tokens
from kvist.engine.backends.device import torch_dtype
from kvist.engine.backends.host_memory import TouchedMemory
from kvist.engine.backends.kv_store import KvStore
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import Dtype, KvGroup
from kvist.planner.budget import KvLimits, plan_kv
from tiny_models import tiny_configs

CPU = torch.device("cpu")


def group(*layers: int, kv_heads: int = 2, k: int = 3, v: int = 5, window: int | None = None) -> KvGroup:
    return KvGroup(
        layers=layers or (0,),
        kv_heads=kv_heads,
        head_dim_k=k,
        head_dim_v=v,
        window=None if window is None else Tokens(window),
    )


def store(*groups: KvGroup, blocks: tuple[int, ...], block_tokens: int = 4, dtype: Dtype = "float32") -> KvStore:
    return KvStore(groups, blocks, block_tokens=block_tokens, dtype=torch_dtype(dtype), device=CPU)


@settings(max_examples=examples(50))
@given(
    name=st.sampled_from(sorted(tiny_configs())),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    kv_bytes=st.integers(200_000, 5_000_000),
    block_tokens=st.sampled_from([1, 5, 16]),
)
def test_it_takes_the_bytes_that_the_planner_reckons_with(
    *, name: str, dtype: Dtype, kv_bytes: int, block_tokens: int
) -> None:
    geometry = geometry_from_config(tiny_configs()[name].to_dict())
    limits = KvLimits(
        dtype=dtype,
        block_tokens=block_tokens,
        step_tokens=64,
        sequences_max=4,
        model_tokens_max=geometry.positions_max,
        window_checkpoint_tokens=Tokens(256),
    )
    plan = plan_kv(geometry, kv_bytes, limits)
    kept = store(*geometry.groups, blocks=plan.blocks, block_tokens=block_tokens, dtype=dtype)
    assert kept.nbytes == plan.bytes_used <= kv_bytes
    tensors = [*kept.keys, *kept.values]
    assert kept.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_a_block_is_its_keys_beside_its_values_and_nobody_else_s() -> None:
    kept = store(group(0, 2), group(1, kv_heads=1, window=8), blocks=(3, 2))
    for tensors in (kept.keys, kept.values):
        for index, tensor in enumerate(tensors):
            tensor.copy_(torch.arange(tensor.numel(), dtype=torch.float32).view(tensor.shape) + 1000 * index)
    for index, count in ((0, 3), (1, 2)):
        blocks = [kept.read_block(index, BlockId(block)) for block in range(count)]
        assert blocks[0].shape == ((2, 2, 4, 8) if index == 0 else (1, 1, 4, 8))
        assert torch.equal(torch.cat(blocks, dim=2), torch.cat((kept.keys[index], kept.values[index]), dim=-1))


def test_a_block_that_was_read_is_a_copy() -> None:
    kept = store(group(), blocks=(2,))
    before = kept.read_block(0, BlockId(1))
    kept.keys[0].fill_(1)
    assert before.eq(0).all()
    before.fill_(2)
    assert kept.read_block(0, BlockId(1))[..., :3].eq(1).all()


def test_a_store_without_blocks_takes_nothing() -> None:
    assert store(group(), blocks=(0,)).nbytes == 0
    assert store(blocks=()).nbytes == 0


def test_counts_and_groups_must_match() -> None:
    for blocks in ((1,), (1, 1, 1)):
        with pytest.raises(ValueError, match="argument"):
            store(group(0), group(1), blocks=blocks)


@pytest.mark.parametrize("blocks", [10**14, 2**61, 2**63, 2**70])
def test_memory_that_is_not_there_is_missed_at_once(blocks: int) -> None:
    with pytest.raises(CapacityError, match=r"cannot allocate .* TiB of KV memory; lower --kv-memory") as caught:
        store(group(kv_heads=8, k=64, v=64), blocks=(blocks,))
    size = blocks * 4 * 8 * 64 * 4
    assert f"{size / 2**40:.1f} TiB" in str(caught.value)
    assert not math.isinf(size)


def test_blocks_are_copied_to_buffers_of_their_size_and_number_only() -> None:
    kept = store(group(0, 2), group(1, kv_heads=1, window=8), blocks=(3, 2))
    kept.keys[1].fill_(2)
    size = (3 + 5) * 4 * 4
    buffer = memoryview(bytearray(size))
    kept.copy_out(1, [BlockId(1)], [buffer])
    assert buffer.cast("f").tolist() == [2.0] * 12 + [0.0] * 20
    kept.copy_in(1, [BlockId(0)], [memoryview(bytes(size))])
    assert kept.read_block(1, BlockId(0)).eq(0).all()
    with pytest.raises(AssertionError, match=f"{size} bytes, a block has {4 * size}"):
        kept.copy_out(0, [BlockId(0)], [buffer])
    with pytest.raises(AssertionError, match="1 blocks and 2 buffers"):
        kept.copy_in(1, [BlockId(0)], [buffer, buffer])


def test_a_group_without_blocks_has_nothing_to_copy() -> None:
    kept = store(group(), blocks=(0,))
    kept.copy_in(0, [], [])
    with pytest.raises(AssertionError, match="group 0 has no blocks"):
        kept.copy_out(0, [BlockId(0)], [memoryview(bytearray(4))])


def test_it_lies_in_memory_that_was_touched_as_far_as_that_goes() -> None:
    groups = (group(0, 1), group(2, window=8))
    memory = TouchedMemory(Bytes(8 * 2**20))
    before = KvStore(groups, (3, 2), block_tokens=4, dtype=torch.bfloat16, device=CPU)
    kept = KvStore(groups, (3, 2), block_tokens=4, dtype=torch.bfloat16, device=CPU, memory=memory)
    tensors = [*kept.keys, *kept.values]
    assert [each.shape for each in tensors] == [each.shape for each in (*before.keys, *before.values)]
    assert kept.nbytes == before.nbytes
    assert not any(each.any() for each in tensors)
    starts = sorted(each.data_ptr() for each in tensors)
    assert starts[-1] - starts[0] < memory.nbytes
    for number, each in enumerate(tensors, start=1):
        each.fill_(number)
    assert all(bool((each == number).all()) for number, each in enumerate(tensors, start=1))


def test_what_touched_memory_does_not_hold_is_allocated_and_zero() -> None:
    memory = TouchedMemory(Bytes(2**16))
    kept = KvStore((group(),), (20_000,), block_tokens=4, dtype=torch.float32, device=CPU, memory=memory)
    assert kept.keys[0].untyped_storage().nbytes() > memory.nbytes
    assert not kept.keys[0].any()
    assert not kept.values[0].any()
