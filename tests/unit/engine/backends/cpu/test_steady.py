"""A plan that is carried on has every row see what a plan made anew would."""

from dataclasses import replace

import numpy as np
import pytest

from kvist.engine.backends.cpu.segments import Plan, Reading, plan
from kvist.engine.backends.cpu.steady import CARRIED_TOKENS, SteadyPlan

SIZE, WIDTH = 16, 90
STARTS = (0, 3, 15, 16, 130, 400, 1000)


class Batch:
    """Sequences of one row each that share their first blocks or none; seats are in no order."""

    def __init__(self, shared: int, starts: tuple[int, ...] = STARTS) -> None:
        count = len(starts)
        self.tables = np.random.default_rng(5).permutation(count * WIDTH).reshape(count, WIDTH)
        self.tables[1:, :shared] = self.tables[0, :shared]
        self.seats = np.random.default_rng(6).permutation(count)
        self.starts = np.array(starts)

    def reading(self, *, window: int | None) -> Reading:
        firsts = np.zeros_like(self.starts) if window is None else np.maximum(self.starts - window + 1, 0) // SIZE
        return Reading(
            tables=self.tables.reshape(-1),
            offsets=self.seats * WIDTH + firsts,
            firsts=firsts,
            starts=self.starts.copy(),
            rows=np.ones_like(self.starts),
            row=np.arange(len(self.starts)),
        )


def seen(found: Plan, reading: Reading) -> list[list[int]]:
    """For each row all tokens of the pool that it sees, in ascending order; none twice."""
    rows: list[list[int]] = [[] for _ in reading.row]
    for offset, blocks, first, count, _ in found.segments.tolist():
        tokens = (found.tables[offset : offset + blocks, None] * SIZE + np.arange(SIZE)).reshape(-1)
        for row, low, high, _ in found.pairs[first : first + count].tolist():
            assert high <= len(tokens)
            rows[row].extend(tokens[low:high].tolist())
    assert all(len(set(row)) == len(row) for row in rows)
    return [sorted(row) for row in rows]


def wanted(reading: Reading, window: int | None) -> list[list[int]]:
    return seen(plan(reading, block_tokens=SIZE, window=window), reading)


@pytest.mark.parametrize("window", [None, 1, 17, 200])
@pytest.mark.parametrize("shared", [0, 1, 24])
def test_every_row_sees_what_a_new_plan_shows(shared: int, window: int | None) -> None:
    batch, plans = (
        Batch(shared, STARTS if shared == 0 else (385, 400, 401, 700)),
        SteadyPlan(block_tokens=SIZE, window=window),
    )
    for _ in range(CARRIED_TOKENS + 20):
        reading = batch.reading(window=window)
        assert seen(plans.of(reading), reading) == wanted(reading, window)
        batch.starts += 1


def test_a_steady_decode_makes_a_plan_now_and_then() -> None:
    batch, plans = Batch(0), SteadyPlan(block_tokens=SIZE, window=None)
    for _ in range(2 * CARRIED_TOKENS):
        plans.of(batch.reading(window=None))
        batch.starts += 1
    assert plans.made == 2


def test_what_was_handed_out_stays_as_it_was() -> None:
    batch, plans = Batch(0), SteadyPlan(block_tokens=SIZE, window=40)
    first = plans.of(batch.reading(window=40))
    before = first.segments.copy(), first.pairs.copy()
    batch.starts += 1
    second = plans.of(batch.reading(window=40))
    assert not np.array_equal(first.pairs, second.pairs)
    assert np.array_equal(first.segments, before[0])
    assert np.array_equal(first.pairs, before[1])


def changed(reading: Reading, what: str) -> Reading:
    """The reading, in which something is no longer as the steps before had it."""
    if what == "tokens of one":
        return replace(reading, starts=reading.starts - np.array([0, 0, 3, 0]))
    if what == "rows":
        return replace(reading, rows=np.array([1, 1, 2, 1]), row=np.array([0, 1, 2, 4]))
    if what == "a sequence":
        kept = slice(0, 3)
        return Reading(tables=reading.tables, **{name: getattr(reading, name)[kept] for name in FIELDS})
    if what == "seats":
        return replace(reading, offsets=reading.offsets[::-1].copy())
    assert what == "a shared block"
    tables = reading.tables.copy()
    tables[reading.offsets[2] + 3] = tables[reading.offsets[2] + WIDTH - 1]
    return replace(reading, tables=tables)


FIELDS = ("offsets", "firsts", "starts", "rows", "row")


@pytest.mark.parametrize("what", ["tokens of one", "rows", "a sequence", "seats", "a shared block"])
def test_any_other_change_makes_a_plan_anew(what: str) -> None:
    batch, plans = Batch(20, (385, 400, 401, 700)), SteadyPlan(block_tokens=SIZE, window=None)
    plans.of(batch.reading(window=None))
    batch.starts += 1
    plans.of(batch.reading(window=None))
    assert plans.made == 1
    batch.starts += 1
    reading = changed(batch.reading(window=None), what)
    found = plans.of(reading)
    assert plans.made == 2
    fresh = plan(reading, block_tokens=SIZE, window=None)
    assert np.array_equal(found.segments, fresh.segments)
    assert np.array_equal(found.pairs, fresh.pairs)


def test_columns_that_are_written_again_are_not_mistaken_for_the_same() -> None:
    batch, plans = Batch(0), SteadyPlan(block_tokens=SIZE, window=None)
    reading = batch.reading(window=None)
    plans.of(reading)
    reading.starts[:] = reading.starts[::-1].copy()
    reading.offsets[:] = reading.offsets[::-1].copy()
    assert seen(plans.of(reading), reading) == wanted(reading, None)
