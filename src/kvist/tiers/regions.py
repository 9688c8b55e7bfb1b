"""Shared memory as named regions, so that control can tell a mover in another process where bytes are.

A buffer is (region, offset, length): plain data that fits into a message. A region is anonymous memory behind a file
descriptor: private to this user, gone with the last process that holds it, whatever way that one dies.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NewType

from kvist.base.errors import CapacityError
from kvist.base.units import format_bytes

RegionId = NewType("RegionId", str)

Pin = Callable[[memoryview], Callable[[], None]]
"""Tells a device of memory that stays where it is, so that it copies to and from it directly; returns what undoes it.

Raises a `kvist.base.errors.CapacityError` where the device does not take it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes [offset, offset + length) of a region."""

    region: RegionId
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHandle:
    """How another process of the same user and machine finds a region: by the descriptor of one that holds it.

    Attributes:
        region: its name in messages.
        size: bytes.
        pid, fd: who holds it, and as what.
        inode: of the memory behind it, so that a process that came to the same number is not mistaken for it.
    """

    region: RegionId
    size: int
    pid: int
    fd: int
    inode: int


class Region:
    """A range of shared memory; filled with zeros and touched at the start, never grown.

    Attributes:
        id: its name in messages.
        size: bytes.
        fd: the descriptor behind it, for another process of the same user to map; negative once it is closed.
    """

    def __init__(self, region_id: RegionId, size: int, *, pin: Pin | None = None) -> None:
        """Allocates the memory.

        Args:
            region_id: its name in messages.
            size: bytes.
            pin: how a device is told of it, where there is one.

        Raises:
            CapacityError: it is not there, or the device does not take it.
        """
        self.id = region_id
        self.size = size
        self._unpin: Callable[[], None] | None = None
        with ExitStack() as undo:
            try:
                self.fd = os.memfd_create(f"kvist-{region_id}", os.MFD_CLOEXEC)
                undo.callback(self.close)
                self._map = _map(self.fd, size)
            except (OSError, ValueError, OverflowError) as error:
                raise CapacityError(f"cannot allocate {format_bytes(size)} of shared memory for {region_id}") from error
            self._view = memoryview(self._map)
            if pin is not None:
                self._unpin = pin(self._view)
            undo.pop_all()

    def view(self, offset: int, length: int) -> memoryview:
        """A writable view of some bytes; the region lives at least as long as its views."""
        assert 0 <= offset <= offset + length <= self.size, f"[{offset}, +{length}) is outside {self.size} bytes"
        return self._view[offset : offset + length]

    def close(self) -> None:
        """Gives up device and descriptor; the memory goes with the last view. May be repeated."""
        unpin, self._unpin = self._unpin, None
        if unpin is not None:
            unpin()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Regions:
    """The regions that one process can see, by name."""

    def __init__(self) -> None:
        self._regions: dict[RegionId, Region] = {}

    def add(self, region: Region) -> Region:
        """Makes a region known under its name, which must be new; returns it."""
        assert region.id not in self._regions, f"there are two regions called {region.id}"
        self._regions[region.id] = region
        return region

    def view(self, buffer: Buffer) -> memoryview:
        """The bytes of a buffer."""
        return self._regions[buffer.region].view(buffer.offset, buffer.length)

    def close(self) -> None:
        """Closes all of them."""
        for region in self._regions.values():
            region.close()


def copy_bytes(into: memoryview, source: memoryview) -> None:
    """Copies bytes from one place to another of the same length, and lets other threads run meanwhile.

    Assigning to a slice keeps the interpreter's lock: an engine's thread that has 15 microseconds of work then waits
    for 320 in one of a thousand steps while 368 KB records are copied, instead of 55. Only bytes that may not be
    written are copied that way.
    """
    size = into.nbytes
    assert source.nbytes == size, f"{source.nbytes} bytes do not fit into {size}"
    if source.readonly or size == 0:
        into[:] = source
        return
    # Both stay where they are: memory that somebody views is neither moved nor unmapped.
    to, origin = ctypes.c_char.from_buffer(into), ctypes.c_char.from_buffer(source)
    ctypes.memmove(ctypes.byref(to), ctypes.byref(origin), size)


def _map(fd: int, size: int) -> mmap.mmap:
    """Maps so many bytes that are there: what is missing must be missed now, not by a signal later.

    The system would give more than it has, and end a process when that shows; so the bound is what the machine has. All
    of it is mapped at once, because the first copy into memory that is not runs at a tenth of the speed.

    Raises:
        OSError, ValueError, OverflowError: they are not there.
    """
    bytes_machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > bytes_machine:
        raise ValueError(f"the machine has {format_bytes(bytes_machine)}")
    os.posix_fallocate(fd, 0, size)
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
