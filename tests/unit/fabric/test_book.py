"""The books of a tier, story by story; tests/property/test_book.py holds them against a model."""

import pytest

from fakes.keys import NAMESPACE, OTHER, TENANT, key
from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.book import Book
from kvist.fabric.claims import BookLimits, Claim, Refused, Reserved
from kvist.fabric.messages import Ticket
from kvist.tiers.ports import Address, Entry, Place

EXTENT, NOW = 64, 1000.0
WRITER, READER, SECOND = Ticket(1), Ticket(2), Ticket(3)


def make(extents: int = 2, **limits: object) -> Book:
    return Book(BookLimits(bytes_max=extents * EXTENT, extent_bytes=EXTENT, alignment=8, **limits))  # type: ignore[arg-type]  the fields of BookLimits, by name


def claim(number: int, size: int = 16, *, tenant: TenantTag = TENANT, expires: float | None = None) -> Claim:
    return Claim(key=key(number), tenant=tenant, record_bytes=size, expires_unix_s=expires)


def reserve(book: Book, wanted: Claim) -> Reserved:
    answer = book.reserve(wanted, WRITER, NOW)
    assert isinstance(answer, Reserved), answer
    return answer


def refusal(book: Book, wanted: Claim) -> str:
    answer = book.reserve(wanted, WRITER, NOW)
    assert isinstance(answer, Refused), answer
    return answer.reason


def store(book: Book, *claims: Claim) -> list[BlockKey]:
    """Stores records and says what was evicted for them."""
    evicted: list[BlockKey] = []
    for index, wanted in enumerate(claims):
        evicted += [address.key for address in reserve(book, wanted).evicted]
        assert book.commit(wanted.key, WRITER, NOW + index) is None
    book.audit(())
    return evicted


def stored(book: Book) -> set[BlockKey]:
    return {entry.address.key for entry in book.entries()}


def test_a_record_is_found_from_its_acknowledgement_on() -> None:
    book = make()
    place = reserve(book, claim(1, 12, expires=NOW + 9)).address.place
    assert book.find(key(1), NOW) is None
    assert (book.statistics().writing, book.statistics().stored) == (1, 0)
    book.audit({WRITER})
    book.commit(key(1), WRITER, NOW)
    address = Address(key=key(1), tenant=TENANT, place=place)
    right = Entry(address=address, record_bytes=12, created_unix_s=NOW, expires_unix_s=NOW + 9, pinned=False)
    assert book.find(key(1), NOW) == right
    assert place == Place(offset=0, length=16)
    assert (book.statistics().writing, book.statistics().stored, book.statistics().resident) == (0, 1, 1)


def test_a_failed_write_counts_as_nothing() -> None:
    book = make()
    reserve(book, claim(1))
    book.cancel(key(1), WRITER)
    books = book.statistics()
    assert (books.stored, books.resident, books.writing, books.bytes_used) == (0, 0, 0, 0)
    assert not books.bytes_by_tenant
    assert store(book, claim(1)) == []


def test_a_key_is_written_once() -> None:
    book = make()
    reserve(book, claim(1))
    assert refusal(book, claim(1)) == "the block is being written"
    book.commit(key(1), WRITER, NOW)
    assert refusal(book, claim(1)) == "the block is stored already"
    book.hold(key(1), READER)
    assert book.remove(key(1)) == ()
    assert refusal(book, claim(1)) == "the block is still being read"
    assert book.release(key(1), READER) is not None
    assert store(book, claim(1)) == []


def test_the_record_unused_for_longest_is_evicted() -> None:
    book = make(extents=1)
    assert store(book, *(claim(number) for number in range(4))) == []
    book.hold(key(0), READER)
    book.release(key(0), READER)
    book.touch(key(1))
    assert store(book, claim(4), claim(5)) == [key(2), key(3)]
    assert store(book, claim(6), claim(7)) == [key(0), key(1)]
    assert book.statistics().evicted == 4


def test_what_is_held_pinned_or_written_is_never_evicted() -> None:
    book = make(extents=1)
    store(book, *(claim(number) for number in range(3)))
    book.hold(key(0), READER)
    assert book.pin(key(1), pinned=True) is not None
    reserve(book, claim(3))
    assert reserve(book, claim(4)).evicted[0].key == key(2)
    assert "held, pinned or being written" in refusal(book, claim(5))
    assert "held, pinned or being written" in refusal(book, claim(5, 64))
    book.audit({READER, WRITER})
    unpinned = book.pin(key(1), pinned=False)
    assert unpinned is not None
    assert not unpinned.pinned
    assert reserve(book, claim(5)).evicted[0].key == key(1)


def test_a_longer_record_gets_the_extent_unused_for_longest() -> None:
    book = make(extents=3)
    store(book, *(claim(number) for number in range(12)))
    for number in range(4):
        book.touch(key(number))
    evicted = [address.key for address in reserve(book, claim(20, 64)).evicted]
    assert sorted(evicted) == sorted(key(number) for number in range(4, 8))


def test_an_extent_in_which_something_must_stay_is_not_emptied() -> None:
    book = make(extents=2)
    store(book, *(claim(number) for number in range(8)))
    book.hold(key(1), READER)
    assert {address.key for address in reserve(book, claim(20, 64)).evicted} == {key(number) for number in range(4, 8)}
    assert "held, pinned or being written" in refusal(book, claim(21, 64))
    book.audit({READER, WRITER})


def test_a_class_takes_back_the_extents_that_another_no_longer_uses() -> None:
    book = make(extents=4)
    store(book, *(claim(number, 32) for number in range(8)))
    store(book, *(claim(100 + number, 16) for number in range(64)))
    assert {entry.record_bytes for entry in book.entries()} == {16}, "the longer ones were used before any of these"


def test_two_classes_that_compete_both_go_on() -> None:
    book, longest = make(extents=3), 0
    for number in range(300):
        store(book, claim(number, 16 if number % 2 else 40))
        sizes = [entry.record_bytes for entry in book.entries()]
        longest = max(longest, len(sizes))
        if number >= 20:
            assert sizes.count(16) >= 4, "starved"
            assert sizes.count(40) >= 1, "starved"
    assert longest >= 6


def test_what_can_never_be_stored_is_refused_with_the_figures() -> None:
    assert refusal(make(), claim(1, 65)) == "a record of 65 bytes is longer than an extent of 64"
    assert "no room for one extent of 64 bytes" in refusal(make(extents=0), claim(1))
    assert refusal(make(), claim(1, 0)) == "a record of 0 bytes is empty"
    assert refusal(make(), claim(1, expires=NOW)) == "the record would be expired at once"
    assert refusal(make(), claim(1, expires=float("nan"))) == "the record would be expired at once"
    assert "quota of 8 B has no 16 bytes" in refusal(make(tenant_bytes_default=8), claim(1))


def test_a_tenant_at_its_quota_evicts_only_its_own() -> None:
    book = make(extents=4, tenant_bytes_max={TENANT: 48})
    store(book, *(claim(100 + number, tenant=OTHER) for number in range(3)))
    assert store(book, *(claim(number) for number in range(6))) == [key(0), key(1), key(2)]
    assert book.statistics().bytes_by_tenant == {TENANT: 48, OTHER: 48}
    assert store(book, claim(9, 32)) == [key(3), key(4)], "it has none of that length: as many as it takes"
    assert book.statistics().bytes_by_tenant == {TENANT: 48, OTHER: 48}


def test_a_tenant_whose_records_must_all_stay_is_refused_at_its_quota() -> None:
    book = make(extents=4, tenant_bytes_default=32)
    store(book, claim(1), claim(2))
    book.hold(key(1), READER)
    book.pin(key(2), pinned=True)
    assert "quota of 32 B has no 16 bytes that may be evicted" in refusal(book, claim(3))
    reserve(book, claim(103, tenant=OTHER))
    book.audit({READER, WRITER})


def test_what_expired_is_absent_before_anybody_sweeps() -> None:
    book = make()
    store(book, claim(1, expires=NOW + 10), claim(2))
    for now, there in ((NOW, True), (NOW + 10, False), (NOW + 9.9, True), (NOW - 500, True), (NOW + 1e9, False)):
        assert (book.find(key(1), now) is not None) == there, now
        assert book.have(NAMESPACE, GroupId(0), [key(1).hash, key(2).hash], TENANT, now) == [there, True]
    swept = book.expire(NOW + 10)
    assert [address.key for address in swept] == [key(1)]
    assert book.expire(NOW + 10) == ()
    assert book.find(key(1), NOW - 500) is None, "a clock that goes back brings nothing back"
    assert book.statistics().expired == 1


def test_what_expired_makes_room_for_its_own_successor() -> None:
    book = make()
    store(book, claim(1, expires=NOW + 1))
    answer = book.reserve(claim(1, expires=NOW + 9), WRITER, NOW + 2)
    assert isinstance(answer, Reserved)
    assert [address.key for address in answer.evicted] == [key(1)]
    assert (book.statistics().expired, book.statistics().evicted) == (1, 0)
    book.audit({WRITER})


def test_a_pin_does_not_keep_what_expires() -> None:
    book = make()
    store(book, claim(1, expires=NOW + 1))
    book.pin(key(1), pinned=True)
    assert len(book.expire(NOW + 1)) == 1
    assert book.statistics().pinned == 0


def test_what_is_removed_while_it_is_read_goes_with_its_last_reader() -> None:
    book = make()
    store(book, claim(1))
    book.hold(key(1), READER)
    book.hold(key(1), SECOND)
    assert book.quarantine(key(1)) == ()
    assert book.purge() == ()
    assert book.find(key(1), NOW) is None
    assert book.have(NAMESPACE, GroupId(0), [key(1).hash], TENANT, NOW) == [False]
    assert stored(book) == set()
    assert book.pin(key(1), pinned=True) is None
    with pytest.raises(AssertionError, match="being removed"):
        book.hold(key(1), Ticket(9))
    assert book.release(key(1), SECOND) is None
    assert book.statistics().resident == 1, "its place is still in use"
    address = book.release(key(1), READER)
    assert address is not None
    assert address.key == key(1)
    books = book.statistics()
    assert (books.stored, books.resident, books.quarantined, books.purged, books.bytes_used) == (1, 0, 1, 0, 0)


def test_what_is_removed_while_it_is_written_goes_when_it_is_acknowledged() -> None:
    book = make()
    reserve(book, claim(1))
    reserve(book, claim(2))
    assert book.purge(TENANT) == ()
    assert book.commit(key(1), WRITER, NOW) is not None
    book.cancel(key(2), WRITER)
    books = book.statistics()
    assert (books.stored, books.purged, books.resident, books.bytes_used) == (1, 1, 0, 0)


def test_purging_one_tenant_leaves_the_other() -> None:
    book = make()
    store(book, claim(1), claim(102, tenant=OTHER))
    assert {entry.address.key for entry in book.entries(TENANT)} == {key(1)}
    assert book.have(NAMESPACE, GroupId(0), [key(102).hash], TENANT, NOW) == [False], "a hit across tenants"
    assert [address.key for address in book.purge(TENANT)] == [key(1)]
    assert stored(book) == {key(102)}
    assert [address.key for address in book.purge()] == [key(102)]
    assert book.statistics().purged == 2


def test_each_cause_has_its_count() -> None:
    book = make()
    store(book, *(claim(number) for number in range(4)))
    assert len(book.remove(key(0))) == len(book.quarantine(key(1))) == len(book.lose(key(2))) == 1
    assert book.remove(key(0)) == book.quarantine(key(0)) == book.lose(key(99)) == ()
    books = book.statistics()
    assert (books.purged, books.quarantined, books.lost, books.resident, books.stored) == (1, 1, 1, 1, 4)


def test_only_owners_let_go() -> None:
    book = make()
    reserve(book, claim(1))
    for wrong in (book.cancel, lambda each, owner: book.commit(each, owner, NOW)):
        with pytest.raises(AssertionError, match="is not writing"):
            wrong(key(1), READER)
        with pytest.raises(AssertionError, match="nothing is being written"):
            wrong(key(2), WRITER)
    with pytest.raises(AssertionError, match="is being written"):
        book.hold(key(1), READER)
    book.commit(key(1), WRITER, NOW)
    with pytest.raises(AssertionError, match="does not hold"):
        book.release(key(1), READER)
    book.hold(key(1), READER)
    with pytest.raises(AssertionError, match=r"holds .* already"):
        book.hold(key(1), READER)
    for call in (book.hold, book.release):
        with pytest.raises(AssertionError, match="nothing is stored"):
            call(key(7), READER)


def entry(number: int, offset: int, size: int = 16, **other: object) -> Entry:
    place = Place(offset=offset, length=size)
    values = {"created_unix_s": NOW + number, "expires_unix_s": None, "pinned": False, "record_bytes": size} | other
    return Entry(address=Address(key=key(number), tenant=TENANT, place=place), **values)  # type: ignore[arg-type]  the fields of Entry, by name


def test_a_restart_takes_over_what_is_right_and_counts_the_rest() -> None:
    book = make(extents=2)
    entries = [
        entry(1, 0),
        entry(2, 16, expires_unix_s=NOW),
        entry(3, 0),  # younger than 1, which lies in the same place
        entry(4, 128),  # beyond the budget
        entry(5, 8),
        entry(6, 64, 24),
        entry(7, 96, 32),  # another class within an extent
        entry(8, 2**70),
        entry(9, -16),
        entry(10, 88, 24, pinned=True),
        entry(10, 32),
        entry(11, 32, record_bytes=20),
    ]
    refused = book.restore(entries, NOW)
    assert stored(book) == {key(3), key(6), key(10)}
    assert len(refused) == len(entries) - book.statistics().resident
    books = book.statistics()
    assert books.stored == len(entries)
    assert (books.expired, books.evicted, books.lost) == (1, 2, 6)
    book.audit(())
    assert store(book, claim(20)) == [], "there is room, and the books know where"


def test_a_restart_with_a_smaller_quota_keeps_what_is_pinned_and_then_the_youngest() -> None:
    book = make(extents=2, tenant_bytes_default=32)
    refused = book.restore([entry(number, 16 * number, pinned=number == 0) for number in range(4)], NOW)
    assert stored(book) == {key(0), key(3)}
    assert {address.key for address in refused} == {key(1), key(2)}
    assert book.statistics().evicted == 2


def test_after_a_restart_the_oldest_goes_first() -> None:
    book = make(extents=1)
    entries = [entry(number, 16 * number) for number in range(4)]
    assert book.restore([entries[2], entries[0], entries[3], entries[1]], NOW) == ()
    assert store(book, claim(20), claim(21)) == [key(0), key(1)]


def test_books_in_use_are_not_restored() -> None:
    book = make()
    store(book, claim(1))
    with pytest.raises(AssertionError, match="in use"):
        book.restore([], NOW)


def test_many_are_asked_for_at_once() -> None:
    book = make(extents=16)
    store(book, *(claim(number) for number in range(0, 60, 2)))
    hashes = [key(number).hash for number in range(60)]
    assert book.have(NAMESPACE, GroupId(0), hashes, TENANT, NOW) == [number % 2 == 0 for number in range(60)]
    assert book.have(NAMESPACE, GroupId(1), hashes, TENANT, NOW) == [False] * 60
    assert book.have(NAMESPACE, GroupId(0), [], TENANT, NOW) == []


class TestRecords:
    """A tier remembers no more than so many records, however short they are."""

    def test_one_too_many_evicts_the_one_used_longest_ago_whatever_its_length(self) -> None:
        book = make(extents=4, records_max=3)
        store(book, claim(1, 8), claim(2, 16), claim(3, 8))
        book.touch(key(1))
        assert store(book, claim(4, 32)) == [key(2)]
        assert store(book, claim(5, 8)) == [key(3)]
        assert stored(book) == {key(1), key(4), key(5)}

    def test_records_that_are_all_needed_refuse_another(self) -> None:
        book = make(extents=4, records_max=1)
        store(book, claim(1))
        book.pin(key(1), pinned=True)
        assert "remember" in refusal(book, claim(2))
        assert "remember" in refusal(make(records_max=0), claim(1))

    def test_another_model_s_records_make_room_one_after_the_other(self) -> None:
        """Whatever the lengths before and after, a tier that is full of records goes on storing."""
        for before, after in ((8, 32), (32, 8), (8, 64), (16, 16)):
            book = make(extents=6, records_max=6)
            store(book, *(claim(number, before) for number in range(6)))
            for number in range(100, 106):
                store(book, claim(number, after))
            assert stored(book) == {key(number) for number in range(100, 106)}, (before, after)

    def test_of_those_that_were_left_the_youngest_stay(self) -> None:
        old = make(extents=4)
        store(old, *(claim(number, 8) for number in range(9)))
        book = make(extents=4, records_max=4)
        assert {address.key for address in book.restore(old.entries(), NOW)} == {key(number) for number in range(5)}
        book.audit(())
        books = book.statistics()
        assert (books.stored, books.resident, books.evicted) == (9, 4, 5)
