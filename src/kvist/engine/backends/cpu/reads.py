"""What a thread does with segments of few rows: it walks over their blocks, each read once for all rows that see it.

What bounds it is reading K and V, so it asks for the next memory while it computes with the last.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvist.engine.backends.cpu.kernel import Kernel, share
from kvist.engine.backends.cpu.numbers import (
    Array,
    Given,
    Node,
    floats,
    given_at,
    inlined,
    integer,
    integers,
    matrix,
    narrow,
    prefetch,
    real,
    widen,
)
from kvist.engine.backends.cpu.online import LOWEST, cap, fill, merged, weigh
from kvist.engine.backends.cpu.vectors import KEYS, SETS, blend, blended, score, scored

TILE_TOKENS = 128
"""Tokens whose scores are held at once: enough to vectorise over, few enough that K and V of a tile stay near."""

AHEAD_BLOCKS = 3
"""How many blocks ahead of the one that is read memory is asked for: two and four are as good, eight are too many."""

# The arguments of both kernels, in the order of `kvist.engine.backends.cpu.few.attend_few`.
_QUERY, _OUT, _KEYS, _VALUES, _WORK, _PLAN, _SHAPE = 0, 3, 6, 9, 12, 15, 16
_KV_HEADS, _PER_KV_HEAD, _BLOCK_TOKENS, _HEAD_ROWS, _BLOCK_ROWS, _SCALING, _SOFTCAP = range(_SHAPE, _SHAPE + 7)

# What is at the address of the plan, in the order of `kvist.engine.backends.cpu.few.Readers`.
_SEGMENTS, _PAIRS, _TABLES, _MERGES, _PARTIALS, _UNITS = 0, 2, 4, 6, 8, 11

Item = tuple[int, Array, Array, Array, Array]
"""What a thread works on: the KV head; pairs as in a plan; the running maximum and sum of each query, [queries, 2]; its
sums of values, [queries, head_dim_v]; its scores, which become weights, [queries, columns of a tile and `KEYS` more].
Query m is the head m % per_kv_head of those of the KV head, in the row of pair m // per_kv_head.
"""

Spot = tuple[int, int, int]
"""Some tokens: their first row in the pool, their first column in the tile, how many."""


@intrinsic
def _address(_context: Node, array: Node) -> Node:
    """Where an array of a kernel lies."""

    def generate(context: Node, builder: Node, signature: Node, arguments: Node) -> Node:
        found = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(found.data, ir.IntType(64))

    return types.int64(array), generate


@inlined
def _score(given: Given, item: Item, spot: Spot, ahead: int) -> None:
    """Scores of some tokens for all queries, asking for keys so many rows ahead; columns beyond are overwritten."""
    head, pairs, _, _, scores = item
    row, column, tokens = spot
    query, keys, per = matrix(given, _QUERY), matrix(given, _KEYS), integer(given, _PER_KV_HEAD)
    width = keys.shape[1]
    size, full = width * keys.itemsize, scored(given, width)
    for m in range(len(scores)):
        asked, at = pairs[m // per, 0], (head * per + m % per) * width
        address = integer(given, _QUERY) + (asked * query.shape[1] + at) * query.itemsize
        into = _address(scores) + (m * scores.shape[1] + column) * 4
        near = ahead * size * (m == 0)  # the other queries would ask for the same
        for t in range(0, tokens, KEYS):
            last = min(tokens - t, KEYS) - 1
            score(given, (address, integer(given, _KEYS) + (row + t) * size, size, last, width, into + t * 4, near))
        if full < width:
            for t in range(tokens):
                for d in range(full, width):
                    scores[m, column + t] += widen(query[asked, at + d]) * widen(keys[row + t, d])


@inlined
def _gather(given: Given, item: Item, spot: Spot, ahead: int) -> None:
    """Adds the values of some tokens to the sums of all queries, each under its weight; asks so many rows ahead."""
    _, _, _, sums, weights = item
    row, column, tokens = spot
    values = matrix(given, _VALUES)
    width = values.shape[1]
    size, full = width * values.itemsize, blended(width)
    for m in range(0, len(sums), SETS):
        address = _address(weights) + (m * weights.shape[1] + column) * 4
        last = min(len(sums) - m, SETS) - 1
        into = _address(sums) + m * width * 4
        found = (integer(given, _VALUES) + row * size, size, tokens)
        near = ahead * size * (m == 0)
        blend(given, (*found, address, weights.shape[1] * 4, last, into, width * 4, near, width))
    if full < width:
        for m in range(len(sums)):
            for t in range(tokens):
                for d in range(full, width):
                    sums[m, d] += weights[m, column + t] * widen(values[row + t, d])


@inlined
def _weigh_all(given: Given, item: Item, first: int, columns: int) -> None:
    """Makes weights of a tile's scores; its columns are the segment's tokens from `first` on."""
    _, pairs, state, sums, scores = item
    scaling, softcap, per = real(given, _SCALING), real(given, _SOFTCAP), integer(given, _PER_KV_HEAD)
    if softcap > 0:
        cap(scores, scaling, softcap)
        scaling = np.float32(1)
    for m in range(len(scores)):
        pair = pairs[m // per]
        low, high = min(max(pair[1] - first, 0), columns), min(max(pair[2] - first, 0), columns)
        weigh(scores[m], state[m], sums[m], scaling, (low, high))


@inlined
def _ask(given: Given, of: int, row: int, array: Array) -> None:
    """Has a block's K or V of one head brought near."""
    size = array.shape[1] * array.itemsize
    begin = integer(given, of) + row * size
    for byte in range(0, integer(given, _BLOCK_TOKENS) * size, 64):
        prefetch(begin + byte)


@inlined
def _read(given: Given, item: Item, blocks: Array) -> None:
    """All tokens of a segment, a tile at a time."""
    head, pairs, _, _, scores = item
    keys, values, size = matrix(given, _KEYS), matrix(given, _VALUES), integer(given, _BLOCK_TOKENS)
    block_rows, head_row = integer(given, _BLOCK_ROWS), integer(given, _HEAD_ROWS) * head
    tile = (scores.shape[1] - KEYS) // size
    low, high = pairs[0, 1], pairs[0, 2]
    for i in range(len(pairs)):
        low, high = min(low, pairs[i, 1]), max(high, pairs[i, 2])
    begin = low // size
    for i in range(begin, min(begin + AHEAD_BLOCKS, len(blocks))):
        _ask(given, _KEYS, head_row + blocks[i] * block_rows, keys)
        _ask(given, _VALUES, head_row + blocks[i] * block_rows, values)
    for start in range(begin, len(blocks), tile):
        end = min(start + tile, len(blocks))
        for i in range(start, end):
            row, skip = head_row + blocks[i] * block_rows, max(low - i * size, 0)
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * block_rows
            _score(given, item, (row + skip, (i - start) * size + skip, min(high - i * size, size) - skip), near)
        _weigh_all(given, item, start * size, (end - start) * size)
        for i in range(start, end):
            row, skip = head_row + blocks[i] * block_rows, max(low - i * size, 0)
            near = (blocks[min(i + AHEAD_BLOCKS, len(blocks) - 1)] - blocks[i]) * block_rows
            _gather(given, item, (row + skip, (i - start) * size + skip, min(high - i * size, size) - skip), near)


@inlined
def _item(given: Given, head: int, pairs: Array, work: Array) -> Item:
    """Divides a thread's memory for some pairs, with nothing seen yet."""
    width, size = matrix(given, _VALUES).shape[1], integer(given, _BLOCK_TOKENS)
    count, columns = len(pairs) * integer(given, _PER_KV_HEAD), max(TILE_TOKENS // size, 1) * size + KEYS
    a = count * 2
    b = a + count * width
    state, sums = work[:a].reshape(count, 2), work[a:b].reshape(count, width)
    fill(work[:b])
    for m in range(count):
        state[m, 0] = LOWEST
    return head, pairs, state, sums, work[b : b + count * columns].reshape(count, columns)


@inlined
def _write(given: Given, item: Item) -> None:
    """Writes the results of rows that see one segment; what is known of others goes to their partial results."""
    head, pairs, state, sums, _ = item
    out, partials, per = (
        matrix(given, _OUT),
        floats(given_at(integer(given, _PLAN)), _PARTIALS),
        integer(given, _PER_KV_HEAD),
    )
    width = sums.shape[1]
    for m in range(len(sums)):
        query_head, partial = head * per + m % per, pairs[m // per, 3]
        if partial < 0:
            target, factor = out[pairs[m // per, 0]], np.float32(1) / state[m, 1]
            for d in range(width):
                target[query_head * width + d] = narrow(sums[m, d] * factor, out)
        else:
            kept = partials[partial, query_head * (width + 2) : (query_head + 1) * (width + 2)]
            for d in range(width):
                kept[d] = sums[m, d]
            kept[width], kept[width + 1] = state[m, 0], state[m, 1]


def _attend(given: Given) -> None:
    """The thread's share of all segments and KV heads; one that begins in another's share is the other's."""
    work, plan, heads = floats(given, _WORK), given_at(integer(given, _PLAN)), integer(given, _KV_HEADS)
    segments, pairs = integers(plan, _SEGMENTS).reshape(-1, 5), integers(plan, _PAIRS).reshape(-1, 4)
    tables, units = integers(plan, _TABLES), integer(plan, _UNITS)
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
                item = _item(given, head, pairs[pair : pair + count], work[mine])
                _read(given, item, tables[offset : offset + blocks])
                _write(given, item)


def _merge(given: Given) -> None:
    """The thread's share of rows that have several partial results."""
    out, plan = matrix(given, _OUT), given_at(integer(given, _PLAN))
    partials, merges = floats(plan, _PARTIALS), integers(plan, _MERGES).reshape(-1, 3)
    heads, width = integer(given, _KV_HEADS) * integer(given, _PER_KV_HEAD), matrix(given, _VALUES).shape[1]
    first, end = share(len(merges) * heads, 1)
    for item in range(first, end):
        merge, head = merges[item // heads], item % heads
        results = partials[merge[1] : merge[1] + merge[2], head * (width + 2) : (head + 1) * (width + 2)]
        merged(results, out[merge[0], head * width : (head + 1) * width])


attend_segments, merge_results = Kernel(_attend), Kernel(_merge)
