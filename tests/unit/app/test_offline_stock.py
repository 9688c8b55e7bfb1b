"""Tiers without a server: what is pinned and unpinned is as it was, and what claims to be huge takes no memory."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fakes.stock import DRAM, POOL, WAIT_S, Trial, offline_stock, opened
from fakes.tiers import FUTURE_UNIX_S
from kvist.fabric.outcome import Outcome

MIB = 2**20


@pytest.fixture
def trial() -> Iterator[Trial]:
    with opened(offline_stock) as made:
        yield made


@pytest.mark.parametrize("expires", [None, FUTURE_UNIX_S])
def test_what_is_unpinned_expires_when_it_was_to(trial: Trial, expires: float | None) -> None:
    trial.store(range(40), expires=expires)
    before = trial.entries(POOL)
    for times in range(1, 4):
        assert trial.stock.pin(POOL, trial.entries(POOL), WAIT_S, pinned=True) == Outcome(done=40)
        assert {(entry.pinned, entry.expires_unix_s) for entry in trial.entries(POOL)} == {(True, None)}
        for _ in range(times):
            assert trial.stock.pin(POOL, trial.entries(POOL), WAIT_S, pinned=False) == Outcome(done=40)
        assert trial.entries(POOL) == before


def test_what_cannot_be_read_is_not_unpinned_and_is_told(trial: Trial) -> None:
    entries = trial.store(range(3), expires=FUTURE_UNIX_S)
    trial.stock.pin(POOL, entries, WAIT_S, pinned=True)
    entries = trial.entries(POOL)
    record, kept = trial.pool._rows[entries[0].address]
    trial.pool._rows[entries[0].address] = (record[:-1] + bytes([record[-1] ^ 1]), kept)
    del trial.pool._rows[entries[1].address]
    assert trial.stock.pin(POOL, entries, WAIT_S, pinned=False) == Outcome(done=1, damaged=1, absent=1)


@pytest.mark.parametrize("size", [600 * MIB, 2**40, 2**62])
def test_a_length_that_no_record_has_is_left_and_not_believed(trial: Trial, size: int) -> None:
    entries = trial.store(range(3))
    entries[1] = replace(entries[1], record_bytes=size)
    verbs = {
        "verify": lambda: trial.stock.verify(POOL, entries, WAIT_S),
        "copy": lambda: trial.stock.copy(POOL, DRAM, entries, WAIT_S),
        "unpin": lambda: trial.stock.pin(POOL, [replace(each, pinned=True) for each in entries], WAIT_S, pinned=False),
    }
    for verb, work in verbs.items():
        tracemalloc.start()
        outcome = work()
        grown = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert outcome == Outcome(done=2, left=1), verb
        assert grown < 8 * MIB, verb


def test_long_records_are_read_a_few_at_a_time(trial: Trial) -> None:
    entries = [replace(entry, record_bytes=48 * MIB) for entry in trial.store(range(12))]
    tracemalloc.start()
    outcome = trial.stock.verify(POOL, entries, WAIT_S)
    grown = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome == Outcome(damaged=12)
    assert grown < 128 * MIB
