"""How K and V may lie in G1: what each layout costs decode, prefill's write and reading, and copies from the tiers.

    python bench/micro/kv_layout.py --json bench/results/kv-layout.json

Three layouts, of 30 layers with 3 KV heads of 64 numbers in bfloat16 and blocks of 16 tokens:

    heads       [layers, kv_heads, blocks * block_tokens, head_dim], as the engine has it
    blocks      [blocks, layers, kv_heads, block_tokens, head_dim]: one block is one run of memory
    transposed  heads, with the keys of a block as [head_dim, block_tokens]: scores need no sum over a vector's numbers

Blocks are scattered over the pool, but where a case says that they follow each other. Values lie alike in the first and
the last layout, so of the last only scores are measured, beside scores of the first. Attention of many rows multiplies
matrices: it reads blocks of the first layout that follow each other in place, all others are gathered into memory that
is held. Figures are processor time of one core.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from rounds import Case, parser_of, run

from kvist.base.errors import KvistError
from kvist.base.ids import BlockId
from kvist.engine.backends.cpu.few import Pool, Readers, Scratch, attend_few
from kvist.engine.backends.cpu.kernel import Kernel, vector
from kvist.engine.backends.cpu.many import ManyRows
from kvist.engine.backends.cpu.numbers import Given, integer, integers, prefetch
from kvist.engine.backends.cpu.numbers import vector as vector_of
from kvist.engine.backends.cpu.reads import AHEAD_BLOCKS
from kvist.engine.backends.cpu.segments import Reading, plan
from kvist.engine.backends.cpu.vectors import blend, score
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.tiles import AttentionRule
from kvist.geometry.groups import KvGroup

LAYERS, KV_HEADS, HEADS, WIDTH, SIZE = 30, 3, 9, 64, 16
RULE = AttentionRule(window=None, scaling=0.125, softcap=None)
PREFILL_TOKENS, COPIED_BLOCKS = 1024, 64
CONTEXTS = (1024, 3072)
BLOCK_BYTES = SIZE * WIDTH * 2
KeysAndValues = tuple[torch.Tensor, torch.Tensor]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def _scores(given: Given) -> None:
    """Scores of three queries with blocks of keys as they lie: keys, query, into, head bytes, heads, then blocks."""
    blocks, into = integers(given, 5), integer(given, 2)
    for head in range(integer(given, 4)):
        begin = integer(given, 0) + head * integer(given, 3)
        for i in range(len(blocks)):
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * BLOCK_BYTES
            for m in range(3):
                query = integer(given, 1) + (head * 3 + m) * WIDTH * 2
                for half in range(2):
                    keys = begin + blocks[i] * BLOCK_BYTES + half * BLOCK_BYTES // 2
                    score(given, (query, keys, WIDTH * 2, 7, WIDTH, into + (m * SIZE + half * 8) * 4, near * (m == 0)))


def _scores_transposed(given: Given) -> None:
    """The same of transposed keys; queries are float32, and scores are added to."""
    blocks, into = integers(given, 5), integer(given, 2)
    for head in range(integer(given, 4)):
        begin = integer(given, 0) + head * integer(given, 3)
        query = integer(given, 1) + head * 3 * WIDTH * 4
        for i in range(len(blocks)):
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * BLOCK_BYTES
            keys = begin + blocks[i] * BLOCK_BYTES
            blend(given, (keys, SIZE * 2, WIDTH, query, WIDTH * 4, 2, into, SIZE * 4, near, SIZE))


def _gather(given: Given) -> None:
    """Copies one layer's blocks of blocks outermost by heads: the layer, into, blocks; asks for three blocks ahead."""
    layer, into, blocks = vector_of(given, 0), vector_of(given, 2), integers(given, 4)
    run, apart = SIZE * WIDTH, LAYERS * KV_HEADS * SIZE * WIDTH
    for i in range(len(blocks)):
        begin, near = blocks[i] * apart, blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] * apart
        for head in range(KV_HEADS):
            for ahead in range(0, run, 32):
                prefetch(integer(given, 0) + (near + head * run + ahead) * 2)
            at = (head * len(blocks) + i) * run
            into[at : at + run] = layer[begin + head * run : begin + (head + 1) * run]


SCORES, SCORES_TRANSPOSED, GATHER = Kernel(_scores), Kernel(_scores_transposed), Kernel(_gather)


class Bench:
    """Pools in each layout, and what is written and copied into them."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        self.dice = np.random.default_rng(args.seed)
        group = KvGroup(layers=tuple(range(LAYERS)), kv_heads=KV_HEADS, head_dim_k=WIDTH, head_dim_v=WIDTH)
        device = torch.device("cpu")
        self.heads, self.blocks = (
            KvStore([group], [args.pool], block_tokens=SIZE, dtype=torch.bfloat16, device=device) for _ in range(2)
        )
        generator = torch.Generator().manual_seed(args.seed)
        for tensor in (*self.heads.keys, *self.heads.values):
            for layer in tensor:
                layer.copy_(torch.randn(layer.shape, generator=generator))
        for tensor in (*self.blocks.keys, *self.blocks.values):
            tensor.copy_(self.heads.keys[0].view(tensor.shape))
        shape = (args.pool, LAYERS, KV_HEADS, SIZE, WIDTH)
        self.outermost = [tensor.view(shape) for tensor in (self.blocks.keys[0], self.blocks.values[0])]
        self.order = self.dice.permutation(args.pool)
        self.new = torch.randn(2, LAYERS, KV_HEADS, PREFILL_TOKENS, WIDTH, generator=generator).bfloat16()
        self.payloads = self.dice.integers(0, 255, (COPIED_BLOCKS, 2 * LAYERS * KV_HEADS * BLOCK_BYTES), np.uint8)

    def cases(self) -> list[Case]:
        follow = np.arange(len(self.order))
        return [
            *(case for size in ((1, 3000), (8, 1000)) for case in self.decode(*size, self.order)),
            *(case for size in ((1, 3000), (8, 1000)) for case in self.decode(*size, follow, "blocks that follow, ")),
            *self.scores(3000),
            *self.writes(),
            *(case for columns in CONTEXTS for case in self.prefill(columns)),
            *self.copies(),
        ]

    def decode(self, sequences: int, tokens: int, order: Numbers, which: str = "") -> list[Case]:
        each = -(-(tokens + 1) // SIZE)
        one = np.ones(sequences, np.int64)
        reading = Reading(
            tables=order[: sequences * each].copy(),
            offsets=np.arange(sequences) * each,
            firsts=0 * one,
            starts=tokens * one,
            rows=one,
            row=np.arange(sequences),
        )
        readers = Readers(plan(reading, block_tokens=SIZE, window=None), Scratch())
        query = torch.randn(sequences, HEADS, WIDTH).bfloat16()
        out = torch.empty_like(query)
        keys, values = self.heads.keys[0], self.heads.values[0]
        apart = (SIZE, LAYERS * KV_HEADS * SIZE)
        pools = {
            "heads": [Pool(keys=keys[layer], values=values[layer], block_tokens=SIZE) for layer in range(LAYERS)],
            "blocks": [self._outermost(layer, apart) for layer in range(LAYERS)],
        }

        def attend(layers: list[Pool]) -> None:
            for pool in layers:
                attend_few(query, pool, readers, RULE, out)

        name = f"decode, {sequences} x {tokens:,}, {which}".removesuffix(", ")
        count = sequences * tokens
        return [
            Case(name=f"{name}, {layout}", unit="tokens", units=count, run=partial(attend, made))
            for layout, made in pools.items()
        ]

    def prefill(self, columns: int) -> list[Case]:
        """Reading a context and attention of the last rows of it."""
        many, count = ManyRows(), columns // SIZE
        query = torch.randn(PREFILL_TOKENS, HEADS, WIDTH).bfloat16()
        out = torch.empty_like(query)
        held = torch.empty(2, KV_HEADS, count, SIZE * WIDTH, dtype=torch.bfloat16)
        blocks = torch.from_numpy(self.order[:count].copy())
        pools = (self.heads.keys[0], self.heads.values[0])
        read = held.view(2, KV_HEADS, columns, WIDTH)

        def in_place(layer: int) -> KeysAndValues:
            return pools[0][layer][:, :columns], pools[1][layer][:, :columns]

        def gathered(layer: int) -> KeysAndValues:
            for pool, into in zip(pools, held, strict=True):
                torch.index_select(pool[layer].view(KV_HEADS, -1, SIZE * WIDTH), 1, blocks, out=into)
            return read[0], read[1]

        def outermost(layer: int) -> KeysAndValues:
            for pool, into in zip(self.outermost, held, strict=True):
                layer_at = pool.data_ptr() + layer * KV_HEADS * SIZE * WIDTH * 2
                given = (layer_at, pool.numel(), *vector(into.view(-1)), *vector(blocks))
                GATHER(torch.bfloat16, *given)
            return read[0], read[1]

        def attend(reading: Callable[[int], KeysAndValues]) -> None:
            for layer in range(LAYERS):
                keys, values = reading(layer)
                many.attend(query, keys, values, RULE, out)

        name = f"prefill, {PREFILL_TOKENS:,} rows of {columns:,}"
        ways = {"heads, blocks that follow": in_place, "heads": gathered, "blocks": outermost}
        return [
            Case(name=f"{name}, {way}", unit="tokens", units=PREFILL_TOKENS, run=partial(attend, made))
            for way, made in ways.items()
        ]

    def _outermost(self, layer: int, apart: tuple[int, int]) -> Pool:
        keys, values = (tensor[:, layer].transpose(0, 1)[:, :, 0] for tensor in self.outermost)
        return Pool(keys=keys, values=values, block_tokens=SIZE, apart=apart)

    def scores(self, tokens: int) -> list[Case]:
        blocks = self.order[: tokens // SIZE]  # of an array that is kept: kernels get its address
        query, into = torch.randn(HEADS, WIDTH), torch.zeros(3, SIZE)
        plain = query.bfloat16()
        keys = self.heads.keys[0]
        place = (keys.stride(1) * 2, KV_HEADS, blocks.ctypes.data, len(blocks))

        def run_all(kernel: Kernel, asked: torch.Tensor) -> None:
            for layer in keys:
                kernel(torch.bfloat16, layer.data_ptr(), asked.data_ptr(), into.data_ptr(), *place)

        return [
            Case(name="scores, 1 x 3,000, heads", unit="tokens", units=tokens, run=lambda: run_all(SCORES, plain)),
            Case(
                name="scores, 1 x 3,000, transposed",
                unit="tokens",
                units=tokens,
                run=lambda: run_all(SCORES_TRANSPOSED, query),
            ),
        ]

    def writes(self) -> list[Case]:
        count = PREFILL_TOKENS // SIZE
        blocks = torch.from_numpy(self.order[:count].copy())
        tokens = (blocks[:, None] * SIZE + torch.arange(SIZE)).flatten()
        pools = (self.heads.keys[0], self.heads.values[0])

        def heads() -> None:
            for pool, new in zip(pools, self.new, strict=True):
                for layer in range(LAYERS):
                    pool[layer].index_copy_(1, tokens, new[layer])

        def outermost() -> None:
            for pool, new in zip(self.outermost, self.new, strict=True):
                for layer in range(LAYERS):
                    rows = new[layer].view(KV_HEADS, count, SIZE, WIDTH)
                    pool[:, layer].index_copy_(0, blocks, rows.transpose(0, 1))

        def transposed() -> None:
            by_block = pools[0].view(LAYERS, KV_HEADS, -1, WIDTH, SIZE)
            for layer in range(LAYERS):
                rows = self.new[0, layer].view(KV_HEADS, count, SIZE, WIDTH)
                by_block[layer].index_copy_(1, blocks, rows.transpose(2, 3))
                pools[1][layer].index_copy_(1, tokens, self.new[1, layer])

        runs = {"heads": heads, "blocks": outermost, "transposed": transposed}
        return [
            Case(name=f"write, {layout}", unit="tokens", units=PREFILL_TOKENS, run=call)
            for layout, call in runs.items()
        ]

    def copies(self) -> list[Case]:
        numbers = self.order[:COPIED_BLOCKS].tolist()
        blocks = [BlockId(number) for number in numbers]
        sources = [memoryview(payload) for payload in self.payloads]
        half = self.payloads.shape[1] // 2
        planes = [tensor.view(torch.uint8).numpy().reshape(len(tensor), -1) for tensor in self.outermost]
        by_block = self.heads.keys[0].view(torch.int16).numpy().reshape(LAYERS, KV_HEADS, -1, WIDTH, SIZE)
        values = self.heads.values[0].view(torch.int16).numpy().reshape(LAYERS, KV_HEADS, -1, SIZE, WIDTH)

        def outermost() -> None:
            for block, payload in zip(numbers, self.payloads, strict=True):
                planes[0][block], planes[1][block] = payload[:half], payload[half:]

        def transposed() -> None:
            for block, payload in zip(numbers, self.payloads, strict=True):
                keys = payload[:half].view(np.int16).reshape(LAYERS, KV_HEADS, SIZE, WIDTH)
                by_block[:, :, block] = keys.swapaxes(2, 3)
                values[:, :, block] = payload[half:].view(np.int16).reshape(LAYERS, KV_HEADS, SIZE, WIDTH)

        runs = {"heads": lambda: self.heads.copy_in(0, blocks, sources), "blocks": outermost, "transposed": transposed}
        return [
            Case(name=f"copy in, {layout}", unit="bytes", units=self.payloads.size, run=call)
            for layout, call in runs.items()
        ]


def cases(args: argparse.Namespace) -> list[Case]:
    return Bench(args).cases()


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--pool", type=int, default=1024, help="blocks of the pool (%(default)s)")
    run("kv_layout", argv, parser, cases)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"kv_layout: {error}")
