"""Which rows of a step read which blocks: a plan of segments for one KV group, in numbers alone.

A segment is a run of blocks and the rows that read it. Blocks that several sequences begin with are read once for all
of them; long contexts are divided, so that threads have equal work; rows that then see several segments have partial
results to be merged. Everything is int64 and made in bulk: a step's plan must cost less than what it saves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]

ROWS_MAX = 32
"""Rows of one segment at most: what a thread holds for them stays in the processor's second cache."""

PIECE_TOKENS = 384
"""A context is not divided into less: a segment begins with memory that nobody could ask for ahead of time."""

PIECES = 16
"""Into about how many pieces the work of a step is divided, where it is enough."""

SHARED_TOKENS_MIN = 64
"""Fewer tokens that sequences have in common are read for each of them."""

_BLOCK_WORK, _ROW_WORK = 4, 1
"""Work of a block: for reading it, and for each row that sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The sequences of a step as they see one KV group; entry i of each array is of sequence i.

    Attributes:
        tables: numbers of blocks; a sequence's live blocks lie one after the other.
        offsets: where in `tables` the live blocks of a sequence begin.
        firsts: index in the sequence of the first live block.
        starts: position of the first row.
        rows: how many rows, at consecutive positions.
        row: which of the step's rows is the first.
    """

    tables: Integers
    offsets: Integers
    firsts: Integers
    starts: Integers
    rows: Integers
    row: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be read, by whom, and what is then to be merged.

    Attributes:
        tables: as in `Reading`.
        segments: [segments, 5]: offset in `tables`, blocks, first pair, pairs, units of work in the segments before.
        pairs: [pairs, 4]: a row, the tokens [low, high) of the segment that it sees, and its partial result, or -1 if
            it sees no other segment.
        merges: [rows, 3]: a row that sees several segments, its first partial result, how many follow.
        partials: how many partial results there are.
        units: work of all segments, in blocks.
    """

    tables: Integers
    segments: Integers
    pairs: Integers
    merges: Integers
    partials: int
    units: int


def plan(reading: Reading, *, block_tokens: int, window: int | None) -> Plan:
    """Divides the reading of a step; every row sees exactly the positions up to its own, or the last `window` of them.

    Args:
        reading: at least one sequence, none of more than `ROWS_MAX` rows.
        block_tokens: tokens of a block.
        window: how many positions a row looks back, itself included; None means all.
    """
    spans = _spans(reading, block_tokens, window)
    lead = spans.members[spans.first]
    rows = reading.rows[spans.members]
    rows_of_span = np.add.reduceat(rows, spans.first)
    span, begin, blocks = _cut(spans, rows_of_span, -(-PIECE_TOKENS // block_tokens))
    base = (reading.firsts[lead][span] + begin) * block_tokens
    # Each piece with each row of its span.
    pairs_of_piece = rows_of_span[span]
    places = runs((np.cumsum(rows_of_span) - rows_of_span)[span], pairs_of_piece)
    row = runs(reading.row[spans.members], rows)[places]
    position = runs(reading.starts[spans.members], rows)[places] - np.repeat(base, pairs_of_piece)
    pairs = np.empty((len(row), 4), np.int64)
    pairs[:, 0] = row
    pairs[:, 1] = 0 if window is None else np.maximum(position + (1 - window), 0)
    pairs[:, 2] = np.minimum(position + 1, np.repeat(blocks * block_tokens, pairs_of_piece))
    pairs[:, 3], merges, partials = _partials(row)
    work = blocks * (_BLOCK_WORK + _ROW_WORK * pairs_of_piece)
    segments = np.empty((len(span), 5), np.int64)
    segments[:, 0] = reading.offsets[lead][span] + begin
    segments[:, 1] = blocks
    segments[:, 2] = np.cumsum(pairs_of_piece) - pairs_of_piece
    segments[:, 3] = pairs_of_piece
    segments[:, 4] = np.cumsum(work) - work
    return Plan(
        tables=reading.tables, segments=segments, pairs=pairs, merges=merges, partials=partials, units=int(work.sum())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Runs of live blocks [begin, begin + blocks) and who reads them: members from `first` of a span on."""

    members: Integers
    first: Integers
    begin: Integers
    blocks: Integers


def _spans(reading: Reading, block_tokens: int, window: int | None) -> _Spans:
    """What is shared, then what each sequence has to itself."""
    blocks = -(-(reading.starts + reading.rows) // block_tokens) - reading.firsts
    everyone = np.arange(len(blocks))
    if window is not None:
        begin = np.maximum((reading.starts - window + 1) // block_tokens - reading.firsts, 0)
        return _Spans(members=everyone, first=everyone, begin=begin, blocks=blocks - begin)
    own = np.zeros_like(blocks)
    found = list(_shared(reading, -(-SHARED_TOKENS_MIN // block_tokens), reading.starts // block_tokens))
    if not found:
        return _Spans(members=everyone, first=everyone, begin=own, blocks=blocks)
    parts = [(part, begin, end) for members, begin, end in found for part in _few(members, reading.rows)]
    for members, _, end in parts:
        own[members] = end
    counts = np.concatenate([[len(part) for part, _, _ in parts], np.ones_like(own)])
    begins = np.array([begin for _, begin, _ in parts])
    return _Spans(
        members=np.concatenate([*(part for part, _, _ in parts), everyone]),
        first=np.cumsum(counts) - counts,
        begin=np.concatenate([begins, own]),
        blocks=np.concatenate([[end for _, _, end in parts] - begins, blocks - own]),
    )


def _shared(reading: Reading, least: int, whole: Integers) -> Iterator[tuple[Integers, int, int]]:
    """Sequences that have live blocks [begin, end) in common, at least `least` of them; the longer a prefix, the later.

    Args:
        reading: of a group without a window, so that all sequences' first live blocks are their first.
        least: blocks.
        whole: how many blocks of each sequence all of its rows see.
    """
    waiting = [(np.arange(len(whole)), 0, 0)]
    while waiting:
        members, begin, depth = waiting.pop()
        members = members[whole[members] > depth]
        heads = reading.tables[reading.offsets[members] + depth]
        _, inverse, counts = np.unique(heads, return_inverse=True, return_counts=True)
        for value in np.flatnonzero(counts > 1):
            alike = members[inverse == value]
            limit = int(whole[alike].min())
            table = reading.tables[reading.offsets[alike][:, None] + np.arange(depth, limit)]
            same = (table == table[0]).all(axis=0)
            end = depth + (len(same) if same.all() else int(same.argmin()))
            if end - begin < least:
                waiting.append((alike, begin, end))
                continue
            yield alike, begin, end
            waiting.append((alike, end, end))


def _few(members: Integers, rows: Integers) -> Iterator[Integers]:
    """Divides the readers of a span into parts of at most `ROWS_MAX` rows."""
    before = np.cumsum(rows[members])
    first = 0
    while first < len(members):
        limit = ROWS_MAX + (before[first - 1] if first else 0)
        end = int(np.searchsorted(before, limit, side="right"))
        yield members[first:end]
        first = end


def _cut(spans: _Spans, rows: Integers, least: int) -> tuple[Integers, Integers, Integers]:
    """Pieces of about equal work and at least `least` blocks: of which span, its first block in it, how many."""
    work = spans.blocks * (_BLOCK_WORK + _ROW_WORK * rows)
    pieces = np.maximum(np.minimum(work * PIECES // max(int(work.sum()), 1), spans.blocks // least), 1)
    each = -(-spans.blocks // pieces)
    pieces = -(-spans.blocks // each)
    span = np.repeat(np.arange(len(pieces)), pieces)
    offset = runs(np.zeros_like(pieces), pieces) * each[span]
    return span, spans.begin[span] + offset, np.minimum(each[span], spans.blocks[span] - offset)


def _partials(row: Integers) -> tuple[Integers, Integers, int]:
    """Numbers the partial results, those of a row one after the other.

    Returns:
        For each pair its partial result or -1; for each row that has several: row, first, count; how many in all.
    """
    seen = np.bincount(row)
    several = seen > 1
    numbers = np.full(len(row), -1)
    which = np.flatnonzero(several[row])
    numbers[which[np.argsort(row[which], kind="stable")]] = np.arange(len(which))
    counts = seen[several]
    merges = np.stack([np.flatnonzero(several), np.cumsum(counts) - counts, counts], axis=1)
    return numbers, merges, len(which)


def runs(first: Integers, counts: Integers) -> Integers:
    """first[0], first[0] + 1, ..., `counts[0]` of them, then the same of the next, and so on."""
    ends = np.cumsum(counts)
    return np.repeat(first - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)
