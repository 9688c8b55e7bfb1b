"""KV tensors as vLLM lays them out: every layer a view `[blocks, heads, tokens, content]` of one allocation of bytes.

`layout` is the order in which layers (L), blocks (B), heads (H), tokens (N) and content (C) lie, outermost first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from kvist.base.units import Tokens
from kvist.connectors.vllm.reach import WorkerFacts
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup
from kvist.connectors.vllm.views import Inside

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
BLOCKS_ARE_RUNS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")
"""Layouts in which a layer's block is one run of bytes."""


@dataclass(frozen=True, kw_only=True)
class Laid:
    """How the layers of one group lie.

    Attributes:
        layers: how many.
        parts: the kernels' blocks per block of the engine.
        room: bytes from one block of a layer to what comes next, where it is more than the block.
        begin: of the group's first byte in the allocation.
    """

    layout: str = "LBHNC"
    layers: int = 3
    blocks: int = 8
    heads: int = 2
    tokens: int = 8
    content: int = 6
    dtype: torch.dtype = torch.bfloat16
    parts: int = 1
    room: int = 0
    begin: int = 0

    @property
    def block_bytes(self) -> int:
        """Of one layer, without what fills it up."""
        return self.heads * self.tokens * self.content * self.dtype.itemsize

    @cached_property
    def strides(self) -> dict[str, int]:
        """Bytes from one to the next, B being the kernels' blocks."""
        found, stride = {}, 1
        grid_end = max(self.layout.index("L"), self.layout.index("B"))
        for place, axis in reversed(list(enumerate(self.layout))):
            if place == grid_end:
                stride = max(stride, self.room // self.parts)
            found[axis] = stride
            stride *= self.sizes[axis]
        return found

    @property
    def sizes(self) -> dict[str, int]:
        """B being the kernels' blocks, N the tokens in one, C bytes."""
        return {
            "L": self.layers,
            "B": self.blocks * self.parts,
            "H": self.heads,
            "N": self.tokens // self.parts,
            "C": self.content * self.dtype.itemsize,
        }

    @property
    def nbytes(self) -> int:
        """Of the whole group."""
        return max(self.strides[axis] * self.sizes[axis] for axis in "LB")

    def tensors(self, memory: torch.Tensor, prefix: str = "layer") -> dict[str, torch.Tensor]:
        """The layers' tensors in some bytes."""
        sizes, strides = [self.sizes[axis] for axis in "LBHNC"], [self.strides[axis] for axis in "LBHNC"]
        views = torch.as_strided(memory, sizes, strides, memory.storage_offset() + self.begin)
        return {f"{prefix}.{index}": views[index].view(self.dtype) for index in range(self.layers)}

    def group(self, names: Sequence[str], index: int = 0) -> EngineGroup:
        return EngineGroup(index=index, layers=tuple(names), block_tokens=Tokens(self.tokens), window=None)

    def inside(self, *, raw: bool = False) -> Inside:
        return Inside(raw=raw, block_bytes=self.block_bytes)


def memory_of(nbytes: int, seed: int | None = None) -> torch.Tensor:
    """Bytes, random ones where there is a seed."""
    if seed is None:
        return torch.zeros(nbytes, dtype=torch.int8)
    return torch.from_numpy(np.random.default_rng(seed).integers(-128, 128, nbytes, dtype=np.int8))


def kv_of(tensors: dict[str, torch.Tensor], blocks: int) -> np.ndarray:
    """What the layers hold, as bytes [layers, blocks, heads, tokens, content]: no layout, no parts."""
    layers = []
    for tensor in tensors.values():
        seen = tensor.view(torch.uint8).unflatten(0, (blocks, -1)).permute(0, 2, 1, 3, 4)
        layers.append(seen.reshape(blocks, seen.shape[1], -1, seen.shape[4]).clone().numpy())
    return np.stack(layers)


def facts(laid: Sequence[Laid], **changed: object) -> WorkerFacts:
    """Of the only worker of an engine whose blocks can be seen inside, but for what is changed."""
    given = {
        "pipeline_rank": 0,
        "tensor_rank": 0,
        "machine": "here",
        "packing": CANONICAL,
        "replicas": 1,
        "block_bytes": tuple(each.block_bytes for each in laid),
        "whole_requests": len(laid) > 1,
    }
    return WorkerFacts(**(given | changed))
