"""The index in memory: addresses, places that are being written, and rows that cannot both be true."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.tiers import BLUE, RED, key_of, write_of
from kvist.tiers.disk_index import Row
from kvist.tiers.disk_rows import Rows, entry_of, place_bytes_for, place_of, row_of
from kvist.tiers.ports import Address, Place

SEGMENT = 64 * 4096


def row(number: int, offset: int, length: int = 4096, version: int = 0, record_bytes: int | None = None) -> Row:
    """A record at a place."""
    return Row(
        offset, length, version, record_bytes or length, key_of(number), BLUE, float(version), None, pinned=False
    )


def rows_of(*rows: Row) -> Rows:
    """All of them, of which none overlap."""
    made = Rows(SEGMENT)
    for each in rows:
        made.add(each)
    return made


def test_the_shortest_place_is_a_multiple_of_4096() -> None:
    assert [place_bytes_for(each) for each in (1, 512, 4096, 4097, 8192)] == [4096, 4096, 4096, 8192, 8192]


def test_a_record_is_found_by_all_of_its_address() -> None:
    rows = rows_of(row(1, 4096))
    place = Place(offset=4096, length=4096)
    assert rows.at(Address(key=key_of(1), tenant=BLUE, place=place)) == row(1, 4096)
    for other in (
        Address(key=key_of(2), tenant=BLUE, place=place),
        Address(key=key_of(1), tenant=RED, place=place),
        Address(key=key_of(1), tenant=BLUE, place=Place(offset=0, length=4096)),
        Address(key=key_of(1), tenant=BLUE, place=Place(offset=4096, length=8192)),
        Address(key=key_of(1), tenant=BLUE),
    ):
        assert rows.at(other) is None


def test_a_record_keeps_its_number_whatever_its_pin_and_expiry() -> None:
    rows = rows_of(row(1, 4096, version=3))
    at = Address(key=key_of(1), tenant=BLUE, place=Place(offset=4096, length=4096))
    rows.change([row(1, 4096, version=3)], pinned=True, expires_unix_s=9.0)
    assert rows.at(at) != row(1, 4096, version=3)
    assert rows.number_at(at) == 3
    rows.restore(row(1, 4096, version=4))
    assert rows.number_at(at) == 4
    assert rows.number_at(Address(key=key_of(1), tenant=BLUE)) is None


def test_a_row_says_what_was_written_and_where() -> None:
    address = Address(key=key_of(1), tenant=BLUE, place=Place(offset=8192, length=8192))
    made = row_of(write_of(address, 600, 3, expires=7.0), 9)
    assert made.number == 9
    assert place_of(made) == address.place
    entry = entry_of(made)
    assert (entry.address, entry.record_bytes, entry.expires_unix_s, entry.pinned) == (address, 600, 7.0, False)


def test_numbers_go_on_after_those_that_are_there() -> None:
    rows = rows_of(row(1, 0, version=41))
    assert [rows.next_number(), rows.next_number()] == [42, 43]


def test_bytes_are_those_of_the_rows() -> None:
    first, second = row(1, 0, 8192, record_bytes=5000), row(2, 8192)
    rows = rows_of(first, second)
    assert (len(rows), rows.place_bytes, rows.record_bytes) == (2, 12288, 9096)
    rows.remove([first])
    assert (len(rows), rows.place_bytes, rows.record_bytes) == (1, 4096, 4096)
    rows.change([second], pinned=True, expires_unix_s=5.0)
    assert [(each.pinned, each.expires_unix_s) for each in rows] == [(True, 5.0)]


def test_oldest_come_first_and_then_those_written_first() -> None:
    rows = rows_of(*(row(number, number * 4096, version=version) for number, version in enumerate((3, 1, 2))))
    assert [each.number for each in rows] == [1, 2, 3]


def test_a_place_is_written_by_one_at_a_time() -> None:
    rows = rows_of()
    assert rows.begin(key_of(1), Place(offset=0, length=8192)) == []
    for place in (Place(offset=0, length=4096), Place(offset=4096, length=4096), Place(offset=4096, length=8192)):
        assert rows.begin(key_of(2), place) is None
    assert rows.begin(key_of(2), Place(offset=8192, length=4096)) == []
    rows.end(0)
    assert rows.begin(key_of(3), Place(offset=4096, length=4096)) == []


def test_of_rows_that_cannot_all_be_true_the_last_written_is() -> None:
    rows = Rows(SEGMENT)
    first, second = row(1, 0, 8192, version=1), row(2, 8192, 8192, version=2)
    assert list(rows.restore(first)) == list(rows.restore(second)) == []
    assert list(rows.restore(row(3, 4096, 8192, version=3))) == [first, second]
    moved = row(3, 0, version=4)
    assert list(rows.restore(moved)) == [row(3, 4096, 8192, version=3)]
    assert list(rows) == [moved]
    assert list(rows.restore(row(3, 0, 4096, version=5))) == [moved]
    assert rows.place_bytes == 4096


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=40), st.integers(0, 40), st.integers(1, 20))
def test_overlaps_are_those_that_a_search_of_all_rows_finds(
    spans: list[tuple[int, int]], start: int, length: int
) -> None:
    rows = Rows(SEGMENT)
    for number, (offset, size) in enumerate(spans):
        rows.restore(row(number, offset * 4096, size * 4096, version=number))
    end = (start + length) * 4096
    right = [each for each in rows if each.offset < end and start * 4096 < each.offset + each.place_bytes]
    found = rows.begin(key_of(99), Place(offset=start * 4096, length=length * 4096))
    assert found is not None
    assert sorted(found) == sorted(right)
