"""One step's attention on a CPU: few rows of a sequence read blocks where they lie, many go through matrix products.

Knows which blocks each sequence reads and where its new K and V go; both are made of the batch's columns in bulk, once
per step and KV group, for all of its layers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from kvist.engine.backends.cpu.few import Pool, Readers, Scratch, attend_few
from kvist.engine.backends.cpu.kernel import Program
from kvist.engine.backends.cpu.many import ManyRows
from kvist.engine.backends.cpu.rotate import KvTarget
from kvist.engine.backends.cpu.segments import Integers, Reading
from kvist.engine.backends.cpu.steady import SteadyPlan
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.tiles import AttentionRule
from kvist.engine.batch import Batch, GroupTable

ROWS_FEW = 16
"""Up to how many rows of a sequence are faster over blocks where they lie: with 3,000 tokens before them, 16 take as
long as in products."""


ROWS_KEPT = 64
"""Up to so many rows, a step of few rows finds its plan and places where the step before had them."""


class GroupMemory:
    """Where one KV group's plan and places lie, in every step of few rows: programs of kernels know these addresses."""

    def __init__(self, plans: SteadyPlan, scratch: Scratch) -> None:
        """Has no plan yet."""
        self._plans = plans
        self._scratch = scratch
        self._readers: Readers | None = None
        self._places = torch.zeros(ROWS_KEPT, dtype=torch.int64)

    def readers(self, reading: Reading) -> Readers:
        """The same each time, with another plan."""
        plan = self._plans.of(reading)
        if self._readers is None:
            self._readers = Readers(plan, self._scratch)
        else:
            self._readers.show(plan)
        return self._readers

    def places(self, found: Integers) -> torch.Tensor:
        """Places as a tensor, in the same memory each time where they are not more than `ROWS_KEPT`."""
        given = torch.from_numpy(found)
        return given if len(found) > ROWS_KEPT else self._places[: len(found)].copy_(given)


class CpuMemory:
    """What steps have in common: each layer's K and V, and memory to compute with. One step at a time uses it."""

    def __init__(self, store: KvStore, places: Mapping[int, tuple[int, int]]) -> None:
        """Looks at the KV tensors.

        Args:
            store: in host memory, bfloat16 or float32.
            places: for each layer of the model its group and its index within the group.
        """
        self.store = store
        self.scratch = Scratch()
        self.many = ManyRows()
        self.groups = [
            GroupMemory(SteadyPlan(block_tokens=store.block_tokens, window=group.window), self.scratch)
            for group in store.groups
        ]
        self.group_of = {layer: group for layer, (group, _) in places.items()}
        self.pools = {
            layer: Pool(
                keys=store.keys[group][place], values=store.values[group][place], block_tokens=store.block_tokens
            )
            for layer, (group, place) in places.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyChunk:
    """A chunk of many rows in one KV group.

    Attributes:
        rows: its place among the step's rows.
        first: the pool's number of its first live block.
        columns: tokens from that block's first to the chunk's last.
        scattered: all of its live blocks, if they do not follow each other in the pool.
    """

    rows: slice
    first: int
    columns: int
    scattered: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """A step in one KV group.

    Attributes:
        places: int64 [rows], which token of the pool each row becomes.
        readers: rows of chunks that have few, if there are such.
        many: the other chunks.
    """

    places: torch.Tensor
    readers: Readers | None
    many: list[ManyChunk]


class CpuStep:
    """A step on a CPU; see `kvist.engine.backends.attention.Step` for what layers may ask."""

    def __init__(self, batch: Batch, memory: CpuMemory) -> None:
        """Plans who reads what.

        Args:
            batch: at least one chunk.
            memory: the same for all steps.
        """
        self.memory = memory
        columns = _Columns(batch)
        self.is_few = not len(columns.many)
        self.pending: list[Program] = []
        self._groups = [
            _group_step(columns, table, kept) for table, kept in zip(batch.tables, memory.groups, strict=True)
        ]

    def window(self, index: int) -> int | None:
        """How many positions a query of this layer looks back; None means all."""
        return self.memory.store.groups[self.memory.group_of[index]].window

    def target(self, index: int) -> KvTarget:
        """Where K and V of the step's rows go in this layer."""
        pool = self.memory.pools[index]
        return KvTarget(keys=pool.keys, values=pool.values, places=self._groups[self.memory.group_of[index]].places)

    def add_attention(
        self, index: int, query: torch.Tensor, rule: AttentionRule, out: torch.Tensor, program: Program
    ) -> None:
        """Like `attend`, of a step whose chunks all have few rows: added to a program, not done now.

        The program, run in a later step of as many rows over the same memory, does what that step wants.

        Args:
            index: of the layer in the model.
            query: [rows, heads, head_dim_k], rotated by then.
            rule: how scores become weights; its window is the layer's.
            out: [rows, heads, head_dim_v], written by then.
            program: what it is added to.
        """
        group = self._groups[self.memory.group_of[index]]
        assert group.readers is not None, "a step without few rows"
        assert not group.many, "a step with many rows"
        assert query.shape[0] <= ROWS_KEPT, f"{query.shape[0]} rows"
        attend_few(query, self.memory.pools[index], group.readers, rule, out, program=program)

    def attend(self, index: int, query: torch.Tensor, rule: AttentionRule) -> torch.Tensor:
        """Attention of the step's rows in one layer, after their K and V were written.

        Args:
            index: of the layer in the model.
            query: [rows, heads, head_dim_k], rotated.
            rule: how scores become weights; its window is the layer's.

        Returns:
            [rows, heads, head_dim_v].
        """
        pool, group = self.memory.pools[index], self._groups[self.memory.group_of[index]]
        out = query.new_empty(query.shape[0], query.shape[1], pool.values.shape[2])
        if group.readers is not None:
            attend_few(query, pool, group.readers, rule, out)
        for each in group.many:
            keys, values = (self._read(tensor, name, each) for name, tensor in (("k", pool.keys), ("v", pool.values)))
            self.memory.many.attend(query[each.rows], keys, values, rule, out[each.rows])
        return out

    def layer(
        self, index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: AttentionRule
    ) -> torch.Tensor:
        """Writes K and V of one layer and returns its attention output; see `Step.layer`."""
        target = self.target(index)
        target.keys.index_copy_(1, target.places, key[0])
        target.values.index_copy_(1, target.places, value[0])
        return self.attend(index, query[0].transpose(0, 1).contiguous(), rule).unsqueeze(0)

    def _read(self, tensor: torch.Tensor, name: str, chunk: ManyChunk) -> torch.Tensor:
        """The live tokens of a chunk's sequence, [kv_heads, columns, head_dim]; copied only where blocks scatter."""
        kv_heads, _, head_dim = tensor.shape
        size = self.memory.store.block_tokens
        if chunk.scattered is None:
            return tensor[:, chunk.first * size : chunk.first * size + chunk.columns]
        held = self.memory.scratch.take(name, (kv_heads, len(chunk.scattered), size * head_dim), tensor.dtype)
        torch.index_select(tensor.view(kv_heads, -1, size * head_dim), 1, chunk.scattered, out=held)
        return held.view(kv_heads, -1, head_dim)[:, : chunk.columns]


class _Columns:
    """A batch's columns as arrays, where they lie."""

    __slots__ = ("block_tokens", "counts", "few", "first_rows", "many", "positions", "seats", "starts")

    def __init__(self, batch: Batch) -> None:
        self.block_tokens = batch.block_tokens
        self.starts, self.counts, self.seats, self.positions = (
            np.frombuffer(column, np.int64) for column in (batch.starts, batch.counts, batch.seats, batch.positions)
        )
        self.first_rows = np.cumsum(self.counts) - self.counts
        is_many = self.counts > ROWS_FEW
        self.many = np.flatnonzero(is_many)
        self.few = np.flatnonzero(~is_many) if len(self.many) else slice(None)


def _group_step(columns: _Columns, table: GroupTable, kept: GroupMemory) -> GroupStep:
    blocks, firsts = np.frombuffer(table.blocks, np.int64), np.frombuffer(table.firsts, np.int64)
    readers = None
    if len(columns.many) < len(columns.counts):
        seats = columns.seats[columns.few]
        live = firsts[seats]
        reading = Reading(
            tables=blocks,
            offsets=seats * table.width + live,
            firsts=live,
            starts=columns.starts[columns.few],
            rows=columns.counts[columns.few],
            row=columns.first_rows[columns.few],
        )
        readers = kept.readers(reading)
    return GroupStep(
        places=kept.places(_places(columns, table, blocks)),
        readers=readers,
        many=list(_many(columns, table, blocks)),
    )


def _places(columns: _Columns, table: GroupTable, blocks: Integers) -> Integers:
    seats, size = columns.seats, columns.block_tokens
    if len(columns.positions) > len(seats):
        seats = np.repeat(seats, columns.counts)
    found: Integers = blocks[seats * table.width + columns.positions // size] * size + columns.positions % size
    return found


def _many(columns: _Columns, table: GroupTable, blocks: Integers) -> Iterator[ManyChunk]:
    size = columns.block_tokens
    for chunk in columns.many.tolist():
        seat, end = int(columns.seats[chunk]), int(columns.starts[chunk] + columns.counts[chunk])
        first, row = table.firsts[seat], int(columns.first_rows[chunk])
        live = blocks[seat * table.width + first : seat * table.width - (-end // size)]
        scattered = None if (np.diff(live) == 1).all() else torch.from_numpy(live.copy())
        yield ManyChunk(
            rows=slice(row, row + int(columns.counts[chunk])),
            first=int(live[0]),
            columns=end - first * size,
            scattered=scattered,
        )
