"""What is counted and timed: by records and bytes, failures included, and never by what a caller does meanwhile."""

import threading
from collections.abc import Sequence

import pytest

from fakes.clock import HandClock
from fakes.tiers import BLUE, DictTier, key_of, memory_trial, read_of, write_of
from kvist.base.errors import TierError, TierUnavailableError
from kvist.tiers.faulty import Fail, Fault, Plan, Resize, Wait, faulty, scripted
from kvist.tiers.metered import Metered, MeteredLender, metered
from kvist.tiers.ports import (
    Address,
    Lender,
    NotStored,
    Stored,
    TierStatistics,
    Verb,
    VerbUse,
    Write,
    WriteOutcome,
)

ADDRESSES = [Address(key=key_of(number), tenant=BLUE) for number in range(4)]


def slow(clock: HandClock, seconds: float) -> Plan:
    """Every call takes so long."""
    fault = Wait(wait=lambda: clock.advance(seconds))
    return lambda _verb, _number: fault


def of(plan: dict[tuple[Verb, int], Fault]) -> Metered:
    return metered(faulty(DictTier(), scripted(plan)), HandClock())


def uses(tier: Metered) -> dict[str, VerbUse]:
    return {use.verb: use for use in tier.statistics().verbs}


def test_records_and_bytes_are_counted_by_what_came_of_them() -> None:
    tier = of({("read", 1): Resize(by=-2)})
    tier.write([write_of(address, 600 + 2 * index) for index, address in enumerate(ADDRESSES[:3])])
    tier.read([read_of(ADDRESSES[0]), read_of(ADDRESSES[1], 602), read_of(ADDRESSES[3])])
    tier.read([read_of(ADDRESSES[0])])
    tier.delete([ADDRESSES[0], ADDRESSES[3]])
    books = tier.statistics()
    assert (books.writes, books.bytes_written) == (3, 1806)
    assert (books.reads, books.bytes_read, books.damaged) == (2, 1202, 1)
    assert (books.deletes, books.failures, books.records) == (1, 0, 2)


def test_what_was_not_taken_is_not_counted_as_written() -> None:
    class Picky(DictTier):
        """Takes every other record."""

        def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
            taken = iter(super().write(writes[::2]))
            return [NotStored(reason="full") if index % 2 else next(taken) for index in range(len(writes))]

    tier = metered(Picky(), HandClock())
    assert tier.write([write_of(address) for address in ADDRESSES[:3]]) == [
        Stored(),
        NotStored(reason="full"),
        Stored(),
    ]
    books = tier.statistics()
    assert (books.writes, books.bytes_written) == (2, 1_200)


def test_each_verb_is_timed_by_the_clock_that_was_given() -> None:
    clock = HandClock()
    tier = metered(faulty(DictTier(), slow(clock, 0.25)), clock)
    tier.find(ADDRESSES)
    tier.find([])
    tier.read([])
    tier.write([])
    tier.delete([])
    tier.keep([], pinned=True, expires_unix_s=None)
    list(tier.entries())
    calls = {name: (use.calls, use.seconds) for name, use in uses(tier).items()}
    once = dict.fromkeys(("read", "write", "delete", "keep", "entries"), (1, 0.25))
    assert calls == {"find": (2, 0.5), **once}


def test_a_call_that_raises_is_counted_with_its_seconds() -> None:
    clock = HandClock()
    wait = Wait(wait=lambda: clock.advance(3))
    within = faulty(DictTier(), scripted({("read", 0): Fail(error=TierUnavailableError)}))
    tier = metered(faulty(within, scripted({("read", 0): wait})), clock)
    with pytest.raises(TierUnavailableError):
        tier.read([read_of(ADDRESSES[0])])
    assert uses(tier)["read"] == VerbUse(verb="read", calls=1, seconds=3.0)
    assert (tier.statistics().failures, tier.statistics().reads) == (1, 0)


def test_every_verb_counts_its_failures() -> None:
    tier = of({})
    tier.close()
    calls = [
        lambda: tier.find([]),
        lambda: tier.read([]),
        lambda: tier.write([]),
        lambda: tier.delete([]),
        lambda: tier.keep([], pinned=True, expires_unix_s=None),
        tier.entries,
    ]
    for number, call in enumerate(calls):
        with pytest.raises(TierError):
            call()
        assert tier.statistics().failures == number + 1
    assert all(use.calls == 1 for use in uses(tier).values())


def test_a_list_costs_what_the_tier_takes_and_not_what_its_reader_does() -> None:
    clock = HandClock()
    tier = metered(DictTier(), clock)
    tier.write([write_of(address) for address in ADDRESSES])
    for _ in tier.entries():
        clock.advance(10)
    assert uses(tier)["entries"] == VerbUse(verb="entries", calls=1, seconds=0.0)


def test_what_the_tier_holds_is_told_by_the_tier() -> None:
    with memory_trial() as trial:
        tier = metered(trial.tier, HandClock())
        tier.write([write_of(trial.address(0))])
        within, books = trial.tier.statistics(), tier.statistics()
        held = ("records", "bytes_used", "bytes_max", "bytes_overhead", "records_lost")
        assert [getattr(books, name) for name in held] == [getattr(within, name) for name in held]
        assert within.writes == 0
        assert books.writes == 1


def test_a_snapshot_does_not_change() -> None:
    tier = of({})
    before = tier.statistics()
    tier.write([write_of(ADDRESSES[0])])
    assert before == TierStatistics(records=0)
    assert tier.statistics() != before


def test_threads_lose_no_count() -> None:
    tier = of({})
    tier.write([write_of(address) for address in ADDRESSES])

    def use(addresses: Sequence[Address]) -> None:
        for _ in range(200):
            tier.find(addresses)
            tier.read([read_of(address) for address in addresses])

    threads = [threading.Thread(target=use, args=(ADDRESSES[:2],)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tier.statistics().reads == 1_600
    assert (uses(tier)["find"].calls, uses(tier)["read"].calls) == (800, 800)


def test_lending_counts_the_places_as_read() -> None:
    with memory_trial() as trial:
        tier = metered(trial.tier, HandClock())
        assert isinstance(tier, MeteredLender)
        writes = [write_of(address) for address in trial.addresses(3)]
        tier.write(writes)
        tier.lend([each.address for each in writes])
        books = tier.statistics()
        assert (books.reads, books.bytes_read) == (3, 3 * 640)
        assert uses(tier)["lend"].calls == 1
    assert not isinstance(of({}), Lender)
