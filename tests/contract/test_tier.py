"""What the fabric may rely on from every tier and every wrapper of one.

A `Tier` is a `Finder`, `Reader`, `Writer`, `Deleter`, `Keeper` and `Lister` in one; some are a `Lender` besides. All
that is in `fakes.tiers.MAKERS` runs: DictTier, MemoryTier, DiskTier, RedisTier; Verified, Metered and Faulty over the
first, VerifiedLender, MeteredLender and FaultyLender over the second.
"""

from collections.abc import Sequence

import pytest

from fakes.tiers import (
    BLUE,
    FUTURE_UNIX_S,
    NOW_UNIX_S,
    PAST_UNIX_S,
    RED,
    Trial,
    form_of,
    key_of,
    read_of,
    record_of,
    write_of,
)
from kvist.base.errors import TierError
from kvist.blocks.form import HEADER_BYTES
from kvist.tiers.ports import (
    Absent,
    Address,
    Damaged,
    Found,
    Lender,
    Place,
    Read,
    Write,
)
from tier_answers import calls, entry_of, expect_absent, expect_found, store

KIB, MIB = 2**10, 2**20
SIZES = [HEADER_BYTES, HEADER_BYTES + 2, 600, 4096, 4098, 300 * KIB, MIB, 4 * MIB]


class TestRecords:
    def test_nothing_is_asked_and_nothing_answered(self, trial: Trial) -> None:
        tier = trial.tier
        empty: list[Sequence[object]] = [tier.find([]), tier.read([]), tier.write([]), tier.delete([])]
        empty.append(tier.keep([], pinned=True, expires_unix_s=FUTURE_UNIX_S))
        assert [list(answer) for answer in empty] == [[]] * 5
        assert list(tier.entries()) == list(tier.entries(BLUE)) == []

    def test_an_empty_tier_has_nothing(self, trial: Trial) -> None:
        addresses = trial.addresses(3)
        expect_absent(trial.tier, *addresses)
        assert list(trial.tier.delete(addresses)) == [False] * 3
        assert list(trial.tier.keep(addresses, pinned=True, expires_unix_s=None)) == [False] * 3

    @pytest.mark.parametrize("size", SIZES)
    def test_what_was_written_is_read(self, trial: Trial, size: int) -> None:
        writes = [write_of(trial.address(number, size), size) for number in range(3)]
        store(trial.tier, *writes)
        expect_found(trial.tier, *writes)

    def test_records_of_many_sizes_in_one_call(self, trial: Trial) -> None:
        writes = [write_of(trial.address(number, size), size) for number, size in enumerate(SIZES)]
        store(trial.tier, *writes)
        expect_found(trial.tier, *reversed(writes))

    def test_thousands_in_one_call(self, trial: Trial) -> None:
        writes = [write_of(address) for address in trial.addresses(3_000)]
        store(trial.tier, *writes)
        expect_found(trial.tier, *writes)
        addresses = [each.address for each in writes]
        assert {entry.address for entry in trial.tier.entries()} == set(addresses)
        assert list(trial.tier.delete(addresses)) == [True] * len(addresses)
        assert not any(trial.tier.find(addresses))

    def test_answers_are_in_the_order_of_the_questions(self, trial: Trial) -> None:
        addresses = trial.addresses(40)
        there = [number % 3 == 0 for number in range(40)]
        store(trial.tier, *(write_of(each) for each, is_there in zip(addresses, there, strict=True) if is_there))
        for step in (1, -1, 7, 13):
            order = [number * step % 40 for number in range(40)] if step not in (1, -1) else range(40)[::step]
            asked, right = [addresses[each] for each in order], [there[each] for each in order]
            assert list(trial.tier.find(asked)) == right
            outcomes = trial.tier.read([read_of(each) for each in asked])
            assert [outcome == Found() for outcome in outcomes] == right
            assert list(trial.tier.keep(asked, pinned=False, expires_unix_s=None)) == right
        assert list(trial.tier.delete(addresses)) == there

    def test_a_record_may_be_named_twice(self, trial: Trial) -> None:
        write, other = (write_of(address) for address in trial.addresses(2))
        store(trial.tier, write)
        twice = [write.address, other.address, write.address]
        assert list(trial.tier.find(twice)) == [True, False, True]
        reads = [read_of(address) for address in twice]
        assert list(trial.tier.read(reads)) == [Found(), Absent(), Found()]
        assert reads[0].into == reads[2].into == write.record
        assert list(trial.tier.keep(twice, pinned=False, expires_unix_s=None)) == [True, False, True]
        assert list(trial.tier.delete(twice)) == [True, False, False]

    def test_of_two_writes_in_one_call_the_last_one_stays(self, trial: Trial) -> None:
        address, other = trial.addresses(2)
        first, middle, last = write_of(address), write_of(other), write_of(address, version=1)
        assert first.record != last.record
        store(trial.tier, first, middle, last)
        expect_found(trial.tier, middle, last)
        assert len(list(trial.tier.entries())) == 2

    def test_a_record_is_replaced(self, trial: Trial) -> None:
        address = trial.address(0, 5_000)
        for version, size in enumerate((600, 600, 5_000, 4_096, 512)):
            write = write_of(address, size, version)
            store(trial.tier, write)
            expect_found(trial.tier, write)
            assert entry_of(trial.tier, address).record_bytes == size

    def test_a_record_of_another_size_is_damage_and_harms_no_other(self, trial: Trial) -> None:
        writes = [write_of(trial.address(number, 5_000), 4_096) for number in range(3)]
        store(trial.tier, *writes)
        for size in (512, 600, 4_094, 4_098, 5_000):
            reads = [read_of(writes[0].address, 4_096), read_of(writes[1].address, size)]
            reads.append(read_of(writes[2].address, 4_096))
            first, wrong, last = trial.tier.read(reads)
            assert (first, last) == (Found(), Found())
            assert isinstance(wrong, Damaged), size
            assert wrong.reason
        expect_found(trial.tier, *writes)

    def test_deleted_is_gone_and_may_come_back(self, trial: Trial) -> None:
        writes = [write_of(address) for address in trial.addresses(3)]
        store(trial.tier, *writes)
        assert list(trial.tier.delete([writes[1].address])) == [True]
        expect_absent(trial.tier, writes[1].address)
        expect_found(trial.tier, writes[0], writes[2])
        again = write_of(writes[1].address, version=1)
        store(trial.tier, again)
        expect_found(trial.tier, writes[0], again, writes[2])

    def test_bytes_may_lie_anywhere_and_may_be_read_only(self, trial: Trial) -> None:
        address, size = trial.address(0), 600
        record = bytes(record_of(address, size))
        around = memoryview(b"\xaa" * 3 + record + b"\xaa" * 5)
        store(trial.tier, Write(address=address, record=around[3 : 3 + size], created_unix_s=NOW_UNIX_S))
        room = bytearray(b"\xbb" * (size + 8))
        into = memoryview(room)[3 : 3 + size]
        assert list(trial.tier.read([Read(address=address, into=into, form=form_of(size))])) == [Found()]
        assert bytes(room) == b"\xbb" * 3 + record + b"\xbb" * 5

    def test_the_writer_may_use_its_buffer_again(self, trial: Trial) -> None:
        write = write_of(trial.address(0))
        record = bytes(write.record)
        store(trial.tier, write)
        write.record[:] = bytes(600)
        read = read_of(write.address)
        assert list(trial.tier.read([read])) == [Found()]
        assert read.into == record

    def test_another_tenant_finds_nothing(self, trial: Trial) -> None:
        write = write_of(trial.address(0))
        store(trial.tier, write)
        for stranger in (
            Address(key=write.address.key, tenant=RED, place=write.address.place),
            Address(key=key_of(1), tenant=BLUE, place=write.address.place),
        ):
            assert isinstance(trial.tier.read([read_of(stranger)])[0], Absent | Damaged)
            assert list(trial.tier.delete([stranger])) == [False]
        expect_found(trial.tier, write)


class TestEntries:
    def test_every_record_is_listed_once_with_its_facts(self, trial: Trial) -> None:
        sizes = (512, 600, 5_000)
        writes = [write_of(trial.address(number, size), size, number) for number, size in enumerate(sizes)]
        store(trial.tier, *writes)
        entries = {entry.address: entry for entry in trial.tier.entries()}
        assert set(entries) == {each.address for each in writes}
        for write in writes:
            entry = entries[write.address]
            assert (entry.record_bytes, entry.expires_unix_s, entry.pinned) == (write.record.nbytes, None, False)
            assert not trial.knows_ages or entry.created_unix_s == pytest.approx(write.created_unix_s, abs=0.01)

    def test_the_oldest_comes_first(self, trial: Trial) -> None:
        writes = [write_of(trial.address(version), version=version) for version in (3, 0, 4, 1, 2)]
        store(trial.tier, *writes)
        ages = [entry.created_unix_s for entry in trial.tier.entries()]
        assert len(ages) == 5
        assert not trial.knows_ages or ages == sorted(ages)

    def test_a_tenant_sees_only_its_own(self, trial: Trial) -> None:
        blue, red = trial.addresses(3, tenant=BLUE), trial.addresses(2, tenant=RED)
        store(trial.tier, *map(write_of, blue + red))
        assert {entry.address for entry in trial.tier.entries(BLUE)} == set(blue)
        assert {entry.address for entry in trial.tier.entries(RED)} == set(red)
        assert {entry.address for entry in trial.tier.entries()} == set(blue + red)
        trial.tier.delete(blue)
        assert list(trial.tier.entries(BLUE)) == []
        assert {entry.address for entry in trial.tier.entries()} == set(red)

    def test_an_expiry_is_kept_with_the_record(self, trial: Trial) -> None:
        write = write_of(trial.address(0), expires=FUTURE_UNIX_S)
        store(trial.tier, write)
        assert entry_of(trial.tier, write.address).expires_unix_s == pytest.approx(FUTURE_UNIX_S, abs=2)
        expect_found(trial.tier, write)

    def test_a_record_written_again_has_the_expiry_of_the_last_write(self, trial: Trial) -> None:
        address = trial.address(0)
        store(trial.tier, write_of(address, expires=FUTURE_UNIX_S))
        store(trial.tier, write_of(address))
        assert entry_of(trial.tier, address).expires_unix_s is None

    def test_pins_and_expiry_are_set_and_taken_back(self, trial: Trial) -> None:
        write, other = (write_of(address) for address in trial.addresses(2))
        store(trial.tier, write, other)
        for pinned, expires in ((True, None), (False, FUTURE_UNIX_S), (True, None), (False, None)):
            assert list(trial.tier.keep([write.address], pinned=pinned, expires_unix_s=expires)) == [True]
            entry = entry_of(trial.tier, write.address)
            assert (entry.expires_unix_s is None) == (expires is None)
            assert not trial.placed or entry.pinned == pinned
        expect_found(trial.tier, write, other)

    def test_who_chooses_places_decides_when_time_is_up_and_a_shared_store_does_it_alone(self, trial: Trial) -> None:
        late, kept = (write_of(address, expires=FUTURE_UNIX_S) for address in trial.addresses(2))
        born_late = write_of(trial.address(2), expires=PAST_UNIX_S)
        store(trial.tier, late, kept)
        trial.tier.write([born_late])
        trial.tier.keep([late.address], pinned=False, expires_unix_s=PAST_UNIX_S)
        if trial.placed:
            expect_found(trial.tier, late, kept, born_late)
            expires = [entry.expires_unix_s for entry in trial.tier.entries()]
            assert sorted(each or 0 for each in expires) == [PAST_UNIX_S, PAST_UNIX_S, FUTURE_UNIX_S]
        else:
            expect_absent(trial.tier, late.address, born_late.address)
            expect_found(trial.tier, kept)
            assert [entry.address for entry in trial.tier.entries()] == [kept.address]

    def test_questions_change_nothing(self, trial: Trial) -> None:
        writes = [write_of(address, expires=FUTURE_UNIX_S) for address in trial.addresses(3)]
        store(trial.tier, *writes)
        before = {entry.address for entry in trial.tier.entries()}
        expect_found(trial.tier, *writes)
        expect_absent(trial.tier, trial.address(9))
        assert {entry.address for entry in trial.tier.entries()} == before
        expect_found(trial.tier, *writes)

    def test_the_numbers_follow_the_records(self, trial: Trial) -> None:
        addresses = trial.addresses(4)
        store(trial.tier, *map(write_of, addresses))
        full = trial.tier.statistics()
        trial.tier.delete(addresses[:3])
        left = trial.tier.statistics()
        assert (full.records, left.records) in [(4, 1), (None, None)]
        if trial.placed:
            assert full.bytes_used is not None
            assert left.bytes_used is not None
            assert full.bytes_max is not None
            assert 0 < left.bytes_used <= full.bytes_used <= full.bytes_max
            assert 0 <= full.bytes_overhead <= full.bytes_used


class TestPlaces:
    def test_a_place_may_be_written_again_after_its_record_is_deleted(self, trial: Trial) -> None:
        old = trial.address(0, 5_000)
        for number in range(1, 5):
            store(trial.tier, write_of(old, 5_000))
            assert list(trial.tier.delete([old])) == [True]
            new = Address(key=key_of(number), tenant=BLUE, place=old.place)
            write = write_of(new, 600 * number)
            store(trial.tier, write)
            expect_found(trial.tier, write)
            expect_absent(trial.tier, old)
            old = new
            trial.tier.delete([old])

    def test_nothing_is_touched_outside(self, trial: Trial) -> None:
        alignment, bytes_max = trial.alignment or 1, 2**60
        wild = [
            Place(offset=bytes_max // alignment * alignment, length=alignment * 16),
            Place(offset=-alignment * 16, length=alignment * 16),
        ]
        for place in wild if trial.placed else ():
            address = Address(key=key_of(0), tenant=BLUE, place=place)
            for verb in ("write", "lend"):
                if verb in (each := calls(trial.tier, address)):
                    with pytest.raises(TierError, match=trial.tier.name):
                        each[verb]()
        assert list(trial.tier.entries()) == []

    def test_a_record_is_seen_where_it_lies(self, trial: Trial) -> None:
        writes = [write_of(trial.address(number, size), size) for number, size in enumerate((600, 5_000, 512))]
        store(trial.tier, *writes)
        if isinstance(trial.tier, Lender):
            views = trial.tier.lend([each.address for each in writes])
            assert [bytes(view[: each.record.nbytes]) for view, each in zip(views, writes, strict=True)] == [
                bytes(each.record) for each in writes
            ]
            assert [view.nbytes for view in views] == [each.address.place.length for each in writes]
        expect_found(trial.tier, *writes)
