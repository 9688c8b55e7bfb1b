"""One long row of bytes, kept in files of equal length that are made when they are first written.

    offset of a place = number of its file * segment_bytes + offset within the file

Knows how direct I/O wants its memory: addresses, offsets and lengths in multiples of `granule`. What does not fit goes
through memory that does. A file's bytes are allocated when it is made, so that writing never finds the disk full.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvist.base.units import rounded_up
from kvist.tiers.disk_directory import names_in
from kvist.tiers.disk_files import FilePort, Piece
from kvist.tiers.ports import Place
from kvist.tiers.regions import copy_bytes

_BOUNCE_BYTES = 8 * 2**20
_PROBE = "probe"
_PROBE_BYTES = 8192
_GRANULES = (512, 4096)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
BUFFERED_GRANULE = 1


def segment_name(number: int) -> str:
    """What the file is called."""
    return f"segment-{number:05}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """How much room there is.

    Attributes:
        bytes_max: of all files together.
        segment_bytes: of each but the last, which may be shorter.
        bytes_free_min: must be left in the file system after a file is made.
    """

    bytes_max: int
    segment_bytes: int
    bytes_free_min: int

    @property
    def segments(self) -> int:
        """How many files there can be."""
        return -(-self.bytes_max // self.segment_bytes)

    def length(self, number: int) -> int:
        """How long one of them is."""
        return min(self.segment_bytes, self.bytes_max - number * self.segment_bytes)

    def allow(self, place: Place) -> bool:
        """Whether a place is within the row and within one file."""
        end = place.offset + place.length
        is_inside = place.offset >= 0 and place.length > 0 and end <= self.bytes_max
        return is_inside and place.offset // self.segment_bytes == (end - 1) // self.segment_bytes


class Span(NamedTuple):
    """Bytes of the row from an offset on, and the memory they go to or come from; within one file."""

    offset: int
    view: memoryview


class _Move(NamedTuple):
    """What becomes of one span: pieces, and which of its parts are copied to or from which part of the detour."""

    pieces: list[Piece]
    back: list[tuple[memoryview, memoryview]]


@dataclass(slots=True)
class _Bounce:
    """Memory that direct I/O accepts, handed out from front to back."""

    memory: memoryview = field(default_factory=lambda: memoryview(b""))
    used: int = 0

    def take(self, length: int) -> memoryview:
        taken = self.memory[self.used : self.used + length]
        self.used += length
        return taken


class Segments:
    """The files. All methods but `close` may be called from several threads; spans must not overlap.

    Attributes:
        limits: how much room there is.
        granule: direct I/O goes in multiples of it; `BUFFERED_GRANULE`: there is none here.
    """

    def __init__(self, directory_fd: int, limits: SegmentLimits, port: FilePort) -> None:
        """Opens what is there already, makes it fit the limits, and finds out whether I/O can be direct.

        Raises:
            OSError: the directory cannot be used.
        """
        self._directory_fd = directory_fd
        self.limits = limits
        self._port = port
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self.granule = granule_of(directory_fd, port)
        try:
            for name in names_in(directory_fd):
                if name.startswith("segment-"):
                    self._adopt(name)
        except OSError:
            self.close()
            raise

    @property
    def bytes_allocated(self) -> int:
        """Of all files."""
        return sum(list(self._lengths.values()))

    def holds(self, offset: int, length: int) -> bool:
        """Whether a file has all of these bytes."""
        number, start = divmod(offset, self.limits.segment_bytes)
        return start + length <= self._lengths.get(number, 0)

    def ensure(self, offset: int) -> int:
        """Makes the file that an offset is in, if it is not there; 0, or the error number that says why not."""
        number = offset // self.limits.segment_bytes
        with self._lock:
            if self._lengths.get(number) == self.limits.length(number):
                return 0
            try:
                return self._make(number)
            except OSError as error:
                return error.errno or errno.EIO

    def read(self, spans: Sequence[Span]) -> list[int]:
        """Fills each span; for each 0 or an error number, `ENODATA` where the file ends before the span does."""
        results: list[int] = []
        for window in self._windows(spans):
            moves = self._moves(window)
            pieces = [piece for move in moves for piece in move.pieces]
            results += _sum_up(moves, self._port.read(pieces), short=errno.ENODATA)
            for move in moves:
                for into, detour in move.back:
                    copy_bytes(into, detour)
        return results

    def write(self, spans: Sequence[Span]) -> list[int]:
        """Writes each span, whose file must be there; for each 0 or an error number.

        When it returns, what was written survives this process; whether it survives a loss of power is not promised.
        """
        results: list[int] = []
        for window in self._windows(spans):
            moves = self._moves(window)
            for move in moves:
                for source, detour in move.back:
                    copy_bytes(detour, source)
            pieces = [piece for move in moves for piece in move.pieces]
            results += _sum_up(moves, self._port.write(pieces), short=errno.ENOSPC)
        if self.granule == BUFFERED_GRANULE:
            self._sync(spans, results)
        return results

    def close(self) -> None:
        """Closes the files; nobody may be reading or writing."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def _adopt(self, name: str) -> None:
        """Opens a file that an earlier process left, cut to the length that it may have now."""
        number = int(name.removeprefix("segment-"))
        length = max(0, self.limits.length(number))
        if length == 0 or name != segment_name(number):
            os.unlink(name, dir_fd=self._directory_fd)
            return
        fd = self._open(name)
        self._fds[number] = fd
        found = os.fstat(fd).st_size
        if found > length:
            os.ftruncate(fd, length)
        self._lengths[number] = min(found, length)

    def _make(self, number: int) -> int:
        length = self.limits.length(number)
        missing = length - self._lengths.get(number, 0)
        if self._port.bytes_free(self._directory_fd) - missing < self.limits.bytes_free_min:
            return errno.ENOSPC
        fd = self._fds.get(number)
        if fd is None:
            fd = self._open(segment_name(number))
            self._fds[number] = fd
        try:
            self._port.allocate(fd, length)
        except OSError:
            os.ftruncate(fd, self._lengths.get(number, 0))  # what was allocated of it so far
            raise
        self._lengths[number] = length
        return 0

    def _open(self, name: str) -> int:
        direct = 0 if self.granule == BUFFERED_GRANULE else os.O_DIRECT
        return os.open(name, _FLAGS | direct, 0o600, dir_fd=self._directory_fd)

    def _windows(self, spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
        """Cuts a call so that detours take a bounded amount of memory."""
        start = nbytes = 0
        for index, span in enumerate(spans):
            detour = sum(self._detours(span.view))
            if nbytes and nbytes + detour > _BOUNCE_BYTES:
                yield spans[start:index]
                start, nbytes = index, 0
            nbytes += detour
        if start < len(spans):
            yield spans[start:]

    def _detours(self, view: memoryview) -> tuple[int, int]:
        """Bytes of detour for a view's body and for its tail, which are what is whole granules and what is not."""
        granule, length = self.granule, view.nbytes
        if view.readonly or ctypes.addressof(ctypes.c_char.from_buffer(view)) % granule:
            return rounded_up(length, granule), 0
        return 0, granule if length % granule else 0

    def _moves(self, spans: Sequence[Span]) -> list[_Move]:
        detours = [self._detours(span.view) for span in spans]
        total = sum(map(sum, detours))
        bounce = _Bounce(memoryview(mmap.mmap(-1, total))) if total else _Bounce()
        return [self._move(span, *detour, bounce) for span, detour in zip(spans, detours, strict=True)]

    def _move(self, span: Span, whole: int, tail: int, bounce: _Bounce) -> _Move:
        number, start = divmod(span.offset, self.limits.segment_bytes)
        fd, length = self._fds.get(number, -1), span.view.nbytes
        if whole:
            detour = bounce.take(whole)
            return _Move([Piece(fd, start, detour)], [(span.view, detour[:length])])
        body = length - length % self.granule
        move = _Move([Piece(fd, start, span.view[:body])] if body else [], [])
        if tail:
            detour = bounce.take(tail)
            move.pieces.append(Piece(fd, start + body, detour))
            move.back.append((span.view[body:], detour[: length - body]))
        return move

    def _sync(self, spans: Sequence[Span], results: list[int]) -> None:
        """Bounds what the system may keep back in its cache; a file that cannot be synced has stored nothing."""
        numbers = {span.offset // self.limits.segment_bytes for span in spans}
        for number in numbers:
            try:
                self._port.sync(self._fds[number])
            except OSError as error:
                for index, span in enumerate(spans):
                    if span.offset // self.limits.segment_bytes == number:
                        results[index] = results[index] or error.errno or errno.EIO


def _sum_up(moves: Sequence[_Move], moved: Sequence[int], *, short: int) -> list[int]:
    """The first thing that went wrong with each move."""
    results, index = [], 0
    for move in moves:
        result = 0
        for piece in move.pieces:
            if moved[index] < piece.view.nbytes:
                result = result or (-moved[index] if moved[index] < 0 else short)
            index += 1
        results.append(result)
    return results


def granule_of(directory_fd: int, port: FilePort) -> int:
    """The smallest multiple in which direct I/O works in a directory, or `BUFFERED_GRANULE` where it does not.

    Raises:
        OSError: not even buffered I/O works.
    """
    for granule in _GRANULES:
        try:
            if _probe(directory_fd, port, os.O_DIRECT, granule):
                return granule
        except OSError:  # this file system has no direct I/O, or not in such multiples
            continue
    if not _probe(directory_fd, port, 0, _GRANULES[0]):
        raise OSError(errno.EIO, "what was written is not what is read")
    return BUFFERED_GRANULE


def _probe(directory_fd: int, port: FilePort, flag: int, granule: int) -> bool:
    """Writes and reads once as records will be."""
    fd = os.open(_PROBE, _FLAGS | flag | os.O_TRUNC, 0o600, dir_fd=directory_fd)
    try:
        port.allocate(fd, _PROBE_BYTES)
        memory = memoryview(mmap.mmap(-1, 3 * _PROBE_BYTES))
        memory[granule : 2 * granule] = os.urandom(granule)
        written = port.write([Piece(fd, granule, memory[granule : 2 * granule])])
        read = port.read([Piece(fd, granule, memory[3 * granule : 4 * granule])])
        if min(*written, *read) < 0:
            raise OSError(-min(*written, *read), os.strerror(-min(*written, *read)))
        return memory[granule : 2 * granule] == memory[3 * granule : 4 * granule]
    finally:
        os.close(fd)
        os.unlink(_PROBE, dir_fd=directory_fd)
