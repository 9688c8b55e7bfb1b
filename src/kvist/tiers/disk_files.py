"""Bytes between memory and open files, many pieces at a time, behind a port where tests put their faults.

Knows descriptors, offsets and memory; not records, not which file is which.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

_RUN_PIECES = 256
_RUN_BYTES = 8 * 2**20


class Piece(NamedTuple):
    """Bytes to move between an offset of an open file and memory."""

    fd: int
    offset: int
    view: memoryview


class FilePort(Protocol):
    """Moves bytes between files and memory.

    May be called from several threads at once. Moves of one call may happen in any order and at the same time, so
    they must not overlap. All of them have ended when a call returns, whatever way it returns. A result is the number
    of bytes moved, or an error number of the operating system, negated; fewer bytes than asked for mean that the file
    ends there, or the medium. The memory of a piece is writable, in both directions.
    """

    def read(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Fills each piece from its file; results in order."""
        ...

    def write(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """Writes each piece to its file; results in order."""
        ...

    def sync(self, fd: int) -> None:
        """Returns when what was written to a file is on the medium.

        Raises:
            OSError: it is not.
        """
        ...

    def allocate(self, fd: int, length: int) -> None:
        """Gives a file so many bytes of the medium; what it holds stays.

        Raises:
            OSError: there is no room.
        """
        ...

    def bytes_free(self, fd: int) -> int:
        """What its file system has left for this user.

        Raises:
            OSError: it does not say.
        """
        ...

    def close(self) -> None:
        """Gives up what the port itself holds; files stay open."""
        ...


class PlainFiles:
    """One system call after the other, in the caller's thread; neighbours in one call. Works everywhere."""

    name = "preadv"

    def read(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """See `FilePort`."""
        return _move(os.preadv, pieces)

    def write(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """See `FilePort`."""
        return _move(os.pwritev, pieces)

    def sync(self, fd: int) -> None:
        """See `FilePort`."""
        os.fdatasync(fd)

    def allocate(self, fd: int, length: int) -> None:
        """See `FilePort`."""
        os.posix_fallocate(fd, 0, length)

    def bytes_free(self, fd: int) -> int:
        """See `FilePort`."""
        found = os.fstatvfs(fd)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """See `FilePort`; nothing is held."""


_Call = Callable[[int, list[memoryview], int], int]


def _move(call: _Call, pieces: Sequence[Piece]) -> list[int]:
    results = [0] * len(pieces)
    for run in _runs(pieces):
        first = pieces[run[0]]
        wanted = sum(pieces[index].view.nbytes for index in run)
        if len(run) > 1 and _try(call, first.fd, [pieces[index].view for index in run], first.offset) == wanted:
            for index in run:
                results[index] = pieces[index].view.nbytes
            continue
        for index in run:  # alone, or something is wrong with one of them: which?
            results[index] = _move_one(call, pieces[index])
    return results


def _move_one(call: _Call, piece: Piece) -> int:
    done = 0
    while done < piece.view.nbytes:
        moved = _try(call, piece.fd, [piece.view[done:]], piece.offset + done)
        if moved < 0:
            return moved
        if moved == 0:
            break
        done += moved
    return done


def _try(call: _Call, fd: int, views: list[memoryview], offset: int) -> int:
    try:
        return call(fd, views, offset)
    except OSError as error:
        return -(error.errno or errno.EIO)


def _runs(pieces: Sequence[Piece]) -> Iterator[list[int]]:
    """Indexes of pieces that lie behind each other in one file, as many as one system call may take."""
    run: list[int] = []
    end, nbytes = (-1, -1), 0
    for index in sorted(range(len(pieces)), key=lambda index: pieces[index][:2]):
        piece = pieces[index]
        is_next = (piece.fd, piece.offset) == end and nbytes + piece.view.nbytes <= _RUN_BYTES
        if run and not (is_next and len(run) < _RUN_PIECES):
            yield run
            run, nbytes = [], 0
        run.append(index)
        nbytes += piece.view.nbytes
        end = (piece.fd, piece.offset + piece.view.nbytes)
    if run:
        yield run
