"""Shared memory as named regions, so that control can tell a mover in another process where bytes are.

A buffer is (region, offset, length): plain data that fits into a message. A region is anonymous memory behind a file
descriptor: private to this user, gone with the last process that holds it, whatever way that one dies.
"""

import ctypes
import mmap
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NewType

from kvist.base.errors import CapacityError, ConfigError
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
            self._expose(pin)
            undo.pop_all()

    @staticmethod
    def attached(handle: RegionHandle, *, writable: bool, pin: Pin | None = None) -> "Region":
        """Maps a region of another process of this user; or of this one, again.

        The memory stays when its first holder ends, until this one does too.

        Args:
            handle: what the holder says of it.
            writable: whether bytes may be written through this one's views.
            pin: how a device is told of it, where there is one.

        Raises:
            ConfigError: the process, its descriptor, or what is behind it is not what the handle says.
            CapacityError: it cannot be mapped, or the device does not take it.
        """
        return _Attached(handle, writable=writable, pin=pin)

    def handle(self) -> RegionHandle:
        """How another process finds it; of use while this one lives and has not closed it."""
        assert self.fd >= 0, f"{self.id} is closed"
        inode = os.fstat(self.fd).st_ino
        return RegionHandle(region=self.id, size=self.size, pid=os.getpid(), fd=self.fd, inode=inode)

    def view(self, offset: int, length: int) -> memoryview:
        """A view of some bytes, writable unless it was attached otherwise; the memory lives as long as its views."""
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

    def _expose(self, pin: Pin | None) -> None:
        self._view = memoryview(self._map)
        if pin is not None:
            self._unpin = pin(self._view)


class _Attached(Region):
    """One that another process allocated."""

    def __init__(self, handle: RegionHandle, *, writable: bool, pin: Pin | None) -> None:
        self.id = handle.region
        self.size = handle.size
        self._unpin = None
        with ExitStack() as undo:
            self.fd = _opened(handle, os.O_RDWR if writable else os.O_RDONLY)
            undo.callback(self.close)
            _check_same(handle, os.fstat(self.fd))
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            try:
                self._map = mmap.mmap(self.fd, handle.size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=prot)
            except (OSError, ValueError, OverflowError) as error:
                raise CapacityError(f"cannot map {_named(handle)}: {error}") from error
            self._expose(pin)
            undo.pop_all()


class Regions:
    """The regions that one process can see, by name."""

    def __init__(self) -> None:
        self._regions: dict[RegionId, Region] = {}

    def __contains__(self, region_id: RegionId) -> bool:
        return region_id in self._regions

    def add(self, region: Region) -> Region:
        """Makes a region known under its name, which must be new; returns it."""
        assert region.id not in self._regions, f"there are two regions called {region.id}"
        self._regions[region.id] = region
        return region

    def view(self, buffer: Buffer) -> memoryview:
        """The bytes of a buffer."""
        return self._regions[buffer.region].view(buffer.offset, buffer.length)

    def handles(self) -> tuple[RegionHandle, ...]:
        """How another process finds each of them."""
        return tuple(region.handle() for region in self._regions.values())

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


def _named(handle: RegionHandle) -> str:
    return f"{format_bytes(handle.size)} of shared memory called {handle.region} of process {handle.pid}"


def _opened(handle: RegionHandle, flags: int) -> int:
    """A descriptor of our own for what another process holds.

    Raises:
        ConfigError: there is none to be had.
    """
    try:
        return os.open(f"/proc/{handle.pid:d}/fd/{handle.fd:d}", flags | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot open {_named(handle)}: {error}; both processes must run on one machine, as one user, and see each "
            "other's /proc"
        ) from error


def _check_same(handle: RegionHandle, found: os.stat_result) -> None:
    """Proves that what was opened is the region, whole.

    Raises:
        ConfigError: it is something else, or somebody else's.
    """
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{_named(handle)} belongs to user {found.st_uid}, and this one is {os.geteuid()}")
    if found.st_ino != handle.inode or not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"descriptor {handle.fd} is not {_named(handle)} any more; start both processes again")
    if found.st_size != handle.size:
        raise ConfigError(f"{_named(handle)} has {found.st_size} bytes; start both processes again")


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
