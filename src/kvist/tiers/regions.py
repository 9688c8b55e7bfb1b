"""Shared memory as named regions, so that control can tell a mover in another process where bytes are.

A buffer is (region, offset, length): plain data that fits into a message. A region is anonymous memory behind a file
descriptor: private to this user, gone with the last process that holds it, whatever way that one dies.
"""

import mmap
import os
from dataclasses import dataclass
from typing import NewType

from kvist.base.errors import CapacityError
from kvist.base.units import format_bytes

RegionId = NewType("RegionId", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Bytes [offset, offset + length) of a region."""

    region: RegionId
    offset: int
    length: int


class Region:
    """A range of shared memory; filled with zeros and touched at the start, never grown.

    Attributes:
        id: its name in messages.
        size: bytes.
        fd: the descriptor behind it, for another process of the same user to map.
    """

    def __init__(self, region_id: RegionId, size: int) -> None:
        """Allocates the memory.

        Raises:
            CapacityError: it is not there.
        """
        self.id = region_id
        self.size = size
        self.fd = os.memfd_create(f"kvist-{region_id}", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, size)  # memory that is not there must be missed now, not by a SIGBUS later
            self._map = mmap.mmap(self.fd, size)
        except (OSError, ValueError, OverflowError) as error:
            os.close(self.fd)
            raise CapacityError(f"cannot allocate {format_bytes(size)} of shared memory for {region_id}") from error
        self._view = memoryview(self._map)

    def view(self, offset: int, length: int) -> memoryview:
        """A writable view of some bytes; the region lives at least as long as its views."""
        assert 0 <= offset <= offset + length <= self.size, f"[{offset}, +{length}) is outside {self.size} bytes"
        return self._view[offset : offset + length]

    def close(self) -> None:
        """Gives up the descriptor; the memory goes with the last view. May be repeated."""
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
