"""The KV tensors of the first tier: one pair per KV group, addressed by block.

Knows layout and bytes; does not know who holds which block. Layout of each tensor, chosen so that the tokens
of one head lie together and a run of consecutive blocks can be read without copying:

    keys[group]    [layers, kv_heads, blocks * block_tokens, head_dim_k]
    values[group]  [layers, kv_heads, blocks * block_tokens, head_dim_v]

Blocks outermost are faster to copy and to write, and slower to decode from where blocks follow each other, which they
mostly do: `bench/micro/kv_layout.py`, docs/decisions/0007-speed.md.
"""

import math
from collections.abc import Sequence

import torch

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId
from kvist.base.units import Bytes, format_bytes
from kvist.engine.backends.copies import Copies, copies_of
from kvist.engine.backends.host_memory import TouchedMemory, huge_memory
from kvist.geometry.groups import KvGroup


class KvStore:
    """Owns the memory; everything is allocated and touched at the start, nothing later."""

    def __init__(  # noqa: PLR0913  four say what is stored, two where
        self,
        groups: Sequence[KvGroup],
        blocks: Sequence[int],
        *,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: TouchedMemory | None = None,
    ) -> None:
        """Allocates `blocks[i]` blocks for group i.

        Args:
            groups: of the model's layers.
            blocks: how many of each.
            block_tokens: tokens of a block.
            dtype: of its numbers.
            device: where they lie.
            memory: of the host, all touched, which is taken as far as it goes.

        Raises:
            CapacityError: the memory is not there.
        """
        self.groups = tuple(groups)
        self.block_tokens = block_tokens
        self.dtype = dtype
        self.device = device
        self._memory = memory
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        for group, count in zip(groups, blocks, strict=True):
            for tensors, head_dim in ((self.keys, group.head_dim_k), (self.values, group.head_dim_v)):
                shape = (len(group.layers), group.kv_heads, count * block_tokens, head_dim)
                tensors.append(self._allocate(shape))
        # Without a block there is nothing to copy, and no run to look at.
        self._copies: list[Copies | None] = [
            copies_of(keys, values, block_tokens=block_tokens) if keys.numel() and values.numel() else None
            for keys, values in zip(self.keys, self.values, strict=True)
        ]

    @property
    def nbytes(self) -> Bytes:
        """Bytes of all tensors as they lie in memory."""
        return Bytes(sum(tensor.untyped_storage().nbytes() for tensor in (*self.keys, *self.values)))

    def read_block(self, group: int, block: BlockId) -> torch.Tensor:
        """A copy of one block, [layers, kv_heads, block_tokens, head_dim_k + head_dim_v]."""
        tokens = slice(block * self.block_tokens, (block + 1) * self.block_tokens)
        return torch.cat((self.keys[group][:, :, tokens], self.values[group][:, :, tokens]), dim=-1)

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Copies blocks to buffers; see `kvist.engine.backend.Backend.copy_out`."""
        if blocks:
            self._copies_of(group, blocks, into).copy_out(blocks, into)

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Copies payloads into blocks; see `kvist.engine.backend.Backend.copy_in`."""
        if blocks:
            self._copies_of(group, blocks, sources).copy_in(blocks, sources)

    def _copies_of(self, group: int, blocks: Sequence[BlockId], buffers: Sequence[memoryview]) -> Copies:
        assert len(blocks) == len(buffers), f"{len(blocks)} blocks and {len(buffers)} buffers"
        copies = self._copies[group]
        assert copies is not None, f"group {group} has no blocks"
        for buffer in buffers:
            assert buffer.nbytes == copies.payload_bytes, f"{buffer.nbytes} bytes, a block has {copies.payload_bytes}"
        return copies

    def _allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        size = math.prod(shape) * self.dtype.itemsize
        try:
            if self._memory is not None and size and (taken := self._memory.take(size)) is not None:
                return torch.frombuffer(taken, dtype=self.dtype).view(shape)
            if self.device.type == "cpu" and size:
                reserved = torch.frombuffer(huge_memory(size), dtype=self.dtype).view(shape)
            else:
                reserved = torch.empty(shape, dtype=self.dtype, device=self.device)
            # Filled, not merely reserved: memory that is not there must be missed now and not mid-request.
            return reserved.fill_(0)
        # The last two: more than the system's, or 64 bits, can count.
        except (RuntimeError, MemoryError, OSError, TypeError, OverflowError) as error:
            raise CapacityError(f"cannot allocate {format_bytes(size)} of KV memory; lower --kv-memory") from error
