"""Files that fail as a test says, over files that do not."""

import errno
from collections.abc import Callable, Sequence
from threading import Event

from kvist.tiers.disk_files import FilePort, Piece, PlainFiles


class FailingFiles:
    """A port whose next calls fail; until it is told to, it does what the one below does.

    Attributes:
        read_fault, write_fault: given the index of a piece and the piece, an error number, a number of bytes after
            which it is torn, negated, or None. Counts pieces from the moment it is set.
        allocate_code: error number of the next allocations; 0: none.
        free: bytes that the file system says it has left; None: as it is.
        gate: calls wait for it before they move anything.
        calls: "read" and "write", in order.
    """

    name = "failing"

    def __init__(self, below: FilePort | None = None) -> None:
        self.below = below or PlainFiles()
        self.read_fault: Callable[[int, Piece], int | None] | None = None
        self.write_fault: Callable[[int, Piece], int | None] | None = None
        self.allocate_code = self.sync_code = 0
        self.free: int | None = None
        self.gate: Event | None = None
        self.entered = Event()
        self.calls: list[str] = []

    def read(self, pieces: Sequence[Piece]) -> Sequence[int]:
        return self._move("read", self.below.read, self.read_fault, pieces)

    def write(self, pieces: Sequence[Piece]) -> Sequence[int]:
        return self._move("write", self.below.write, self.write_fault, pieces)

    def sync(self, fd: int) -> None:
        if self.sync_code:
            raise OSError(self.sync_code, "as told")
        self.calls.append("sync")
        self.below.sync(fd)

    def allocate(self, fd: int, length: int) -> None:
        if self.allocate_code:
            raise OSError(self.allocate_code, "as told")
        self.below.allocate(fd, length)

    def bytes_free(self, fd: int) -> int:
        return self.below.bytes_free(fd) if self.free is None else self.free

    def close(self) -> None:
        self.calls.append("close")
        self.below.close()

    def _move(
        self,
        verb: str,
        call: Callable[[Sequence[Piece]], Sequence[int]],
        fault: Callable[[int, Piece], int | None] | None,
        pieces: Sequence[Piece],
    ) -> Sequence[int]:
        self.calls.append(verb)
        gate = self.gate  # whoever waits for `entered` may take it away for the calls after this one
        self.entered.set()
        if gate is not None:
            assert gate.wait(60), "nobody opened the gate"
        found = [fault(index, piece) if fault else None for index, piece in enumerate(pieces)]
        parts = [self._part(piece, code) for piece, code in zip(pieces, found, strict=True)]
        moved = iter(call([part for part in parts if part is not None]))
        results = [next(moved) if part is not None else 0 for part in parts]
        return [-code if code and code > 0 else result for code, result in zip(found, results, strict=True)]

    @staticmethod
    def _part(piece: Piece, code: int | None) -> Piece | None:
        """What of a piece is moved before it fails: all, its first bytes, or nothing."""
        if code is None:
            return piece
        return None if code >= 0 else Piece(piece.fd, piece.offset, piece.view[:-code])


def always(code: int) -> Callable[[int, Piece], int]:
    """The fault of every piece."""
    return lambda index, piece: code


def only(index: int, code: int) -> Callable[[int, Piece], int | None]:
    """The fault of one piece of each call."""
    return lambda each, piece: code if each == index else None


EIO, ENOSPC, EDQUOT, EROFS = errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS
