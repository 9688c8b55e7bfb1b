"""What every tier promises to several threads at once, and to those inside when it closes.

Runs over all that `test_tier` runs over.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.tiers import Trial, read_of, write_of
from kvist.base.errors import TierError
from kvist.tiers.ports import Address, Found
from tier_answers import calls, expect_absent, expect_found, store

KIB = 2**10


class TestThreads:
    def test_threads_over_different_records_do_not_meet(self, trial: Trial) -> None:
        mine = [[trial.address(thread * 100 + number, 3_000) for number in range(5)] for thread in range(4)]
        start = threading.Barrier(4)

        def use(addresses: list[Address]) -> int:
            start.wait()
            for version in range(12):
                size = 600 + 200 * version
                writes = [write_of(address, size, version) for address in addresses]
                store(trial.tier, *writes)
                expect_found(trial.tier, *writes)
                assert list(trial.tier.delete(addresses[1::2])) == [True] * 2
                expect_absent(trial.tier, *addresses[1::2])
                expect_found(trial.tier, *writes[::2])
            return len(addresses)

        with ThreadPoolExecutor(4) as threads:
            assert sum(threads.map(use, mine)) == 20
        assert {entry.address for entry in trial.tier.entries()} == {each for part in mine for each in part[::2]}

    def test_a_record_may_be_read_by_many_at_once(self, trial: Trial) -> None:
        writes = [write_of(trial.address(number, 300 * KIB), 300 * KIB) for number in range(4)]
        store(trial.tier, *writes)
        with ThreadPoolExecutor(4) as threads:
            for _ in threads.map(lambda _: expect_found(trial.tier, *writes), range(8)):
                pass
        expect_found(trial.tier, *writes)


class TestClose:
    def test_a_closed_tier_says_so_and_names_itself(self, trial: Trial) -> None:
        address = trial.address(0)
        store(trial.tier, write_of(address))
        trial.tier.close()
        trial.tier.close()
        for verb, call in calls(trial.tier, address).items():
            with pytest.raises(TierError, match=trial.tier.name) as caught:
                call()
            assert caught.value.tier == trial.tier.name, verb
        assert trial.tier.statistics() == trial.tier.statistics()

    def test_who_is_inside_when_it_closes_ends_well(self, trial: Trial) -> None:
        size, begun = 64 * KIB, threading.Barrier(4)
        writes = [write_of(trial.address(number, size), size) for number in range(8)]
        fresh = [write_of(trial.address(100 + number, size), size) for number in range(8)]
        store(trial.tier, *writes)

        def read() -> bool:
            reads = [read_of(each.address, size) for each in writes]
            outcomes = trial.tier.read(reads)
            pairs = zip(outcomes, reads, writes, strict=True)
            return all(outcome != Found() or read.into == write.record for outcome, read, write in pairs)

        def use(call: Callable[[], object]) -> bool:
            begun.wait()
            for _ in range(100_000):  # far more than it takes: the close comes at once
                try:
                    assert call()
                except TierError:
                    return True
            return False

        with ThreadPoolExecutor(3) as threads:
            uses = [threads.submit(use, call) for call in (read, read, lambda: trial.tier.write(fresh))]
            begun.wait()
            trial.tier.close()
            assert [each.result(timeout=60) for each in uses] == [True] * 3
