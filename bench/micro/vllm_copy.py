"""Blocks of vLLM's KV tensors to records in shared memory and back, against memcpy of the same bytes.

    python bench/micro/vllm_copy.py --json bench/results/vllm-copy.json

A record is one block of all layers. "Raw" is what vLLM has on a CPU, where blocks are packed for the processor; the
others are the orders in which layers (L), blocks (B), heads (H), tokens (N) and content (C) of a device's tensors may
lie, here in host memory. Blocks are anywhere in the pool, records one after the other. Units are bytes; figures are
processor time of one core.
"""

import argparse
import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.units import Tokens
from kvist.connectors.vllm.host_copies import HostCopies
from kvist.connectors.vllm.shapes import CANONICAL, EngineGroup, WorkerShape, record_shapes
from kvist.connectors.vllm.views import Inside, group_shape, group_views

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


@dataclass(frozen=True)
class Group:
    """One group of a model's layers: numbers of two bytes, keys and values together."""

    name: str
    layers: int
    heads: int
    tokens: int
    content: int


GROUPS = (
    Group("SmolLM2: 30 layers of 24,576 B", layers=30, heads=3, tokens=32, content=128),
    Group("Gemma 3, full: 3 layers of 32,768 B", layers=3, heads=1, tokens=32, content=512),
)


class Bench:
    """Tensors of one group in one order, and room for records."""

    def __init__(self, group: Group, layout: str, blocks: Sequence[int], pool: int, *, raw: bool) -> None:
        self.blocks = blocks
        tensors = tensors_of(group, layout, pool)
        engine = EngineGroup(index=0, layers=tuple(tensors), block_tokens=Tokens(group.tokens), window=None)
        inside = Inside(raw=raw, block_bytes=group.heads * group.tokens * group.content * 2)
        views = group_views(tensors, engine, pool, inside)
        worker = WorkerShape(
            pipeline_rank=0,
            tensor_rank=0,
            machine="here",
            packing="raw" if raw else CANONICAL,
            replicas=1,
            groups=(group_shape(views),),
        )
        (record,) = record_shapes([engine], [worker])
        self.copies = HostCopies(views, record, record.shares[0, 0])
        size = record.form.payload_bytes
        self.bytes = size * len(blocks)
        slabs = [memoryview(mmap.mmap(-1, self.bytes)) for _ in range(2)]
        self.payloads, self.others = ([slab[at : at + size] for at in range(0, self.bytes, size)] for slab in slabs)
        for payload in (*self.payloads, *self.others):
            np.frombuffer(payload, dtype=np.uint8)[:] = 1
        self.copy_in()

    def memcpy(self) -> None:
        for target, source in zip(self.others, self.payloads, strict=True):
            np.copyto(np.frombuffer(target, dtype=np.uint8), np.frombuffer(source, dtype=np.uint8))

    def copy_in(self) -> None:
        for block, payload in zip(self.blocks, self.payloads, strict=True):
            self.copies.copy_in((block,), payload)

    def copy_out(self) -> None:
        for block, payload in zip(self.blocks, self.payloads, strict=True):
            self.copies.copy_out((block,), payload)


def tensors_of(group: Group, layout: str, pool: int) -> dict[str, torch.Tensor]:
    """Views of one allocation, as vLLM makes them."""
    sizes = {"L": group.layers, "B": pool, "H": group.heads, "N": group.tokens, "C": group.content * 2}
    strides, stride = {}, 1
    for axis in reversed(layout):
        strides[axis] = stride
        stride *= sizes[axis]
    memory = torch.zeros(stride, dtype=torch.int8)
    memory.fill_(1)  # so that every byte is there
    views = memory.as_strided([sizes[axis] for axis in "LBHNC"], [strides[axis] for axis in "LBHNC"])
    return {f"layer.{index}": view.view(torch.bfloat16) for index, view in enumerate(views)}


def cases(args: argparse.Namespace) -> list[Case]:
    blocks = np.random.default_rng(args.seed).permutation(args.pool)[: args.blocks].tolist()
    found = []
    for group in GROUPS:
        for layout, raw in (("LBHNC", True), *((layout, False) for layout in LAYOUTS)):
            bench = Bench(group, layout, blocks, args.pool, raw=raw)
            name = f"{'raw' if raw else layout}, {group.name}"
            runs = {"copy out": bench.copy_out, "copy in": bench.copy_in}
            if raw:
                runs = {"memcpy": bench.memcpy} | runs
            found += [
                Case(name=f"{verb}, {name}", unit="bytes", units=bench.bytes, run=call) for verb, call in runs.items()
            ]
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--blocks", type=int, default=64, help="blocks copied at once (%(default)s)")
    parser.add_argument("--pool", type=int, default=512, help="blocks of the pool (%(default)s)")
    run("vllm_copy", argv, parser, cases)


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"vllm_copy: {error}")
