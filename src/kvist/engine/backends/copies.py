"""Blocks between the KV tensors and plain bytes: payloads of two planes, keys then values.

In the tensors a block is one run of `block_tokens * head_dim` numbers per layer and head, at equal distances; in a
payload the runs lie one after the other. On a CPU each plane is copied by one strided copy whose items are runs, which
numpy does faster than torch (measured by `bench/micro/copy_in.py`); on any other device the payloads of a call cross
over together and are spread there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from kvist.base.ids import BlockId

Rows = np.ndarray[Any, np.dtype[np.void]]
"""A tensor as [layers * kv_heads, blocks], each item the bytes of one run."""

Payloads = np.ndarray[Any, np.dtype[np.uint8]]
"""Some payloads, [payloads, bytes]."""

_RUN_BLOCKS_MIN = 4
"""Fewer blocks are copied one by one: finding out how they lie would cost more."""

Places = slice | np.ndarray[Any, np.dtype[np.int64]]
"""Some blocks of a pool."""


class HostCopies:
    """Copies of one KV group whose tensors lie in host memory."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, *, block_tokens: int) -> None:
        """Looks at the tensors, both [layers, kv_heads, blocks * block_tokens, head_dim]."""
        self._planes = (_rows(keys, block_tokens), _rows(values, block_tokens))
        self.payload_bytes = sum(len(rows) * rows.dtype.itemsize for rows in self._planes)

    def copy_out(self, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Fills each buffer with its block's payload."""
        for places, payloads in _together(blocks, into):
            for rows, plane in zip(self._planes, self._split(payloads), strict=True):
                if isinstance(places, slice):
                    plane[:] = rows[:, places]
                    continue
                for column, block in enumerate(places):  # to gather them all at once would copy them twice
                    plane[:, column] = rows[:, block]

    def copy_in(self, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Fills each block from its payload."""
        for places, payloads in _together(blocks, sources):
            for rows, plane in zip(self._planes, self._split(payloads), strict=True):
                rows[:, places] = plane

    def _split(self, payloads: Payloads) -> Iterator[Rows]:
        """The planes of some payloads, each [layers * kv_heads, payloads]."""
        begin = 0
        for rows in self._planes:
            run, end = rows.dtype, begin + len(rows) * rows.dtype.itemsize
            yield payloads[:, begin:end].view(run).T
            begin = end


def _together(blocks: Sequence[BlockId], buffers: Sequence[memoryview]) -> Iterator[tuple[Places, Payloads]]:
    """Divides a copy into as few as can be done at once: where buffers lie at one distance from each other.

    One large copy is not faster than many small ones, but lets other threads run while it lasts.
    """
    arrays = [np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers]
    addresses = [array.ctypes.data for array in arrays]
    first = 0
    while first < len(blocks):
        end = _end_of_run(addresses, first)
        if end - first < _RUN_BLOCKS_MIN:
            end = first + 1
        step = addresses[first + 1] - addresses[first] if end - first > 1 else 0
        # Every row is one of the buffers, so what this looks at is all theirs.
        payloads = as_strided(arrays[first], shape=(end - first, len(arrays[first])), strides=(step, 1))
        yield _places(blocks[first:end]), payloads
        first = end


def _end_of_run(numbers: Sequence[int], first: int) -> int:
    """Where the run of equal distances ends that begins at `first`."""
    end = min(first + 2, len(numbers))
    while end < len(numbers) and numbers[end] - numbers[end - 1] == numbers[first + 1] - numbers[first]:
        end += 1
    return end


def _places(blocks: Sequence[BlockId]) -> Places:
    """Blocks as what is fastest to index with."""
    step = blocks[1] - blocks[0] if len(blocks) > 1 else 1
    if not step or _end_of_run(blocks, 0) < len(blocks):
        return np.array(blocks)
    end = blocks[-1] + step
    return slice(blocks[0], end if end >= 0 else None, step)


class DeviceCopies:
    """Copies of one KV group whose tensors lie in the memory of a device."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, *, block_tokens: int) -> None:
        """Looks at the tensors, both [layers, kv_heads, blocks * block_tokens, head_dim]."""
        self._planes = tuple(_runs(tensor, block_tokens) for tensor in (keys, values))
        self._sizes = [runs.shape[0] * runs.shape[2] for runs in self._planes]
        self.payload_bytes = sum(self._sizes)

    def copy_out(self, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Fills each buffer with its block's payload."""
        places = torch.tensor(blocks, dtype=torch.long, device=self._planes[0].device)
        planes = [runs.index_select(1, places).transpose(0, 1).flatten(1) for runs in self._planes]
        payloads = torch.cat(planes, dim=1).cpu().numpy()
        for payload, buffer in zip(payloads, into, strict=True):
            buffer[:] = payload.data

    def copy_in(self, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Fills each block from its payload."""
        device = self._planes[0].device
        gathered = np.empty((len(blocks), self.payload_bytes), dtype=np.uint8)
        for row, source in zip(gathered, sources, strict=True):
            row[:] = np.frombuffer(source, dtype=np.uint8)
        payloads = torch.from_numpy(gathered).to(device)
        places = torch.tensor(blocks, dtype=torch.long, device=device)
        for runs, plane in zip(self._planes, torch.split(payloads, self._sizes, dim=1), strict=True):
            runs.index_copy_(1, places, plane.reshape(-1, runs.shape[0], runs.shape[2]).transpose(0, 1))


Copies = HostCopies | DeviceCopies


def copies_of(keys: torch.Tensor, values: torch.Tensor, *, block_tokens: int) -> Copies:
    """The fastest way to copy blocks of these tensors."""
    kind = HostCopies if keys.device.type == "cpu" else DeviceCopies
    return kind(keys, values, block_tokens=block_tokens)


def _rows(tensor: torch.Tensor, block_tokens: int) -> Rows:
    layers, heads, tokens, _ = tensor.shape
    run = block_tokens * tensor.shape[3] * tensor.dtype.itemsize
    found: Rows = tensor.view(torch.uint8).numpy().reshape(-1).view(f"V{run}").reshape(layers * heads, -1)
    assert found.shape[1] * block_tokens == tokens, f"{tensor.shape} is no whole number of blocks"
    return found


def _runs(tensor: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """[layers * kv_heads, blocks, bytes of a run], the same memory."""
    layers, heads, tokens, _ = tensor.shape
    return tensor.view(torch.uint8).view(layers * heads, tokens // block_tokens, -1)
