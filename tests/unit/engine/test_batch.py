"""Columns and the chunks they are made of are two views of one step."""

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.batch import Batch, BlockRun, Chunk, DrawSpec, GroupTable, batch_of, integers
from kvist.engine.request import Sampling

SIZE = 4


@st.composite
def chunks_of_a_batch(draw: st.DrawFn) -> list[Chunk]:
    """Sequences of all lengths, in two groups of which the second lets go of what is behind."""
    made = []
    for index in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 40)), draw(st.integers(1, 20))
        blocks = draw(st.lists(st.integers(0, 99), min_size=(n := -(-(start + count) // SIZE)), max_size=n))
        first = draw(st.integers(0, start // SIZE))
        made.append(
            Chunk(
                request_id=RequestId(f"{index}"),
                tokens=tuple(map(TokenId, draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))),
                start=start,
                runs=(run(0, blocks), run(first, blocks[first:])),
                draw=draw(st.sampled_from([None, DrawSpec(Sampling(), 0.5)])),
            )
        )
    return made


def run(first: int, blocks: list[int]) -> BlockRun:
    return BlockRun(first=first, blocks=tuple(map(BlockId, blocks)))


@given(chunks_of_a_batch())
def test_a_batch_of_chunks_is_those_chunks(chunks: list[Chunk]) -> None:
    batch = batch_of(chunks, block_tokens=SIZE)
    assert list(batch) == chunks
    assert len(batch) == len(chunks)


@given(chunks_of_a_batch())
def test_the_columns_say_the_same(chunks: list[Chunk]) -> None:
    batch = batch_of(chunks, block_tokens=SIZE)
    rows = [(chunk.start + offset, token) for chunk in chunks for offset, token in enumerate(chunk.tokens)]
    assert list(zip(batch.positions, batch.tokens, strict=True)) == rows
    assert list(zip(batch.starts, batch.counts, strict=True)) == [(each.start, len(each.tokens)) for each in chunks]


@given(chunks_of_a_batch())
def test_blocks_are_found_where_the_docstring_says(chunks: list[Chunk]) -> None:
    batch = batch_of(chunks, block_tokens=SIZE)
    for group, table in enumerate(batch.tables):
        matrix = np.frombuffer(table.blocks, np.int64).reshape(-1, table.width)
        for chunk, seat in zip(chunks, batch.seats, strict=True):
            wanted = chunk.runs[group]
            assert table.firsts[seat] == wanted.first
            assert tuple(matrix[seat, wanted.first : wanted.first + len(wanted.blocks)]) == wanted.blocks


def test_columns_are_read_without_a_copy() -> None:
    column = integers(range(3))
    seen = np.frombuffer(column, np.int64)
    column[1] = 7
    assert seen.tolist() == [0, 7, 2]
    assert column.itemsize == 8


def test_a_row_that_grows_moves_nobody_s_blocks() -> None:
    table = GroupTable(3, 2)
    for seat in range(3):
        table.write(seat, 0, [seat, 10 + seat])
    held = np.frombuffer(table.blocks, np.int64)  # a backend may still look at the matrix of the step before
    table.write(1, 1, range(50, 60))
    assert table.width >= 11
    rows = [list(table.blocks[seat * table.width :][:2]) for seat in range(3)]
    assert rows == [[0, 10], [1, 50], [2, 12]]
    assert table.run(1, 11) == run(0, [1, *range(50, 60)])
    assert held.tolist() == [0, 10, 1, 11, 2, 12]


def test_nothing_is_written_while_somebody_looks() -> None:
    table = GroupTable(2, 4)
    table.write(1, 0, [5, 6])
    held = np.frombuffer(table.blocks, np.int64)
    table.write(1, 2, [])
    assert held.tolist() == [0, 0, 0, 0, 5, 6, 0, 0]


@pytest.mark.parametrize("index", [0, 1, 5])
def test_a_row_is_written_from_any_index(index: int) -> None:
    table = GroupTable(2, 8)
    table.write(1, 0, range(8))
    table.write(1, index, [70, 71])
    expected = [*range(8)]
    expected[index : index + 2] = [70, 71]
    assert table.blocks == array("q", [0] * 8 + expected)


def test_a_table_of_nothing_holds_nothing_else_than_what_is_written() -> None:
    batch = batch_of([one_token()], block_tokens=SIZE)
    assert isinstance(batch, Batch)
    assert (list(batch.tables[0].blocks), list(batch.tables[0].firsts), batch.tables[0].width) == ([9], [0], 1)


def one_token() -> Chunk:
    return Chunk(request_id=RequestId("r"), tokens=(TokenId(1),), start=0, runs=(run(0, [9]),), draw=None)
