"""Each fault does what it says, to the call it was planned for and to no other."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.tiers import BLUE, DictTier, Trial, form_of, key_of, memory_trial, read_of, record_of, write_of
from kvist.base.errors import TierError, TierFullError, TierTimeoutError, TierUnavailableError
from kvist.blocks.form import HEADER_BYTES
from kvist.tiers.faulty import (
    Fail,
    Fault,
    Faulty,
    FaultyLender,
    Flip,
    Impostor,
    Resize,
    Torn,
    Wait,
    faulty,
    scripted,
    seeded,
)
from kvist.tiers.ports import Address, Damaged, Found, Lender, Read, Stored, Verb
from kvist.tiers.verified import verified

SIZE = 600
FIRST, LAST = (Address(key=key_of(number), tenant=BLUE) for number in range(2))
VERBS: list[Verb] = ["find", "read", "write", "delete", "keep", "entries"]
RECORD_FAULTS = [Flip(bit=3), Flip(bit=HEADER_BYTES * 8 + 1), Flip(bit=-1), Resize(by=-2), Torn(bytes_kept=550)]
RECORD_FAULTS += [Torn(bytes_kept=0), Torn(bytes_kept=100), Impostor()]


def call(tier: Faulty, verb: Verb) -> object:
    """One call of a verb about one record."""
    match verb:
        case "read":
            return tier.read([read_of(FIRST)])
        case "write":
            return tier.write([write_of(FIRST)])
        case "keep":
            return tier.keep([FIRST], pinned=True, expires_unix_s=None)
        case "entries":
            return list(tier.entries())
        case _:
            return getattr(tier, verb)([FIRST])


def stored(plan: dict[tuple[Verb, int], Fault]) -> Faulty:
    """A tier with two sound records."""
    inner = DictTier()
    inner.write([write_of(FIRST), write_of(LAST)])
    return faulty(inner, scripted(plan))


def both(tier: Faulty) -> list[object]:
    """What a read of both records yields when it is verified."""
    return list(verified(tier).read([read_of(FIRST), read_of(LAST)]))


class TestCalls:
    @pytest.mark.parametrize("error", [TierError, TierUnavailableError, TierTimeoutError, TierFullError])
    @pytest.mark.parametrize("verb", VERBS)
    def test_the_planned_call_fails_with_the_planned_error_and_no_other_does(
        self, verb: Verb, error: type[TierError]
    ) -> None:
        tier = stored({(verb, 1): Fail(error=error)})
        call(tier, verb)
        with pytest.raises(error, match=r"dict: .*as planned") as caught:
            call(tier, verb)
        assert type(caught.value) is error
        assert caught.value.tier == "dict"
        for other in VERBS:
            call(tier, other)

    def test_a_call_that_fails_does_nothing_and_one_whose_answer_is_lost_does_all(self) -> None:
        for after in (False, True):
            tier = stored({("delete", 0): Fail(error=TierTimeoutError, after=after)})
            with pytest.raises(TierTimeoutError):
                tier.delete([FIRST])
            assert tier.find([FIRST, LAST]) == [not after, True]

    def test_a_hanging_call_hangs_until_it_is_released_and_hangs_nobody_else(self) -> None:
        hanging, released = threading.Event(), threading.Event()

        def wait() -> None:
            hanging.set()
            assert released.wait(timeout=60)

        tier = stored({("read", 0): Wait(wait=wait)})
        with ThreadPoolExecutor(1) as threads:
            late = threads.submit(tier.read, [read_of(FIRST)])
            assert hanging.wait(timeout=60)
            assert tier.read([read_of(FIRST)]) == [Found()]
            assert tier.find([FIRST]) == [True]
            assert not late.done()
            released.set()
            assert late.result(timeout=60) == [Found()]


class TestRecords:
    @pytest.mark.parametrize("fault", RECORD_FAULTS)
    def test_a_fault_at_reading_is_seen_above_and_leaves_the_tier_as_it_is(self, fault: Fault) -> None:
        tier = stored({("read", 0): fault})
        first, last = both(tier)
        assert (first, type(last)) == (Found(), Damaged)
        assert both(tier) == [Found(), Found()]

    @pytest.mark.parametrize("fault", RECORD_FAULTS)
    def test_a_fault_at_writing_stays_in_the_tier_and_spares_the_writers_bytes(self, fault: Fault) -> None:
        tier = faulty(DictTier(), scripted({("write", 0): fault}))
        writes = [write_of(FIRST), write_of(LAST)]
        if isinstance(fault, Torn):
            with pytest.raises(TierUnavailableError, match="torn"):
                tier.write(writes)
        else:
            assert tier.write(writes) == [Stored(), Stored()]
        assert writes[1].record == record_of(LAST, SIZE)
        for _ in range(2):
            first, last = both(tier)
            assert (first, type(last)) == (Found(), Damaged)
        assert {entry.address for entry in tier.entries()} == {FIRST, LAST}

    def test_a_torn_write_keeps_exactly_its_first_bytes(self) -> None:
        tier = faulty(DictTier(), scripted({("write", 0): Torn(bytes_kept=570)}))
        with pytest.raises(TierUnavailableError):
            tier.write([write_of(FIRST)])
        read = read_of(FIRST)
        assert tier.read([read]) == [Found()]
        assert bytes(read.into) == bytes(record_of(FIRST, SIZE)[:570]) + bytes(30)

    def test_exactly_one_bit_flips(self) -> None:
        for bit in (0, 9, SIZE * 8 - 1, SIZE * 8 + 1, -1):
            read = read_of(FIRST)
            stored({("read", 0): Flip(bit=bit)}).read([read])
            pairs = zip(read.into, record_of(FIRST, SIZE), strict=True)
            changed = [(byte, here ^ there) for byte, (here, there) in enumerate(pairs) if here != there]
            place = bit % (SIZE * 8)
            assert changed == [(place // 8, 1 << place % 8)]

    @pytest.mark.parametrize("by", [-600, -90, -2, 2, 5_000])
    def test_a_value_of_another_size_has_that_size(self, by: int) -> None:
        tier = faulty(DictTier(), scripted({("write", 0): Resize(by=by)}))
        tier.write([write_of(FIRST)])
        (entry,) = tier.entries()
        assert entry.record_bytes == SIZE + by
        assert isinstance(tier.read([read_of(FIRST)])[0], Damaged)

    def test_an_impostor_is_sound_and_another(self) -> None:
        tier = stored({("read", 0): Impostor()})
        read = read_of(FIRST)
        (outcome,) = verified(tier).read([read])
        assert isinstance(outcome, Damaged)
        assert "another block" in outcome.reason
        assert read.into[HEADER_BYTES:] == record_of(FIRST, SIZE)[HEADER_BYTES:]

    def test_a_fault_of_a_record_is_none_where_there_are_no_records(self) -> None:
        for verb in VERBS:
            for fault in RECORD_FAULTS:
                if verb not in ("read", "write"):
                    call(stored({(verb, 0): fault}), verb)
        empty = stored(dict.fromkeys([("read", 0), ("read", 1), ("write", 0)], Flip(bit=1)))
        absent = Address(key=key_of(7), tenant=BLUE)
        assert empty.read([]) == []
        assert empty.write([]) == []
        assert not isinstance(empty.read([read_of(absent)])[0], Found)

    def test_an_impostor_needs_a_record(self) -> None:
        address = Address(key=key_of(8), tenant=BLUE)
        tier = stored({("write", 0): Torn(bytes_kept=9), ("read", 0): Impostor()})
        with pytest.raises(TierUnavailableError):
            tier.write([write_of(address)])
        read = Read(address=address, into=memoryview(bytearray(SIZE)), form=form_of(SIZE))
        assert isinstance(verified(tier).read([read])[0], Damaged)


class TestLent:
    def test_memory_is_damaged_where_it_lies(self) -> None:
        with memory_trial() as trial:
            tier = self.lending(trial, Flip(bit=HEADER_BYTES * 8))
            writes = [write_of(address) for address in trial.addresses(2)]
            tier.write(writes)
            places = tier.lend([each.address for each in writes])
            assert places[0][:SIZE] == writes[0].record
            assert places[1][:SIZE] != writes[1].record
            outcomes = verified(trial.tier).read([read_of(each.address) for each in writes])
            assert [type(outcome) for outcome in outcomes] == [Found, Damaged]

    def test_lending_fails_as_planned(self) -> None:
        with memory_trial() as trial:
            tier = self.lending(trial, Fail(error=TierTimeoutError))
            with pytest.raises(TierTimeoutError):
                tier.lend([])
            assert tier.lend([]) == []

    def lending(self, trial: Trial, fault: Fault) -> FaultyLender:
        tier = faulty(trial.tier, scripted({("lend", 0): fault}))
        assert isinstance(tier, FaultyLender)
        return tier

    def test_only_a_tier_that_lends_is_a_lender(self) -> None:
        assert not isinstance(stored({}), Lender)


class TestSeeded:
    FAULTS = (Flip(bit=7), Fail(error=TierFullError), Torn(bytes_kept=99))

    def test_a_seed_is_always_the_same_plan_and_another_seed_another(self) -> None:
        calls = [(verb, number) for verb in VERBS for number in range(200)]
        plans = [[seeded(seed, self.FAULTS, one_in=5)(*each) for each in calls] for seed in (1, 1, 2)]
        assert plans[0] == plans[1] != plans[2]

    def test_it_strikes_as_often_as_it_says_and_with_every_fault(self) -> None:
        plan = seeded(3, self.FAULTS, one_in=10)
        struck = [fault for number in range(5_000) if (fault := plan("read", number)) is not None]
        assert 400 < len(struck) < 600
        assert {struck.count(fault) > 100 for fault in self.FAULTS} == {True}

    def test_one_in_one_is_always(self) -> None:
        plan = seeded(-1, self.FAULTS, one_in=1)
        assert all(plan("find", number) is not None for number in range(50))

    def test_a_plan_of_nothing_is_our_own_mistake(self) -> None:
        with pytest.raises(AssertionError, match="needs a fault"):
            seeded(0, (), one_in=5)
        with pytest.raises(AssertionError, match="one call in 0"):
            seeded(0, self.FAULTS, one_in=0)
