"""One step's work as plain data: which tokens of which sequences to compute, over which blocks.

The engine decides it, a backend carries it out; neither needs the other's types. It is kept in columns of 64-bit
integers, which the engine fills with few instructions and a backend reads where they lie
(``numpy.frombuffer(batch.positions, numpy.int64)``); a `Chunk` is one sequence's share of them, put together for
whoever looks at sequences one by one.

    chunk       0        1          2
    starts      40       0          17           where each begins in its sequence
    counts      1        3          1            its tokens in this step
    rows        0        1  2  3    4            tokens end to end: `tokens`, `positions`
    seats       5        0          2            its row of blocks in the table of each KV group
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.request import Sampling

Integers: TypeAlias = "array[int]"
"""Signed, 64 bits each."""


def integers(values: Iterable[int] = ()) -> Integers:
    """A column."""
    return array("q", values)


class GroupTable:
    """The blocks of every seat in one KV group, as a matrix [seats, width].

    Block i of the sequence on seat s, which holds the positions from i * block_tokens on, is
    ``blocks[s * width + i]``, for i from ``firsts[s]``, the first that is live, up to the end of its chunk; what else
    stands in a row is left over from others, though each number was a block of the group once.

    Attributes:
        blocks: [seats * width].
        firsts: [seats]; 0 in a group without a window.
        width: most blocks of a sequence, live or passed.
    """

    __slots__ = ("blocks", "firsts", "width")

    def __init__(self, seats: int, width: int) -> None:
        """Makes a table of nothing but zeros."""
        self.width = width
        self.blocks = integers(bytes(8 * seats * width))
        self.firsts = integers(bytes(8 * seats))

    def write(self, seat: int, index: int, blocks: Iterable[int]) -> None:
        """Puts blocks into a seat's row from an index on, in a wider matrix if they go beyond this one.

        What was made of `blocks` before stays what it was when the matrix grows, so look at it anew in each step.
        """
        new = integers(blocks)
        if not new:
            return  # even nothing is not put into an array while somebody looks at its memory
        if index + len(new) > self.width:
            self._widen(max(index + len(new), 2 * self.width))
        begin = seat * self.width + index
        self.blocks[begin : begin + len(new)] = new

    def run(self, seat: int, end: int) -> "BlockRun":
        """The live blocks of a seat up to an index."""
        first, row = self.firsts[seat], seat * self.width
        return BlockRun(first=first, blocks=tuple(map(BlockId, self.blocks[row + first : row + end])))

    def _widen(self, width: int) -> None:
        wider = integers(bytes(8 * len(self.firsts) * width))
        for seat in range(len(self.firsts)):
            old = self.blocks[seat * self.width : (seat + 1) * self.width]
            wider[seat * width : seat * width + len(old)] = old
        self.blocks, self.width = wider, width


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """The live blocks of one sequence in one KV group.

    Attributes:
        first: index of the first of them in the sequence: it starts at position first * block_tokens.
        blocks: consecutive from there on, up to the end of the chunk.
    """

    first: int
    blocks: tuple[BlockId, ...]


class DrawSpec(NamedTuple):
    """How to draw the token after a chunk.

    Attributes:
        sampling: temperature and filters.
        uniform: the number in [0, 1) that decides the draw; 0 where nothing is left to chance, at temperature 0.
    """

    sampling: Sampling
    uniform: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Consecutive tokens of one sequence.

    Attributes:
        request_id: whose they are.
        tokens: the tokens to compute; their KV is written.
        start: position of the first; the KV of all positions below is in the blocks already.
        runs: the sequence's live blocks, by KV group.
        draw: set when the chunk ends the sequence so far, so that a next token is wanted.
    """

    request_id: RequestId
    tokens: tuple[TokenId, ...]
    start: int
    runs: tuple[BlockRun, ...]
    draw: DrawSpec | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The chunks of one step, in columns; iterating makes `Chunk`s.

    Everything is the engine's and read-only. The tables are those of the whole engine: they hold while the step is
    computed, and the next one changes them.

    Attributes:
        request_ids: [chunks], whose each is.
        tokens: [rows], what to compute.
        positions: [rows], where in its sequence each is.
        starts: [chunks], position of each chunk's first token; the KV of all positions below is in the blocks already.
        counts: [chunks], tokens of each; 1 where a sequence decodes.
        seats: [chunks], each chunk's row in the tables.
        draws: [chunks], set where a chunk ends its sequence so far, so that a next token is wanted.
        tables: the blocks, by KV group.
        block_tokens: tokens per block.
    """

    request_ids: Sequence[RequestId]
    tokens: Integers
    positions: Integers
    starts: Integers
    counts: Integers
    seats: Integers
    draws: Sequence[DrawSpec | None]
    tables: tuple[GroupTable, ...]
    block_tokens: int

    def __len__(self) -> int:
        return len(self.request_ids)

    def __iter__(self) -> Iterator[Chunk]:
        row = 0
        for request_id, start, count, seat, draw in zip(
            self.request_ids, self.starts, self.counts, self.seats, self.draws, strict=True
        ):
            end = -(-(start + count) // self.block_tokens)
            yield Chunk(
                request_id=request_id,
                tokens=tuple(map(TokenId, self.tokens[row : row + count])),
                start=start,
                runs=tuple(table.run(seat, end) for table in self.tables),
                draw=draw,
            )
            row += count


def batch_of(chunks: Sequence[Chunk], *, block_tokens: int) -> Batch:
    """A batch of chunks that were put together one by one; each sits by itself.

    Args:
        chunks: at least one; all have runs of the same KV groups.
        block_tokens: tokens per block.
    """
    tables = tuple(GroupTable(len(chunks), 1) for _ in chunks[0].runs)
    for seat, chunk in enumerate(chunks):
        for table, run in zip(tables, chunk.runs, strict=True):
            table.write(seat, run.first, run.blocks)
            table.firsts[seat] = run.first
    return Batch(
        request_ids=[chunk.request_id for chunk in chunks],
        tokens=integers(chain.from_iterable(chunk.tokens for chunk in chunks)),
        positions=integers(
            chain.from_iterable(range(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks)
        ),
        starts=integers(chunk.start for chunk in chunks),
        counts=integers(len(chunk.tokens) for chunk in chunks),
        seats=integers(range(len(chunks))),
        draws=[chunk.draw for chunk in chunks],
        tables=tables,
        block_tokens=block_tokens,
    )


class Drawn(NamedTuple):
    """A drawn token, with log-probabilities where they were asked for."""

    token: TokenId
    logprob: float | None = None
    top: tuple[tuple[TokenId, float], ...] = ()
