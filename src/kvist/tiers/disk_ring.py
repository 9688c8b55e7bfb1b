"""Files through io_uring: one system call starts many moves and waits for them, without a thread for each.

Why not threads: whoever returns from a system call must get the interpreter's lock back, which takes up to 5 ms while
another thread computes. Eight threads with a call per record pay that per record, a ring pays it once per batch: 1.1
instead of 0.6 GB/s beside a computing thread, at half the processor time and equal speed when idle (`bench/micro`).

The interface to the kernel is three numbers and three structures, which have not changed since Linux 5.6; so it is
written down here. Where the kernel or a sandbox refuses (`OSError` from the constructor), use `PlainFiles`.

    we  -> submission entries, tail   -- io_uring_enter -->  kernel
    we  <- completion entries, head   <-- io_uring_enter --  kernel

No memory barriers are needed: the kernel reads our tail, and we read its entries, on either side of a system call.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final

from kvist.tiers.disk_files import Piece, PlainFiles

_SETUP: Final = 425
_ENTER: Final = 426
_GET_EVENTS: Final = 1
_READ: Final = 22
_WRITE: Final = 23
_SUBMISSIONS_AT: Final = 0
_COMPLETIONS_AT: Final = 0x8000000
_ENTRIES_AT: Final = 0x10000000

# entries: submission, completion | flags, thread, idle, features, workqueue, reserved | offsets: submission, completion
_PARAMS = struct.Struct("<2I 8I 8IQ 8IQ")
# operation, flags, priority, descriptor, offset, address, length, flags, our number | unused
_ENTRY = struct.Struct("<BBHiQQIIQ24x")
# our number, result, flags
_RESULT = struct.Struct("<QiI")
_WRAP = 0xFFFFFFFF

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def _call(number: int, *arguments: int) -> int:
    found = _syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(found)


class _Ring:
    """One ring; used by one thread at a time."""

    def __init__(self, depth: int) -> None:
        params = ctypes.create_string_buffer(_PARAMS.size)
        self.fd = _call(_SETUP, depth, ctypes.addressof(params))
        found = _PARAMS.unpack(params.raw)
        self.depth, completions = found[0], found[1]
        ours, theirs = found[10:18], found[19:27]
        try:
            submit = mmap.mmap(self.fd, ours[6] + 4 * self.depth, offset=_SUBMISSIONS_AT)
            self._results = mmap.mmap(self.fd, theirs[5] + _RESULT.size * completions, offset=_COMPLETIONS_AT)
            self._entries = mmap.mmap(self.fd, _ENTRY.size * self.depth, offset=_ENTRIES_AT)
        except OSError:
            os.close(self.fd)
            raise
        self._maps = (submit, self._results, self._entries)
        self._submit, self._complete = memoryview(submit).cast("I"), memoryview(self._results).cast("I")
        self._taken_at, self._tail_at = ours[0] // 4, ours[1] // 4
        self._head_at, self._end_at = theirs[0] // 4, theirs[1] // 4
        self._results_at, self._mask = theirs[5], completions - 1
        for index in range(self.depth):  # entries are used in turn, so the list of which to take never changes
            self._submit[ours[6] // 4 + index] = index

    def move(self, operation: int, pieces: Sequence[Piece]) -> list[int]:
        """Moves all pieces, at most `depth` of them at once. When this returns, or raises, none is under way.

        Raises:
            OSError: the kernel did not take them; the ring must not be used again.
        """
        results = [0] * len(pieces)
        held = [ctypes.c_char.from_buffer(piece.view) for piece in pieces]  # nobody gives up memory under I/O
        begun = ended = 0
        try:
            while ended < len(pieces):
                end = min(len(pieces), ended + self.depth)
                self._prepare(operation, pieces[begun:end], held[begun:end], begun)
                begun = end
                self._enter(len(pieces) - ended if end == len(pieces) else self.depth // 2)
                ended += self._take(results)
        finally:
            if ended < begun:  # something was raised here: the memory is not ours until all have ended
                self._drain(begun - ended - self._withdraw(), results)
        return results

    def _withdraw(self) -> int:
        """Takes back what the kernel has not taken yet; how many that were. It looks only while we are inside."""
        tail, taken = self._submit[self._tail_at], self._submit[self._taken_at]
        self._submit[self._tail_at] = taken
        withdrawn: int = (tail - taken) & _WRAP
        return withdrawn

    def _drain(self, under_way: int, results: list[int]) -> None:
        """Waits for moves, however often the system call fails: they end without it, only less promptly."""
        while under_way:
            with contextlib.suppress(OSError):
                self._enter(under_way)
            os.sched_yield()  # any call into the kernel lets it finish what this thread began
            under_way -= self._take(results)

    def _prepare(self, operation: int, pieces: Sequence[Piece], held: Sequence[ctypes.c_char], number: int) -> None:
        tail = self._submit[self._tail_at]
        for index, (piece, start) in enumerate(zip(pieces, held, strict=True)):
            place = ((tail + index) & (self.depth - 1)) * _ENTRY.size
            memory = ctypes.addressof(start), piece.view.nbytes
            _ENTRY.pack_into(self._entries, place, operation, 0, 0, piece.fd, piece.offset, *memory, 0, number + index)
        self._submit[self._tail_at] = (tail + len(pieces)) & _WRAP

    def _enter(self, wanted: int) -> None:
        """Hands over what is prepared, and waits until so many moves have ended or a signal comes."""
        while True:
            fresh = (self._submit[self._tail_at] - self._submit[self._taken_at]) & _WRAP
            try:
                _call(_ENTER, self.fd, fresh, wanted, _GET_EVENTS, 0, 0)
            except OSError as error:
                if error.errno not in {errno.EINTR, errno.EAGAIN, errno.EBUSY}:
                    raise
            if self._submit[self._tail_at] == self._submit[self._taken_at]:
                return

    def _take(self, results: list[int]) -> int:
        head, end = self._complete[self._head_at], self._complete[self._end_at]
        taken: int = (end - head) & _WRAP
        for index in range(taken):
            place = self._results_at + ((head + index) & self._mask) * _RESULT.size
            number, result, _ = _RESULT.unpack_from(self._results, place)
            results[number] = result
        self._complete[self._head_at] = end
        return taken

    def close(self) -> None:
        """Gives it back to the kernel, which needs every map of it to be gone."""
        self._submit.release()
        self._complete.release()
        for each in self._maps:
            each.close()
        os.close(self.fd)


class RingFiles(PlainFiles):
    """Many moves at once, and one system call for all of them."""

    name = "io_uring"

    def __init__(self, *, depth: int = 32) -> None:
        """Tries whether the kernel offers it.

        Args:
            depth: moves at once per calling thread; a power of two.

        Raises:
            OSError: it is forbidden or unknown here.
        """
        self._depth = depth
        self._is_closed = False
        self._idle = [_Ring(depth)]

    def read(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """See `kvist.tiers.disk_files.FilePort`."""
        return self._move(_READ, pieces)

    def write(self, pieces: Sequence[Piece]) -> Sequence[int]:
        """See `kvist.tiers.disk_files.FilePort`."""
        return self._move(_WRITE, pieces)

    def close(self) -> None:
        """Closes the rings; one in use closes when it has ended."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _move(self, operation: int, pieces: Sequence[Piece]) -> list[int]:
        try:
            ring = self._idle.pop()
        except IndexError:  # as many rings as threads have ever been here at once
            try:
                ring = _Ring(self._depth)
            except OSError as error:
                return [-(error.errno or errno.EIO)] * len(pieces)
        is_sound = False
        try:
            results = ring.move(operation, pieces)
            self._complete(ring, operation, pieces, results)
            is_sound = True
        except OSError as error:  # of the ring: what is wrong with a piece is its result
            return [-(error.errno or errno.EIO)] * len(pieces)
        finally:
            if is_sound:
                self._idle.append(ring)
            else:
                ring.close()
            if self._is_closed:
                self.close()
        return results

    def _complete(self, ring: _Ring, operation: int, pieces: Sequence[Piece], results: list[int]) -> None:
        """Moves the rest of pieces that were moved in part, until all is moved or nothing moves."""
        while True:
            parts = [i for i, piece in enumerate(pieces) if 0 < results[i] < piece.view.nbytes]
            rests = [Piece(pieces[i].fd, pieces[i].offset + results[i], pieces[i].view[results[i] :]) for i in parts]
            moved = [max(0, each) for each in ring.move(operation, rests)] if rests else []
            for index, more in zip(parts, moved, strict=True):
                results[index] += more
            if not any(moved):
                return
