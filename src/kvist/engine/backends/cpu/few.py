"""Attention of few rows over the blocks where they lie: each block is read once for all rows that see it.

What bounds it is reading K and V, so a step asks for the next memory while it computes with the last. A segment's
tokens are taken a tile at a time: scores of all queries, running maximum and sum, then values (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018). Rows that see several segments have partial results, which a second
pass merges by their sums (Dao et al., "Flash-Decoding for long-context inference", 2023).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Kernel, share
from kvist.engine.backends.cpu.numbers import (
    Array,
    Node,
    Number,
    Slots,
    exponential,
    floats,
    inlined,
    integers,
    matrix,
    narrow,
    prefetch,
    real,
    slot,
    widen,
)
from kvist.engine.backends.cpu.segments import ROWS_MAX, Integers, Plan
from kvist.engine.backends.cpu.vectors import KEYS, SETS, blend, blended, score, scored
from kvist.engine.backends.tiles import AttentionRule

TILE_TOKENS = 128
"""Tokens whose scores are held at once: enough to vectorise over, few enough that K and V of a tile stay near."""

AHEAD_BLOCKS = 3
"""How many blocks ahead of the one that is read memory is asked for: two and four are as good, eight are too many."""

_LOWEST = np.float32(-1e30)
"""Below every score, and finite: a difference of two of them is a number."""

# The arguments of `_attend`, in the order of `attend_few`.
_QUERY, _OUT, _KEYS, _VALUES, _WORK, _PARTIALS, _SEGMENTS, _PAIRS, _TABLES, _SHAPE = 0, 3, 6, 9, 12, 15, 18, 20, 22, 24
_KV_HEADS, _PER_KV_HEAD, _BLOCK_TOKENS, _HEAD_ROWS, _BLOCK_ROWS, _UNITS, _SCALING, _SOFTCAP = range(_SHAPE, _SHAPE + 8)

Item = tuple[int, Array, Array, Array, Array]
"""What a thread works on: the KV head; pairs as in a plan; the running maximum and sum of each query, [queries, 2]; its
sums of values, [queries, head_dim_v]; its scores, which become weights, [queries, columns of a tile and `KEYS` more].
Query m is the head m % per_kv_head of those of the KV head, in the row of pair m // per_kv_head.
"""

Spot = tuple[int, int, int]
"""Some tokens: their first row in the pool, their first column in the tile, how many."""


@intrinsic
def maximum(_context: Node, _a: Node, _b: Node) -> Node:
    """The larger of two float32; none if one is none, which lets the compiler look at many at once."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), ir.FloatType()])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maximum.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@intrinsic
def _address(_context: Node, array: Node) -> Node:
    """Where an array of a kernel lies."""

    def generate(context: Node, builder: Node, signature: Node, arguments: Node) -> Node:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(found.data, ir.IntType(64))

    return types.int64(array), generate


@inlined
def _score(slots: Slots, item: Item, spot: Spot, ahead: int) -> None:
    """Scores of some tokens for all queries, asking for keys so many rows ahead; columns beyond are overwritten."""
    head, pairs, _, _, scores = item
    row, column, tokens = spot
    query, keys, per = matrix(slots, _QUERY), matrix(slots, _KEYS), slot(slots, _PER_KV_HEAD)
    width = keys.shape[1]
    size, full = width * keys.itemsize, scored(slots, width)
    for m in range(len(scores)):
        asked, at = pairs[m // per, 0], (head * per + m % per) * width
        address = slot(slots, _QUERY) + (asked * query.shape[1] + at) * query.itemsize
        into = _address(scores) + (m * scores.shape[1] + column) * 4
        near = ahead * size * (m == 0)  # the other queries would ask for the same
        for t in range(0, tokens, KEYS):
            last = min(tokens - t, KEYS) - 1
            score(slots, (address, slot(slots, _KEYS) + (row + t) * size, size, last, width, into + t * 4, near))
        if full < width:
            for t in range(tokens):
                for d in range(full, width):
                    scores[m, column + t] += widen(query[asked, at + d]) * widen(keys[row + t, d])


@inlined
def _gather(slots: Slots, item: Item, spot: Spot, ahead: int) -> None:
    """Adds the values of some tokens to the sums of all queries, each under its weight; asks so many rows ahead."""
    _, _, _, sums, weights = item
    row, column, tokens = spot
    values = matrix(slots, _VALUES)
    width = values.shape[1]
    size, full = width * values.itemsize, blended(width)
    for m in range(0, len(sums), SETS):
        address = _address(weights) + (m * weights.shape[1] + column) * 4
        last = min(len(sums) - m, SETS) - 1
        into = _address(sums) + m * width * 4
        found = (slot(slots, _VALUES) + row * size, size, tokens)
        near = ahead * size * (m == 0)
        blend(slots, (*found, address, weights.shape[1] * 4, last, into, width * 4, near, width))
    if full < width:
        for m in range(len(sums)):
            for t in range(tokens):
                for d in range(full, width):
                    sums[m, d] += weights[m, column + t] * widen(values[row + t, d])


@inlined
def _fill(array: Array) -> None:
    for i in range(len(array)):
        array[i] = np.float32(0)


@inlined
def _weigh(scores: Array, state: Array, sums: Array, scaling: Number, seen: tuple[int, int]) -> None:
    """Makes weights of one query's scores in columns [low, high), 0 in the others; brings its maximum and sums along.

    `state` is the query's running maximum and the running sum of weights.
    """
    low, high = seen
    _fill(scores[:low])
    _fill(scores[high:])
    if low >= high:
        return
    within = scores[low:high]
    highest = state[0]
    for t in range(len(within)):
        score = within[t] * scaling
        within[t] = score
        highest = maximum(highest, score)
    total = np.float32(0)
    for t in range(len(within)):
        weight = exponential(within[t] - highest)
        within[t] = weight
        total += weight
    if highest > state[0]:
        factor = exponential(state[0] - highest)
        state[0] = highest
        state[1] *= factor
        for d in range(len(sums)):
            sums[d] *= factor
    state[1] += total


@inlined
def _cap(scores: Array, scaling: Number, softcap: Number) -> None:
    """Scales scores and squashes them into (-softcap, softcap): softcap * tanh(score / softcap)."""
    twice = np.float32(2) * scaling / softcap
    for m in range(len(scores)):
        row = scores[m]
        for t in range(len(row)):
            power = exponential(min(row[t] * twice, np.float32(40)))
            row[t] = softcap - np.float32(2) * softcap / (power + np.float32(1))


@inlined
def _weigh_all(slots: Slots, item: Item, first: int, columns: int) -> None:
    """Makes weights of a tile's scores; its columns are the segment's tokens from `first` on."""
    _, pairs, state, sums, scores = item
    scaling, softcap, per = real(slots, _SCALING), real(slots, _SOFTCAP), slot(slots, _PER_KV_HEAD)
    if softcap > 0:
        _cap(scores, scaling, softcap)
        scaling = np.float32(1)
    for m in range(len(scores)):
        pair = pairs[m // per]
        low, high = min(max(pair[1] - first, 0), columns), min(max(pair[2] - first, 0), columns)
        _weigh(scores[m], state[m], sums[m], scaling, (low, high))


@inlined
def _ask(slots: Slots, of: int, row: int, array: Array) -> None:
    """Has a block's K or V of one head brought near."""
    size = array.shape[1] * array.itemsize
    begin = slot(slots, of) + row * size
    for byte in range(0, slot(slots, _BLOCK_TOKENS) * size, 64):
        prefetch(begin + byte)


@inlined
def _read(slots: Slots, item: Item, blocks: Array) -> None:
    """All tokens of a segment, a tile at a time."""
    head, pairs, _, _, scores = item
    keys, values, size = matrix(slots, _KEYS), matrix(slots, _VALUES), slot(slots, _BLOCK_TOKENS)
    block_rows, head_row = slot(slots, _BLOCK_ROWS), slot(slots, _HEAD_ROWS) * head
    tile = (scores.shape[1] - KEYS) // size
    low, high = pairs[0, 1], pairs[0, 2]
    for i in range(len(pairs)):
        low, high = min(low, pairs[i, 1]), max(high, pairs[i, 2])
    begin = low // size
    for i in range(begin, min(begin + AHEAD_BLOCKS, len(blocks))):
        _ask(slots, _KEYS, head_row + blocks[i] * block_rows, keys)
        _ask(slots, _VALUES, head_row + blocks[i] * block_rows, values)
    for start in range(begin, len(blocks), tile):
        end = min(start + tile, len(blocks))
        for i in range(start, end):
            row, skip = head_row + blocks[i] * block_rows, max(low - i * size, 0)
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * block_rows
            _score(slots, item, (row + skip, (i - start) * size + skip, min(high - i * size, size) - skip), near)
        _weigh_all(slots, item, start * size, (end - start) * size)
        for i in range(start, end):
            row, skip = head_row + blocks[i] * block_rows, max(low - i * size, 0)
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * block_rows
            _gather(slots, item, (row + skip, (i - start) * size + skip, min(high - i * size, size) - skip), near)


@inlined
def _item(slots: Slots, head: int, pairs: Array, work: Array) -> Item:
    """Divides a thread's memory for some pairs, with nothing seen yet."""
    width, size = matrix(slots, _VALUES).shape[1], slot(slots, _BLOCK_TOKENS)
    count, columns = len(pairs) * slot(slots, _PER_KV_HEAD), max(TILE_TOKENS // size, 1) * size + KEYS
    a = count * 2
    b = a + count * width
    state, sums = work[:a].reshape(count, 2), work[a:b].reshape(count, width)
    _fill(work[:b])
    for m in range(count):
        state[m, 0] = _LOWEST
    return head, pairs, state, sums, work[b : b + count * columns].reshape(count, columns)


@inlined
def _write(slots: Slots, item: Item) -> None:
    """Writes the results of rows that see one segment; what is known of others goes to their partial results."""
    head, pairs, state, sums, _ = item
    out, partials, per = matrix(slots, _OUT), floats(slots, _PARTIALS), slot(slots, _PER_KV_HEAD)
    width = sums.shape[1]
    for m in range(len(sums)):
        query_head, partial = head * per + m % per, pairs[m // per, 3]
        if partial < 0:
            target, factor = out[pairs[m // per, 0]], np.float32(1) / state[m, 1]
            for d in range(width):
                target[query_head * width + d] = narrow(sums[m, d] * factor, out)
        else:
            kept = partials[partial * slot(slots, _KV_HEADS) * per + query_head]
            for d in range(width):
                kept[d] = sums[m, d]
            kept[width], kept[width + 1] = state[m, 0], state[m, 1]


def _attend(slots: Slots) -> None:
    """The thread's share of all segments and KV heads; one that begins in another's share is the other's."""
    work, tables = floats(slots, _WORK), integers(slots, _TABLES)
    segments, pairs = integers(slots, _SEGMENTS).reshape(-1, 5), integers(slots, _PAIRS).reshape(-1, 4)
    units, heads = slot(slots, _UNITS), slot(slots, _KV_HEADS)
    mine, _ = share(work.shape[0], 1)
    first, end = share(units * heads, 1)
    for head in range(heads):
        for i in range(len(segments)):
            offset, blocks, pair, count, before = (
                segments[i, 0],
                segments[i, 1],
                segments[i, 2],
                segments[i, 3],
                segments[i, 4],
            )
            if first <= head * units + before < end:
                item = _item(slots, head, pairs[pair : pair + count], work[mine])
                _read(slots, item, tables[offset : offset + blocks])
                _write(slots, item)


def _merge(slots: Slots) -> None:
    """The thread's share of rows that have several partial results: their sums, as if under one maximum."""
    out, partials = matrix(slots, 0), floats(slots, 3)
    merges, heads = integers(slots, 6).reshape(-1, 3), slot(slots, 8)
    width = partials.shape[1] - 2
    first, end = share(len(merges) * heads, 1)
    for item in range(first, end):
        merge, head = merges[item // heads], item % heads
        target = out[merge[0]]
        highest, total = _LOWEST, np.float32(0)
        for i in range(merge[1], merge[1] + merge[2]):
            highest = max(highest, partials[i * heads + head, width])
        kept = partials[merge[1] * heads + head]
        for i in range(merge[1], merge[1] + merge[2]):
            part = partials[i * heads + head]
            factor = exponential(part[width] - highest)
            total += part[width + 1] * factor
            if i == merge[1]:
                for d in range(width):
                    kept[d] *= factor
            else:
                for d in range(width):
                    kept[d] += part[d] * factor
        for d in range(width):
            target[head * width + d] = narrow(kept[d] / total, out)


_attend_kernel = Kernel(_attend)
_merge_kernel = Kernel(_merge)


class Scratch:
    """Memory that kernels compute with; it grows to the largest step seen, and what a step needs is bounded."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._held: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Memory of this shape and of whatever content; for the same name it is the same memory."""
        size, held = math.prod(shape), self._held.get((name, dtype))
        if held is None or held.numel() < size:
            held = self._held[name, dtype] = torch.empty(size, dtype=dtype)
        return held[:size].view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._held.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One layer's K and V.

    Attributes:
        keys: [kv_heads, tokens, head_dim_k], a head's tokens side by side.
        values: [kv_heads, tokens, head_dim_v].
        block_tokens: tokens of a block.
        apart: tokens from one head to the next and from one block to the next; None where they are as in these shapes.
    """

    keys: torch.Tensor
    values: torch.Tensor
    block_tokens: int
    apart: tuple[int, int] | None = None


class Readers:
    """A plan with the memory that it needs, ready for all layers of its group."""

    def __init__(self, plan: Plan, scratch: Scratch) -> None:
        """Keeps the arrays of the plan where kernels find them."""
        self._arrays = plan.segments, plan.pairs, plan.tables, plan.merges
        segments, pairs, tables, merges = (_integers(array) for array in self._arrays)
        self.plan = plan
        self.slots = (*segments, *pairs, *tables)
        self.merges = merges
        self.scratch = scratch


def attend_few(  # noqa: PLR0913  five things are of attention, the sixth is when
    query: torch.Tensor,
    pool: Pool,
    readers: Readers,
    rule: AttentionRule,
    out: torch.Tensor,
    *,
    program: kernel.Program | None = None,
) -> None:
    """Attention of rows as planned; the plan has seen to the window.

    Args:
        query: [rows, heads, head_dim_k]; heads of one KV head side by side.
        pool: where K and V lie, those of the rows included.
        readers: who reads what.
        rule: scaling and softcap.
        out: [rows, heads, head_dim_v]; rows that are in no plan stay as they are.
        program: what this is added to, instead of being done now.
    """
    rows, heads, width_k = query.shape
    kv_heads, tokens, width_v = pool.values.shape
    per, plan = heads // kv_heads, readers.plan
    head_rows, block_rows = pool.apart or (tokens, pool.block_tokens)
    columns = max(TILE_TOKENS, pool.block_tokens) + KEYS
    work = readers.scratch.take("work", (torch.get_num_threads(), ROWS_MAX * per * (2 + width_v + columns)))
    partials = readers.scratch.take("partials", (plan.partials * heads, width_v + 2))
    _attend_kernel(
        query.dtype,
        query.data_ptr(),
        rows,
        query.stride(0),
        out.data_ptr(),
        rows,
        out.stride(0),
        pool.keys.data_ptr(),
        kv_heads * tokens,
        width_k,
        pool.values.data_ptr(),
        kv_heads * tokens,
        width_v,
        *kernel.matrix(work),
        *kernel.matrix(partials),
        *readers.slots,
        kv_heads,
        per,
        pool.block_tokens,
        head_rows,
        block_rows,
        plan.units,
        kernel.real(rule.scaling),
        kernel.real(rule.softcap or 0.0),
        program=program,
    )
    if program is not None:
        program.hold(work, partials, readers)
    if plan.partials:
        slots = (out.data_ptr(), rows, out.stride(0), *kernel.matrix(partials), *readers.merges, heads)
        _merge_kernel(query.dtype, *slots, program=program)


def _integers(array: Integers) -> tuple[int, int]:
    assert array.flags.c_contiguous, f"strides {array.strides}"
    return array.__array_interface__["data"][0], array.size
