"""The index in memory: which record lies where, which places are being written, and what overlaps what.

Looking up rows must cost no system call, so the tier keeps all of them here: about 500 bytes for a record of a
hundred thousand or more. Knows no files and no database; whoever changes both changes this last.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

from kvist.base.units import rounded_up
from kvist.blocks.keys import BlockKey
from kvist.tiers.disk_index import Row
from kvist.tiers.ports import Address, Entry, Place, Write

PLACE_ALIGNMENT = 4096


def place_bytes_for(record_bytes: int) -> int:
    """Bytes of the shortest place for a record."""
    return rounded_up(record_bytes, PLACE_ALIGNMENT)


class _Spans:
    """Ranges of bytes that do not overlap, each with the key of who has it; none crosses a segment's end."""

    def __init__(self, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._offsets: dict[int, list[int]] = {}  # ascending, by segment
        self._ends: dict[int, tuple[int, BlockKey]] = {}

    def add(self, offset: int, end: int, key: BlockKey) -> None:
        insort(self._offsets.setdefault(offset // self._segment_bytes, []), offset)
        self._ends[offset] = (end, key)

    def remove(self, offset: int) -> None:
        offsets = self._offsets[offset // self._segment_bytes]
        del offsets[bisect_left(offsets, offset)]
        del self._ends[offset]

    def overlapping(self, offset: int, end: int) -> Iterator[BlockKey]:
        offsets = self._offsets.get(offset // self._segment_bytes, [])
        for index in range(max(0, bisect_right(offsets, offset) - 1), len(offsets)):
            start = offsets[index]
            if start >= end:
                return
            until, key = self._ends[start]
            if until > offset:
                yield key


class Rows:
    """Rows by key. The caller has a lock.

    Attributes:
        place_bytes, record_bytes: of all records, with and without what rounds their places up.
    """

    def __init__(self, segment_bytes: int) -> None:
        """Begins empty.

        Args:
            segment_bytes: no place crosses a multiple of it.
        """
        self._rows: dict[BlockKey, Row] = {}
        self._stored, self._written = _Spans(segment_bytes), _Spans(segment_bytes)
        self._number = 0
        self.place_bytes = 0
        self.record_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """Oldest first."""
        return iter(sorted(self._rows.values(), key=lambda row: (row.created_unix_s, row.number)))

    def at(self, address: Address) -> Row | None:
        """The row of exactly this record: same key, tenant and place."""
        row = self._rows.get(address.key)
        if row is None or row.tenant != address.tenant:
            return None
        return row if address.place == place_of(row) else None

    def number_at(self, address: Address) -> int | None:
        """Which write put the record there, whatever became of its pin and expiry since; None: it is not there."""
        row = self.at(address)
        return None if row is None else row.number

    def under(self, key: BlockKey) -> Row | None:
        """The row of a key, wherever it lies."""
        return self._rows.get(key)

    def begin(self, key: BlockKey, place: Place) -> Sequence[Row] | None:
        """Marks a place as being written.

        Returns:
            The rows of the records that lie there, to be dropped first: whoever chooses places has given them up. None
            when the place overlaps one that is being written.
        """
        offset, end = place.offset, place.offset + place.length
        if any(True for _ in self._written.overlapping(offset, end)):
            return None
        self._written.add(offset, end, key)
        return [self._rows[each] for each in self._stored.overlapping(offset, end)]

    def end(self, offset: int) -> None:
        """The place is no longer being written."""
        self._written.remove(offset)

    def next_number(self) -> int:
        """For the next row to be written."""
        self._number += 1
        return self._number

    def add(self, row: Row) -> None:
        """A record is there; nothing else is at its place or under its key."""
        assert row.key not in self._rows, f"{row.key} is there twice"
        self._rows[row.key] = row
        self._stored.add(row.offset, row.offset + row.place_bytes, row.key)
        self._number = max(self._number, row.number)
        self.place_bytes += row.place_bytes
        self.record_bytes += row.record_bytes

    def remove(self, rows: Iterable[Row]) -> None:
        """Records are gone."""
        for row in rows:
            del self._rows[row.key]
            self._stored.remove(row.offset)
            self.place_bytes -= row.place_bytes
            self.record_bytes -= row.record_bytes

    def change(self, rows: Iterable[Row], *, pinned: bool, expires_unix_s: float | None) -> None:
        """Pins and expiries of records are others."""
        for row in rows:
            self._rows[row.key] = row._replace(pinned=pinned, expires_unix_s=expires_unix_s)

    def restore(self, row: Row) -> Sequence[Row]:
        """Adds a row that was found on disk; removes and returns those that cannot be true as well."""
        end = row.offset + row.place_bytes
        wrong = [self._rows[each] for each in self._stored.overlapping(row.offset, end)]
        same = self._rows.get(row.key)
        if same is not None and same not in wrong:
            wrong.append(same)
        self.remove(wrong)
        self.add(row)
        return wrong


def row_of(write: Write, number: int) -> Row:
    """The row of a record that is written at its place."""
    address, expires = write.address, write.expires_unix_s
    assert address.place is not None, f"{address} has no place"
    return Row(
        offset=address.place.offset,
        place_bytes=address.place.length,
        number=number,
        record_bytes=write.record.nbytes,
        key=address.key,
        tenant=address.tenant,
        created_unix_s=float(write.created_unix_s),
        expires_unix_s=None if expires is None else float(expires),
        pinned=False,
    )


def place_of(row: Row) -> Place:
    """Where a record lies."""
    return Place(offset=row.offset, length=row.place_bytes)


def entry_of(row: Row) -> Entry:
    """A row as the tier tells it."""
    return Entry(
        address=Address(key=row.key, tenant=row.tenant, place=place_of(row)),
        record_bytes=row.record_bytes,
        created_unix_s=row.created_unix_s,
        expires_unix_s=row.expires_unix_s,
        pinned=row.pinned,
    )
