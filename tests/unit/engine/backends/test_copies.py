"""Blocks as bytes: the canonical planes in order, whatever the dtype and wherever the tensors lie."""

from collections.abc import Callable

import pytest
import torch

from kvist.base.ids import BlockId
from kvist.engine.backends.copies import DeviceCopies, HostCopies, copies_of
from kvist.engine.form import form_of
from kvist.geometry.groups import Dtype, KvGroup

LAYERS, HEADS, BLOCKS, K, V = 3, 2, 7, 4, 6

kinds = pytest.mark.parametrize("kind", [HostCopies, DeviceCopies])
dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
Kind = Callable[..., HostCopies | DeviceCopies]


def tensors(dtype: Dtype, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of random bytes, so that no two numbers are alike and some are no numbers."""
    made = []
    for seed, head_dim in enumerate((K, V)):
        shape = (LAYERS, HEADS, BLOCKS * size, head_dim)
        count = LAYERS * HEADS * BLOCKS * size * head_dim * getattr(torch, dtype).itemsize
        raw = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        made.append(raw.view(getattr(torch, dtype)).view(shape))
    return made[0], made[1]


def plain(keys: torch.Tensor, values: torch.Tensor, block: int, size: int) -> bytes:
    """A payload as the form describes it."""
    planes = [tensor[:, :, block * size : (block + 1) * size].contiguous() for tensor in (keys, values)]
    return b"".join(plane.view(torch.uint8).numpy().tobytes() for plane in planes)


@kinds
@dtypes
@pytest.mark.parametrize("size", [1, 5, 16])
def test_a_payload_is_keys_then_values_in_the_order_of_the_form(kind: Kind, dtype: Dtype, size: int) -> None:
    keys, values = tensors(dtype, size)
    copies = kind(keys, values, block_tokens=size)
    group = KvGroup(layers=tuple(range(LAYERS)), kv_heads=HEADS, head_dim_k=K, head_dim_v=V)
    assert copies.payload_bytes == form_of(group, dtype, size).payload_bytes
    buffers = [bytearray(copies.payload_bytes) for _ in range(3)]
    copies.copy_out([BlockId(6), BlockId(0), BlockId(3)], list(map(memoryview, buffers)))
    assert [bytes(buffer) for buffer in buffers] == [plain(keys, values, block, size) for block in (6, 0, 3)]


@kinds
@dtypes
def test_what_is_copied_in_is_there_and_nothing_else_changed(kind: Kind, dtype: Dtype) -> None:
    keys, values = tensors(dtype, 5)
    expected = [plain(keys, values, block, 5) for block in range(BLOCKS)]
    copies = kind(keys, values, block_tokens=5)
    sources = [bytes([seed]) * copies.payload_bytes for seed in (1, 2)]
    copies.copy_in([BlockId(4), BlockId(1)], [memoryview(source) for source in sources])
    expected[4], expected[1] = sources
    assert [plain(keys, values, block, 5) for block in range(BLOCKS)] == expected


@kinds
def test_buffers_may_lie_anywhere(kind: Kind) -> None:
    keys, values = tensors("bfloat16", 5)
    copies = kind(keys, values, block_tokens=5)
    region = memoryview(bytearray(3 + copies.payload_bytes + 2))
    copies.copy_out([BlockId(2)], [region[3 : 3 + copies.payload_bytes]])
    assert bytes(region[3:-2]) == plain(keys, values, 2, 5)
    copies.copy_in([BlockId(5)], [region[3:-2].toreadonly()])
    assert plain(keys, values, 5, 5) == plain(keys, values, 2, 5)
    assert bytes(region[:3]) + bytes(region[-2:]) == bytes(5)


@kinds
@pytest.mark.parametrize("blocks", [[0, 1, 2, 3], [6, 4, 2, 0], [3, 3], [0, 1, 2, 6, 5, 1], [2], [1, 0]])
@pytest.mark.parametrize("gaps", [[0] * 6, [8] * 6, [8, 8, 8, 24, 0, 0]], ids=["dense", "even", "uneven"])
def test_buffers_and_blocks_may_be_in_any_order_and_at_any_distance(
    kind: Kind, blocks: list[int], gaps: list[int]
) -> None:
    keys, values = tensors("float32", 5)
    copies = kind(keys, values, block_tokens=5)
    size = copies.payload_bytes
    region, buffers, at = memoryview(bytearray(size * 6 + 100)), [], 0
    for gap in gaps[: len(blocks)]:
        buffers.append(region[at : at + size])
        at += size + gap
    for order in (buffers, buffers[::-1], [*buffers[1:], buffers[0]]):
        copies.copy_out(list(map(BlockId, blocks)), order)
        assert [bytes(buffer) for buffer in order] == [plain(keys, values, block, 5) for block in blocks]
    if len(set(blocks)) == len(blocks):
        others, before = tensors("float32", 5), [plain(keys, values, block, 5) for block in range(BLOCKS)]
        others[0].fill_(0)
        others[1].fill_(0)
        kind(*others, block_tokens=5).copy_in(list(map(BlockId, blocks)), order)
        for block in range(BLOCKS):
            assert plain(*others, block, 5) == (before[block] if block in blocks else bytes(size))


def test_host_memory_is_copied_by_the_host() -> None:
    assert isinstance(copies_of(*tensors("float32", 1), block_tokens=1), HostCopies)
