"""Host memory as a tier (G2): one region of shared memory, cut into places by whoever writes.

Copying in is one memcpy per record and allocates nothing; what is read need not be copied at all (`lend`). Survives
nothing. Knows which place holds which record, so that it can answer for itself; decides nothing.

Laws:
    * Every byte that is touched lies in the place of the address that was given, and every place in the region.
    * No two records overlap: whoever would write into another record's place is refused.
    * A record is there from the end of its write on, never before.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvist.base.errors import TierError, TierUnavailableError
from kvist.blocks.keys import TenantTag
from kvist.tiers.ports import (
    Absent,
    Address,
    Damaged,
    Entry,
    Found,
    Place,
    Read,
    ReadOutcome,
    Stored,
    TierStatistics,
    Write,
    WriteOutcome,
)
from kvist.tiers.regions import Region, copy_bytes

_FOUND = Found()
_ABSENT = Absent()
_STORED = Stored()


class MemoryTier:
    """Records in one region of shared memory. All verbs may be called from several threads.

    The region stays its maker's: `close` ends the tier's use of it and leaves the bytes to those who still look.
    """

    def __init__(self, name: str, region: Region, *, alignment: int = 64) -> None:
        """Begins empty, whatever the region holds.

        Args:
            name: what configuration and metrics call it.
            region: all of it is the tier's.
            alignment: of places, in bytes.
        """
        assert alignment > 0, f"places cannot be aligned to {alignment} bytes"
        self._name = name
        self._region = region
        self._alignment = alignment
        self._lock = threading.Lock()
        self._entries: dict[int, Entry] = {}
        self._lengths: dict[int, int] = {}  # of the places that are taken, by their offsets, while written too
        self._offsets: list[int] = []  # of the same, ascending
        self._bytes_used = 0
        self._is_closed = False

    @property
    def name(self) -> str:
        """What configuration and metrics call it."""
        return self._name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Finder`."""
        self._check_open()
        return [self._entry_at(address) is not None for address in addresses]

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """See `kvist.tiers.ports.Reader`; one memcpy per record."""
        self._check_open()
        return [self._read(each) for each in reads]

    def lend(self, addresses: Sequence[Address]) -> Sequence[memoryview]:
        """See `kvist.tiers.ports.Lender`; views of the region itself."""
        self._check_open()
        places = [self._place(address) for address in addresses]
        return [self._region.view(place.offset, place.length) for place in places]

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """See `kvist.tiers.ports.Writer`; one memcpy per record.

        Raises:
            TierError: a place is outside the region, too short, or overlaps another record's; what came before it in
                `writes` is stored.
        """
        return [self._write(each) for each in writes]

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Deleter`."""
        self._check_open()
        return [self._delete(address) for address in addresses]

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """See `kvist.tiers.ports.Keeper`."""
        self._check_open()
        found = []
        with self._lock:
            for address in addresses:
                entry = self._entry_at(address)
                found.append(entry is not None)
                if entry is not None:
                    kept = replace(entry, pinned=pinned, expires_unix_s=expires_unix_s)
                    self._entries[self._place(address).offset] = kept
        return found

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """See `kvist.tiers.ports.Lister`; oldest first."""
        self._check_open()
        with self._lock:
            entries = [entry for entry in self._entries.values() if tenant in (None, entry.address.tenant)]
        return iter(sorted(entries, key=lambda entry: entry.created_unix_s))

    def statistics(self) -> TierStatistics:
        """What it holds, in a frozen snapshot."""
        with self._lock:
            records = sum(entry.record_bytes for entry in self._entries.values())
            return TierStatistics(
                records=len(self._entries),
                bytes_used=self._bytes_used,
                bytes_max=self._region.size,
                bytes_overhead=self._bytes_used - records,
            )

    def close(self) -> None:
        """Ends all use; what others are reading stays as it is. May be repeated."""
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise TierUnavailableError("it is closed", tier=self._name)

    def _place(self, address: Address) -> Place:
        """Where an address points, proven to be within the region."""
        place = address.place
        if place is None:
            raise TierError("a record without a place cannot be in memory", tier=self._name)
        inside = place.offset >= 0 and 0 < place.length <= self._region.size - place.offset
        if not inside or place.offset % self._alignment:
            message = f"{place} is not in {self._region.size} bytes at multiples of {self._alignment}"
            raise TierError(message, tier=self._name)
        return place

    def _entry_at(self, address: Address) -> Entry | None:
        """The record under exactly this address."""
        entry = self._entries.get(self._place(address).offset)
        return entry if entry is not None and entry.address == address else None

    def _read(self, read: Read) -> ReadOutcome:
        entry = self._entry_at(read.address)
        if entry is None:
            return _ABSENT
        if read.into.nbytes != entry.record_bytes:
            return Damaged(reason=f"{entry.record_bytes} bytes are there, not {read.into.nbytes}")
        copy_bytes(read.into, self._region.view(self._place(read.address).offset, entry.record_bytes))
        return _FOUND

    def _write(self, write: Write) -> WriteOutcome:
        place, size = self._place(write.address), write.record.nbytes
        if size > place.length:
            raise TierError(f"{size} bytes do not fit into {place}", tier=self._name)
        self._take(write.address, place)
        copy_bytes(self._region.view(place.offset, size), write.record)
        entry = Entry(
            address=write.address,
            record_bytes=size,
            created_unix_s=write.created_unix_s,
            expires_unix_s=write.expires_unix_s,
            pinned=False,
        )
        with self._lock:
            self._entries[place.offset] = entry
        return _STORED

    def _take(self, address: Address, place: Place) -> None:
        """Marks a place as being written, where nothing else is."""
        with self._lock:
            self._check_open()
            self._check_apart(address, place)
            if self._entries.pop(place.offset, None) is not None:  # is replaced
                return
            insort(self._offsets, place.offset)
            self._lengths[place.offset] = place.length
            self._bytes_used += place.length

    def _check_apart(self, address: Address, place: Place) -> None:
        """Raises when a place overlaps one that is taken, unless by the record that is to be replaced."""
        index = bisect_left(self._offsets, place.offset)
        for taken in self._offsets[max(0, index - 1) : index + 1]:
            overlaps = taken < place.offset + place.length and place.offset < taken + self._lengths[taken]
            holder = self._entries.get(taken)
            if overlaps and (holder is None or holder.address != address):
                raise TierError(f"{place} is taken from {taken} on by another record", tier=self._name)

    def _delete(self, address: Address) -> bool:
        with self._lock:
            entry = self._entry_at(address)
            if entry is None:
                return False
            offset = self._place(address).offset
            del self._entries[offset]
            del self._offsets[bisect_left(self._offsets, offset)]
            self._bytes_used -= self._lengths.pop(offset)
            return True
