"""What every stock promises to an operator's verbs, whether an engine uses the tiers meanwhile or not."""

from collections.abc import Iterator

import pytest

from fakes.stock import DRAM, PLACES, POOL, RECORD, STOCKS, WAIT_S, Trial, opened
from fakes.tiers import BLUE, FUTURE_UNIX_S, RED
from kvist.app.offline_stock import OfflineStock
from kvist.base.errors import ConfigError
from kvist.fabric.messages import TierName
from kvist.fabric.outcome import Outcome
from kvist.server.administration_ports import Stock
from kvist.server.administration_stock import FabricStock

IMPLEMENTATIONS: list[type[Stock]] = [OfflineStock, FabricStock]


def test_every_implementation_is_tried() -> None:
    made = []
    for make in STOCKS:
        with opened(make) as trial:
            made.append(type(trial.stock))
    assert made == IMPLEMENTATIONS


@pytest.fixture(params=STOCKS)
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    with opened(request.param) as trial:
        yield trial


def test_it_begins_empty_and_names_its_tiers_in_order(trial: Trial) -> None:
    assert [books.name for books in trial.stock.tiers()] == [DRAM, POOL]
    assert trial.entries(DRAM) == trial.entries(POOL) == []
    assert trial.stock.copy(POOL, DRAM, [], WAIT_S) == trial.stock.verify(DRAM, [], WAIT_S) == Outcome()


def test_one_tenant_s_entries_are_never_another_s(trial: Trial) -> None:
    blue, red = trial.store(range(5)), trial.store(range(3), RED)
    assert (len(blue), len(red)) == (5, 3)
    for tier in (POOL, DRAM):
        trial.stock.copy(POOL, DRAM, [*blue, *red], WAIT_S)
        assert trial.keys(tier, BLUE) == {entry.address.key for entry in blue}
        assert trial.keys(tier, RED) == {entry.address.key for entry in red}
        assert len(trial.entries(tier)) == 8
        assert len(trial.stock.entries(tier, None, 3, WAIT_S)) == 3


def test_what_is_not_meant_is_not_counted(trial: Trial) -> None:
    entries = trial.store(range(9))
    trial.stock.copy(POOL, DRAM, entries, WAIT_S)
    meant = {entry.address.key for entry in entries[3:]}
    for tier in (POOL, DRAM):
        found = trial.stock.entries(tier, None, 4, WAIT_S, lambda entry: entry.address.key in meant)
        assert len(found) == 4
        assert {entry.address.key for entry in found} <= meant
        assert trial.stock.entries(tier, RED, 4, WAIT_S, lambda _: True) == []
        assert trial.stock.entries(tier, None, 4, WAIT_S, lambda _: False) == []


def test_copies_keep_length_and_expiry_and_are_made_once(trial: Trial) -> None:
    entries = trial.store(range(20), expires=FUTURE_UNIX_S)
    assert trial.stock.copy(POOL, DRAM, entries, WAIT_S) == Outcome(done=20)
    copies = trial.entries(DRAM)
    assert {(each.record_bytes, each.expires_unix_s) for each in copies} == {(RECORD, FUTURE_UNIX_S)}
    assert trial.stock.copy(POOL, DRAM, entries, WAIT_S) == Outcome(done=20)
    assert (len(trial.entries(DRAM)), len(trial.entries(POOL))) == (20, 20)
    assert trial.stock.tiers()[0].stored == 20
    assert trial.stock.verify(DRAM, copies, WAIT_S) == Outcome(done=20)


def test_what_is_moved_is_in_one_place(trial: Trial) -> None:
    entries = trial.store(range(6))
    assert trial.stock.move(POOL, DRAM, entries[:4], WAIT_S) == Outcome(done=4)
    assert (len(trial.entries(DRAM)), len(trial.entries(POOL))) == (4, 2)
    assert trial.stock.move(DRAM, POOL, trial.entries(DRAM), WAIT_S) == Outcome(done=4)
    assert (len(trial.entries(DRAM)), len(trial.entries(POOL))) == (0, 6)
    assert trial.stock.verify(POOL, trial.entries(POOL), WAIT_S) == Outcome(done=6)


def test_what_is_removed_is_gone_pinned_or_not(trial: Trial) -> None:
    entries = trial.store(range(4))
    trial.stock.copy(POOL, DRAM, entries, WAIT_S)
    held = trial.entries(DRAM)
    assert trial.stock.pin(DRAM, held, WAIT_S, pinned=True).done == 4
    assert trial.stock.remove(DRAM, held[:3], WAIT_S).done == 3
    assert trial.stock.remove(POOL, entries[:1], WAIT_S).done == 1
    assert (len(trial.entries(DRAM)), len(trial.entries(POOL))) == (1, 3)
    assert trial.stock.tiers()[0].purged == 3


def test_purging_one_tenant_leaves_the_other(trial: Trial) -> None:
    entries = [*trial.store(range(5)), *trial.store(range(3), RED)]
    trial.stock.copy(POOL, DRAM, entries, WAIT_S)
    for tier in (DRAM, POOL):
        assert trial.stock.purge(tier, BLUE, WAIT_S).done == 5
        assert (len(trial.keys(tier, BLUE)), len(trial.keys(tier, RED))) == (0, 3)
        assert trial.stock.purge(tier, None, WAIT_S).done == 3
        assert trial.entries(tier) == []


def test_pins_are_set_and_taken_back(trial: Trial) -> None:
    entries = trial.store(range(3), expires=FUTURE_UNIX_S)
    trial.stock.copy(POOL, DRAM, entries, WAIT_S)
    held = trial.entries(DRAM)
    assert trial.stock.pin(DRAM, held[:2], WAIT_S, pinned=True) == Outcome(done=2)
    assert sorted(entry.pinned for entry in trial.entries(DRAM)) == [False, True, True]
    assert {entry.expires_unix_s for entry in trial.entries(DRAM)} == {FUTURE_UNIX_S}
    assert trial.stock.pin(DRAM, held, WAIT_S, pinned=False) == Outcome(done=3)
    assert not any(entry.pinned for entry in trial.entries(DRAM))
    assert trial.stock.pin(POOL, entries[:1], WAIT_S, pinned=True) == Outcome(done=1)
    assert [entry.expires_unix_s for entry in trial.entries(POOL) if entry.pinned] == [None]


def test_pinned_blocks_are_not_evicted_and_what_finds_no_room_is_told(trial: Trial) -> None:
    trial.stock.copy(POOL, DRAM, trial.store(range(PLACES)), WAIT_S)
    held = trial.entries(DRAM)
    assert len(held) == PLACES
    trial.stock.pin(DRAM, held, WAIT_S, pinned=True)
    outcome = trial.stock.copy(POOL, DRAM, trial.store(range(100, 103)), WAIT_S)
    assert (outcome.done, outcome.left) == (0, 3)
    assert trial.keys(DRAM) == {entry.address.key for entry in held}


def test_verifying_takes_out_what_is_damaged_or_missing(trial: Trial) -> None:
    entries = trial.store(range(6))
    record, entry = trial.pool._rows[entries[0].address]
    trial.pool._rows[entries[0].address] = (record[:-1] + bytes([record[-1] ^ 1]), entry)
    del trial.pool._rows[entries[1].address]
    outcome = trial.stock.verify(POOL, entries, WAIT_S)
    assert (outcome.done, outcome.damaged, outcome.absent) == (4, 1, 1)
    assert len(trial.entries(POOL)) == 4


def test_damage_is_not_copied(trial: Trial) -> None:
    entries = trial.store(range(3))
    record, entry = trial.pool._rows[entries[0].address]
    trial.pool._rows[entries[0].address] = (bytes(RECORD), entry)
    outcome = trial.stock.copy(POOL, DRAM, entries, WAIT_S)
    assert (outcome.done, outcome.damaged, record != bytes(RECORD)) == (2, 1, True)
    assert len(trial.entries(DRAM)) == 2


def test_a_tier_that_is_not_there_is_refused(trial: Trial) -> None:
    other = TierName("cellar")
    for ask in (
        lambda: trial.stock.entries(other, None, 1, WAIT_S),
        lambda: trial.stock.copy(POOL, other, trial.store([1]), WAIT_S),
        lambda: trial.stock.purge(other, None, WAIT_S),
        lambda: trial.stock.remove(other, trial.store([1]), WAIT_S),
    ):
        with pytest.raises(ConfigError, match="'cellar'"):
            ask()
