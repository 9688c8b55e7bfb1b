"""Plans: each row reads what it may see, once, whatever is shared and wherever contexts are cut."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.engine.backends.cpu.segments import (
    PIECE_TOKENS,
    PIECES,
    ROWS_MAX,
    SHARED_TOKENS_MIN,
    Integers,
    Plan,
    Reading,
    plan,
)

SIZE = 4


def reading(tables: list[list[int]], starts: list[int], rows: list[int], firsts: list[int] | None = None) -> Reading:
    """Sequences with these live blocks."""
    lengths = [len(table) for table in tables]
    return Reading(
        tables=np.array([block for table in tables for block in table], np.int64),
        offsets=np.cumsum([0, *lengths[:-1]]),
        firsts=np.array(firsts or [0] * len(tables)),
        starts=np.array(starts),
        rows=np.array(rows),
        row=np.cumsum([0, *rows[:-1]]),
    )


def seen_by_rows(found: Plan) -> dict[int, Counter[tuple[int, int]]]:
    """Of each row the tokens that it reads, as (block, token in it), and how often."""
    seen: dict[int, Counter[tuple[int, int]]] = {}
    for offset, blocks, first, count, _ in found.segments.tolist():
        run = found.tables[offset : offset + blocks].tolist()
        for row, low, high, _ in found.pairs[first : first + count].tolist():
            read = ((run[token // SIZE], token % SIZE) for token in range(low, high))
            seen.setdefault(row, Counter()).update(read)
    return seen


def expected(given: Reading, window: int | None) -> dict[int, Counter[tuple[int, int]]]:
    """The same by definition."""
    seen = {}
    for index in range(len(given.rows)):
        for step in range(int(given.rows[index])):
            position = int(given.starts[index]) + step
            low = 0 if window is None else max(0, position - window + 1)
            live = given.offsets[index] - given.firsts[index]
            seen[int(given.row[index]) + step] = Counter(
                (int(given.tables[live + at // SIZE]), at % SIZE) for at in range(low, position + 1)
            )
    return seen


@st.composite
def readings(draw: st.DrawFn, window: int | None) -> Reading:
    """Sequences of which some begin alike, as a prefix cache makes them."""
    common = list(range(1000, 1000 + draw(st.integers(0, 60))))
    tables, starts, rows, firsts = [], [], [], []
    fresh = iter(range(100_000))
    for _ in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 240)), draw(st.integers(1, ROWS_MAX))
        blocks = -(-(start + count) // SIZE)
        alike = min(draw(st.integers(0, len(common))), start // SIZE)
        first = 0 if window is None else draw(st.integers(0, max(0, start - window + 1) // SIZE))
        tables.append(([*common[:alike], *(next(fresh) for _ in range(blocks - alike))])[first:])
        starts.append(start)
        rows.append(count)
        firsts.append(first)
    return reading(tables, starts, rows, firsts)


@settings(max_examples=examples(60))
@given(data=st.data(), window=st.sampled_from([None, 1, 3, 50, 300]))
def test_every_row_reads_what_it_may_see_and_nothing_twice(data: st.DataObject, window: int | None) -> None:
    given = data.draw(readings(window))
    found = plan(given, block_tokens=SIZE, window=window)
    assert seen_by_rows(found) == expected(given, window)


@settings(max_examples=examples(60))
@given(given=readings(None))
def test_partial_results_are_numbered_row_by_row(given: Reading) -> None:
    found = plan(given, block_tokens=SIZE, window=None)
    seen = Counter(found.pairs[:, 0].tolist())
    assert [merge[0] for merge in found.merges.tolist()] == sorted(row for row in seen if seen[row] > 1)
    taken: list[int] = []
    for row, first, count in found.merges.tolist():
        assert count == seen[row]
        assert sorted(found.pairs[found.pairs[:, 0] == row, 3].tolist()) == list(range(first, first + count))
        taken += range(first, first + count)
    assert taken == list(range(found.partials))
    assert all(partial == -1 for row, _, _, partial in found.pairs.tolist() if seen[row] == 1)


def test_what_several_begin_with_is_read_once() -> None:
    common = list(range(SHARED_TOKENS_MIN // SIZE))
    given = reading([[*common, 100], [*common, 101], [*common, 102]], [SHARED_TOKENS_MIN] * 3, [1] * 3)
    found = plan(given, block_tokens=SIZE, window=None)
    assert found.segments[:, [1, 3]].tolist() == [[len(common), 3], [1, 1], [1, 1], [1, 1]]


def test_prefixes_within_a_shared_prefix_are_shared_by_those_that_have_them() -> None:
    one, two = list(range(100)), list(range(200, 260))
    given = reading([[*one, *two, 300], [*one, *two, 301], [*one, 302]], [640, 640, 400], [1] * 3)
    found = plan(given, block_tokens=SIZE, window=None)
    read: Counter[int] = Counter()
    for _, blocks, _, pairs, _ in found.segments.tolist():
        read[pairs] += blocks
    assert read == {3: 100, 2: 60, 1: 3}


def test_little_in_common_is_read_by_each() -> None:
    common = list(range(SHARED_TOKENS_MIN // SIZE - 1))
    given = reading([[*common, 100], [*common, 101]], [SHARED_TOKENS_MIN - 1] * 2, [1] * 2)
    assert plan(given, block_tokens=SIZE, window=None).segments[:, 3].tolist() == [1, 1]


def test_no_segment_has_more_rows_than_a_thread_has_room_for() -> None:
    common = list(range(50))
    given = reading([[*common, 100 + each] for each in range(70)], [200] * 70, [1] * 70)
    found = plan(given, block_tokens=SIZE, window=None)
    assert int(found.segments[:, 3].max()) == ROWS_MAX
    assert seen_by_rows(found) == expected(given, None)


@pytest.mark.parametrize("tokens", [PIECE_TOKENS, 20 * PIECE_TOKENS, 100 * PIECE_TOKENS])
def test_a_long_context_is_divided_evenly_into_a_bounded_number(tokens: int) -> None:
    blocks = tokens // SIZE
    found = plan(reading([list(range(blocks))], [tokens - 1], [1]), block_tokens=SIZE, window=None)
    lengths: Integers = found.segments[:, 1]
    assert len(lengths) <= PIECES
    assert min(lengths[:-1], default=blocks) * SIZE >= PIECE_TOKENS
    assert lengths.max() - lengths.min() < len(lengths)
    assert lengths.sum() == blocks
    assert found.partials == (len(lengths) if len(lengths) > 1 else 0)


def test_work_is_counted_in_the_order_of_segments() -> None:
    given = reading([list(range(300)), [900], list(range(400, 500))], [1199, 0, 399], [1, 1, 1])
    found = plan(given, block_tokens=SIZE, window=None)
    before, blocks = found.segments[:, 4], found.segments[:, 1]
    each = np.diff([*before, found.units])
    assert (each > 0).all()
    assert (each * blocks[0] == each[0] * blocks).all(), "one row each: work goes with blocks"
