"""A step on a CPU against attention by its definition: any mix of chunks, prefixes in common, blocks anywhere.

Everything in the pool that is no sequence's is not a number, so that whoever reads it shows.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.base.units import Tokens
from kvist.engine.backends.cpu.step import CpuMemory, CpuStep
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.tiles import AttentionRule
from kvist.engine.batch import BlockRun, Chunk, batch_of
from kvist.geometry.groups import KvGroup

BLOCKS, KV_HEADS, PER_KV_HEAD, WIDTH_K, WIDTH_V = 512, 2, 3, 32, 24
PLACES = {0: (0, 0), 1: (1, 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A batch: of each sequence what is computed, what is new, and how many blocks it has from the one before."""

    size: int
    window: int
    lengths: list[tuple[int, int, int]]
    order: int


@st.composite
def batches(draw: st.DrawFn) -> Given:
    size = draw(st.sampled_from([4, 16]))
    lengths, before = [], 0
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.one_of(st.integers(0, 40), st.integers(0, 200)))
        new = draw(st.one_of(st.just(1), st.integers(1, 12), st.integers(13, 90)))
        shared = draw(st.sampled_from([0, min(before, start // size)]))
        lengths.append((start, new, shared))
        before = start // size
    return Given(size=size, window=draw(st.integers(1, 80)), lengths=lengths, order=draw(st.integers(0, 99)))


class World:
    """The pool and the sequences of a batch."""

    def __init__(self, given: Given) -> None:
        self.given = given
        groups = tuple(
            KvGroup(layers=(layer,), kv_heads=KV_HEADS, head_dim_k=WIDTH_K, head_dim_v=WIDTH_V, window=window)
            for layer, window in enumerate((None, Tokens(given.window)))
        )
        self.store = KvStore(
            groups, (BLOCKS, BLOCKS), block_tokens=given.size, dtype=torch.float32, device=torch.device("cpu")
        )
        for tensor in (*self.store.keys, *self.store.values):
            tensor.fill_(float("nan"))
        generator = torch.Generator().manual_seed(given.order)
        free = iter(torch.randperm(BLOCKS, generator=generator).tolist())
        self.tables: list[list[int]] = []
        self.known: list[tuple[torch.Tensor, torch.Tensor]] = []
        for start, new, shared in given.lengths:
            table = self.tables[-1][:shared] if shared else []
            self.tables.append(table + [next(free) for _ in range(-(-(start + new) // given.size) - len(table))])
            keys = torch.randn(KV_HEADS, start + new, WIDTH_K, generator=generator)
            values = torch.randn(KV_HEADS, start + new, WIDTH_V, generator=generator)
            alike = shared * given.size
            if alike:
                keys[:, :alike], values[:, :alike] = (each[:, :alike] for each in self.known[-1])
            self.known.append((keys, values))
        rows = sum(new for _, new, _ in given.lengths)
        self.query = torch.randn(KV_HEADS * PER_KV_HEAD, rows, WIDTH_K, generator=generator)

    def attend(self, layer: int) -> torch.Tensor:
        """The layer's output, [rows, heads, head_dim_v], with what is computed in its place before."""
        size, new = self.given.size, []
        for table, (keys, values), (start, _, _) in zip(self.tables, self.known, self.given.lengths, strict=True):
            places = torch.tensor([table[at // size] * size + at % size for at in range(start)], dtype=torch.long)
            self.store.keys[layer][0][:, places] = keys[:, :start]
            self.store.values[layer][0][:, places] = values[:, :start]
            new.append((keys[:, start:], values[:, start:]))
        key, value = (torch.cat([each[plane] for each in new], dim=1)[None] for plane in (0, 1))
        step = CpuStep(batch_of(self.chunks(), block_tokens=size), CpuMemory(self.store, PLACES))
        return step.layer(layer, self.query[None], key, value, self.rule(layer))[0]

    def chunks(self) -> list[Chunk]:
        found = []
        for index, (table, (start, new, _)) in enumerate(zip(self.tables, self.given.lengths, strict=True)):
            first = max(0, start - self.given.window + 1) // self.given.size
            blocks = tuple(map(BlockId, table))
            runs = (BlockRun(first=0, blocks=blocks), BlockRun(first=first, blocks=blocks[first:]))
            tokens = (TokenId(0),) * new
            found.append(Chunk(request_id=RequestId(f"{index}"), tokens=tokens, start=start, runs=runs, draw=None))
        return found

    def rule(self, layer: int) -> AttentionRule:
        return AttentionRule(window=(None, self.given.window)[layer], scaling=0.3, softcap=None)

    def expected(self, layer: int) -> torch.Tensor:
        """The same by definition, in float64."""
        found, row = [], 0
        for (keys, values), (start, new, _) in zip(self.known, self.given.lengths, strict=True):
            key, value = (each.double().repeat_interleave(PER_KV_HEAD, 0) for each in (keys, values))
            scores = self.query[:, row : row + new].double() @ key.transpose(1, 2) * 0.3
            stands, looks = torch.arange(start, start + new)[:, None], torch.arange(start + new)[None, :]
            hidden = (looks > stands) | (looks <= stands - (self.rule(layer).window or start + new))
            found.append((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).transpose(0, 1))
            row += new
        return torch.cat(found).float()


@pytest.mark.parametrize("layer", [0, 1])
@settings(max_examples=examples(40))
@given(given=batches())
def test_every_row_attends_to_its_own_context(layer: int, given: Given) -> None:
    world = World(given)
    torch.testing.assert_close(world.attend(layer), world.expected(layer), atol=1e-5, rtol=0)
