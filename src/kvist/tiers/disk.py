"""A directory on a local disk as a tier (G3): records in segment files, an index beside them, all in budget.

Places are chosen by whoever writes; this keeps bytes and the knowledge of which record lies where. A record is there
once its row is committed, and its row is committed once its bytes are with the operating system:

    rows of what lay there are dropped  ->  bytes  ->  row  ->  acknowledged

so that `kill -9` at any moment loses no acknowledged record and leaves no row without its record. Losing power may do
both; then the record's own header and checksum differ (`kvist.tiers.verified`).

Works in its callers' threads and has none itself: io_uring keeps as many requests in flight as one call has records
(`kvist.tiers.disk_ring`). A call should therefore bring many.

Laws:
    * All files of the directory together take at most `bytes_max`, at any moment.
    * A new file leaves the file system at least `bytes_free_min`.
    * One process at a time; the files are private to their user.
"""

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kvist.base.errors import ConfigError, TierError, TierUnavailableError
from kvist.base.units import format_bytes
from kvist.blocks.keys import BlockKey, TenantTag
from kvist.tiers.disk_directory import Directory
from kvist.tiers.disk_errors import FOREIGN, FULL, describe, error_of, translated
from kvist.tiers.disk_files import FilePort, PlainFiles
from kvist.tiers.disk_index import Row
from kvist.tiers.disk_recovery import load_rows, open_index
from kvist.tiers.disk_ring import RingFiles
from kvist.tiers.disk_rows import PLACE_ALIGNMENT, entry_of, row_of
from kvist.tiers.disk_segments import BUFFERED_GRANULE, Segments, Span
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import (
    Absent,
    Address,
    Damaged,
    Entry,
    Found,
    NotStored,
    Place,
    Read,
    ReadOutcome,
    Stored,
    TierStatistics,
    Write,
    WriteOutcome,
)

_FOUND = Found()
_ABSENT = Absent()
_STORED = Stored()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStatistics(TierStatistics):
    """A snapshot of a disk tier.

    Attributes:
        bytes_allocated: of segment files, whether or not they hold records.
        direct: whether reads and writes bypass the system's cache.
        port: how they are made: "io_uring" or "preadv".
        indexes_lost: 1 if the index could not be read at the start and all was forgotten.
    """

    bytes_allocated: int = 0
    direct: bool = False
    port: str = ""
    indexes_lost: int = 0


class DiskTier:
    """Records in the files of one directory. All verbs may be called from several threads.

    Attributes:
        bytes_for_records: what the budget leaves for places, [0, bytes_for_records) of which may be used.
        segment_bytes: no place may cross a multiple of it.
        records_max: that may be there at once.
        alignment: of places.
        buffer_alignment: memory at multiples of it is read and written without a detour.
    """

    alignment = PLACE_ALIGNMENT
    buffer_alignment = PLACE_ALIGNMENT

    def __init__(self, name: str, settings: DiskSettings, *, port: FilePort | None = None) -> None:
        """Takes the directory, with all records that are there.

        Args:
            name: what configuration and metrics call it.
            settings: where and how much.
            port: moves bytes; None: the fastest that this system allows. Is closed with the tier.

        Raises:
            ConfigError: the directory or the budget cannot be used.
        """
        self._name = name
        self._settings = settings
        self._lock = threading.Lock()
        self._users = 1  # this object itself, until it is closed
        self._is_closed = False
        self.records_max = settings.index.rows_max
        settings.segments(settings.segment_bytes_wanted)  # before anything is made
        try:
            with ExitStack() as opened:
                self._open(opened, port)
                self._opened = opened.pop_all()
        except FOREIGN as error:
            raise ConfigError(f"{settings.directory} cannot be used: {error}; choose another directory") from error
        self.bytes_for_records = self._segments.limits.bytes_max
        self.segment_bytes = self._segments.limits.segment_bytes

    def _open(self, opened: ExitStack, port: FilePort | None) -> None:
        """Opens everything, each to be closed before what it needs."""
        settings = self._settings
        directory = Directory(settings.directory)
        opened.callback(directory.close)
        if 0 < directory.file_system_bytes < settings.bytes_max:
            here, given = format_bytes(directory.file_system_bytes), format_bytes(settings.bytes_max)
            raise ConfigError(
                f"{settings.directory} is on a file system of {here}; which cannot hold {given}; give the tier less"
            )
        self._port = port or fastest_port()
        opened.callback(self._port.close)
        self._index, lost = open_index(directory, settings)
        opened.callback(self._index.close)
        self._index.remember(settings.record_bytes_min)
        self._segments = Segments(directory.fd, settings.segments(self._index.segment_bytes), self._port)
        opened.callback(self._segments.close)
        self._rows, self._records_lost = load_rows(self._index, self._segments, self.records_max)
        self._indexes_lost = int(lost)

    @property
    def name(self) -> str:
        """What configuration and metrics call it."""
        return self._name

    def find(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Finder`; asks no medium."""
        self._check_open()
        with self._lock:
            return [self._rows.at(address) is not None for address in addresses]

    def read(self, reads: Sequence[Read]) -> Sequence[ReadOutcome]:
        """See `kvist.tiers.ports.Reader`."""
        with self._inside():
            with self._lock:
                rows = [self._rows.at(each.address) for each in reads]
            pairs = list(zip(reads, rows, strict=True))
            there = [(read, row) for read, row in pairs if row is not None and row.record_bytes == read.into.nbytes]
            with translated(tier=self._name):
                codes = self._segments.read([Span(row.offset, read.into) for read, row in there])
            self._check_some_worked([code for code in codes if code != errno.ENODATA])
            with self._lock:  # a record that was replaced meanwhile says nothing about what was read
                same = [self._rows.number_at(read.address) == row.number for read, row in there]
            outcomes = iter([_read_outcome(code) if kept else _ABSENT for code, kept in zip(codes, same, strict=True)])
            return [_unread(read, row) or next(outcomes) for read, row in pairs]

    def write(self, writes: Sequence[Write]) -> Sequence[WriteOutcome]:
        """See `kvist.tiers.ports.Writer`.

        What the index says of a place is forgotten when it is written: whoever chooses places has given that record up.

        Raises:
            TierError: besides what the port says, a place is outside the tier, or no place for its record.
        """
        with self._inside():
            for each in writes:
                self._check_place(each)
            return [outcome for part in _without_repeats(writes) for outcome in self._write(part)]

    def delete(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """See `kvist.tiers.ports.Deleter`."""
        with self._inside(), self._lock:
            there = self._found(addresses)
            with translated(tier=self._name):
                self._index.drop([row.offset for row in there.values()])
            self._rows.remove(there.values())
            return [index in there for index in range(len(addresses))]

    def keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        """See `kvist.tiers.ports.Keeper`."""
        with self._inside(), self._lock:
            rows = list(self._found(addresses).values())
            with translated(tier=self._name):
                self._index.keep([row.offset for row in rows], pinned=pinned, expires_unix_s=expires_unix_s)
            self._rows.change(rows, pinned=pinned, expires_unix_s=expires_unix_s)
            return [self._rows.at(address) is not None for address in addresses]

    def entries(self, tenant: TenantTag | None = None) -> Iterator[Entry]:
        """See `kvist.tiers.ports.Lister`; those created first come first."""
        self._check_open()
        with self._lock:
            return iter([entry_of(row) for row in self._rows if tenant in (None, row.tenant)])

    def statistics(self) -> DiskStatistics:
        """What it holds, in a frozen snapshot."""
        with self._lock:
            return DiskStatistics(
                records=len(self._rows),
                bytes_used=self._rows.place_bytes,
                bytes_max=self._settings.bytes_max,
                bytes_overhead=self._rows.place_bytes - self._rows.record_bytes,
                bytes_allocated=self._segments.bytes_allocated,
                direct=self._segments.granule != BUFFERED_GRANULE,
                port=getattr(self._port, "name", type(self._port).__name__),
                records_lost=self._records_lost,
                indexes_lost=self._indexes_lost,
            )

    def close(self) -> None:
        """Ends all use; files and lock are given up when the last call that is inside has ended. May be repeated.

        Raises:
            TierError: the last checkpoint failed; no record is lost by that.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._leave()

    def _check_place(self, write: Write) -> None:
        place, length = write.address.place, write.record.nbytes
        if place is None:
            raise TierError("a record without a place cannot be on disk", tier=self._name)
        if place.offset % PLACE_ALIGNMENT or not self._segments.limits.allow(place):
            limits = f"{self.bytes_for_records} bytes in segments of {self.segment_bytes}"
            raise TierError(f"{place} is not in {limits} at multiples of {PLACE_ALIGNMENT}", tier=self._name)
        if not 0 < length <= place.length or place.length % PLACE_ALIGNMENT:
            raise TierError(f"{place} is no place for {length} bytes", tier=self._name)

    def _write(self, writes: Sequence[Write]) -> list[WriteOutcome]:
        """Stores records with different keys."""
        with self._places(writes) as refused:
            taken = [each for index, each in enumerate(writes) if index not in refused]
            with translated(tier=self._name):
                codes = self._move(taken)
            self._commit([each for each, code in zip(taken, codes, strict=True) if code == 0])
        outcomes = iter([_write_outcome(code) for code in codes])
        return [NotStored(reason=refused[i]) if i in refused else next(outcomes) for i in range(len(writes))]

    @contextmanager
    def _places(self, writes: Sequence[Write]) -> Iterator[dict[int, str]]:
        """Takes the places of records for the time of writing them; yields why some are refused, by their index."""
        refused: dict[int, str] = {}
        stale: dict[int, Row] = {}
        begun: list[int] = []
        try:
            with self._lock, translated(tier=self._name):
                for index, each in enumerate(writes):
                    place = _place_of(each)
                    found = self._rows.begin(each.address.key, place)
                    if found is None:
                        refused[index] = "its place is being written"
                        continue
                    more = {row.offset: row for row in found if row.offset not in stale}
                    if len(self._rows) - len(stale) - len(more) + len(begun) >= self.records_max:
                        self._rows.end(place.offset)
                        refused[index] = f"the index has room for {self.records_max} records"
                        continue
                    begun.append(place.offset)
                    stale.update(more)
                self._index.drop(list(stale))
                self._rows.remove(stale.values())
            yield refused
        finally:
            with self._lock:
                for offset in begun:
                    self._rows.end(offset)

    def _move(self, writes: Sequence[Write]) -> list[int]:
        """Writes records where there is, or can be, a file; for each 0 or an error number.

        Raises:
            TierError: none can be written, and not because there is no room for more files: others may be had.
        """
        spans = [Span(_place_of(each).offset, each.record) for each in writes]
        codes = dict.fromkeys((span.offset // self.segment_bytes for span in spans), 0)
        for number in sorted(codes):
            codes[number] = self._segments.ensure(number * self.segment_bytes)
        results = [codes[span.offset // self.segment_bytes] for span in spans]
        ready = [index for index, code in enumerate(results) if code == 0]
        for index, code in zip(ready, self._segments.write([spans[index] for index in ready]), strict=True):
            results[index] = code
        tried = {*ready, *(index for index, code in enumerate(results) if code not in FULL)}
        self._check_some_worked([results[index] for index in sorted(tried)])
        return results

    def _commit(self, writes: Sequence[Write]) -> None:
        with self._lock, translated(tier=self._name):
            rows = [row_of(each, self._rows.next_number()) for each in writes]
            found = [self._rows.under(row.key) for row in rows]
            moved = [row for row in found if row is not None]
            self._index.put(rows)
            self._index.drop([row.offset for row in moved])
            self._rows.remove(moved)
            for row in rows:
                self._rows.add(row)

    def _found(self, addresses: Sequence[Address]) -> dict[int, Row]:
        """The rows of records, by the first index that names each."""
        found: dict[int, Row] = {}
        seen: set[int] = set()
        for index, address in enumerate(addresses):
            row = self._rows.at(address)
            if row is not None and row.offset not in seen:
                seen.add(row.offset)
                found[index] = row
        return found

    def _check_some_worked(self, codes: Sequence[int]) -> None:
        """Raises when all of a call failed: then it is not about one record."""
        if codes and all(codes):
            raise error_of(codes[0], tier=self._name)

    def _check_open(self) -> None:
        if self._is_closed:
            raise TierUnavailableError("it is closed", tier=self._name)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Keeps the files open for the length of a call."""
        with self._lock:
            self._check_open()
            self._users += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        with translated(tier=self._name):
            self._opened.close()


def fastest_port() -> FilePort:
    """io_uring where the kernel and its sandbox allow it, else one system call after the other."""
    try:
        return RingFiles()
    except OSError:
        return PlainFiles()


def _without_repeats(writes: Sequence[Write]) -> Iterator[Sequence[Write]]:
    """Cuts a call where a key comes again, so that the later record replaces the earlier one."""
    start = 0
    keys: set[BlockKey] = set()
    for index, each in enumerate(writes):
        if each.address.key in keys:
            yield writes[start:index]
            start, keys = index, set()
        keys.add(each.address.key)
    if start < len(writes):
        yield writes[start:]


def _place_of(write: Write) -> Place:
    """Of a write whose place has been checked."""
    assert write.address.place is not None, f"{write.address} has no place"
    return write.address.place


def _unread(read: Read, row: Row | None) -> ReadOutcome | None:
    """Why a record was not even tried."""
    if row is None:
        return _ABSENT
    if row.record_bytes != read.into.nbytes:
        return Damaged(reason=f"{row.record_bytes} bytes are there, not {read.into.nbytes}")
    return None


def _write_outcome(code: int) -> WriteOutcome:
    return NotStored(reason=describe(code), lacks_room=code in FULL) if code else _STORED


def _read_outcome(code: int) -> ReadOutcome:
    return Damaged(reason=describe(code)) if code else _FOUND
