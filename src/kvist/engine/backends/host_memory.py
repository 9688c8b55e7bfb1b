"""Memory of the host for KV: in large pages, and touched ahead of its use where there is time for that.

Imports nothing that computes, so that touching can begin before torch is imported.
"""

import contextlib
import ctypes
import mmap
import threading

from kvist.base.units import Bytes

_PIECE_BYTES = 16 * 2**20
"""Touched at once: short enough to stop between two, and to let others map memory in between."""

_ALIGNMENT_BYTES = 4096
"""Tensors begin at multiples of this."""

_ROUNDING_BYTES = 2**16
"""For as many tensors as a model may have KV groups, twice."""


def huge_memory(size: int) -> mmap.mmap:
    """Private memory in pages as large as the system will give: blocks are scattered, and each page has to be found.

    Raises:
        OSError, OverflowError: there is not so much of it.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without such pages gives others
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class TouchedMemory:
    """Memory that a thread of its own touches, and that is then cut into tensors; all of it is zero.

    One thread uses it. After `give_back` there is nothing left to take.
    """

    def __init__(self, size: Bytes) -> None:
        """Reserves memory and begins to touch it.

        Raises:
            OSError, OverflowError: the system reserves no such amount.
        """
        self._memory: mmap.mmap | None = huge_memory(size + _ROUNDING_BYTES)
        self._used = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._touch, args=(self._memory,), name="kvist-kv-memory", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> Bytes:
        """Bytes reserved."""
        return Bytes(0 if self._memory is None else len(self._memory))

    def wait(self) -> None:
        """Returns when all of it has been touched."""
        self._thread.join()

    def take(self, size: int) -> memoryview | None:
        """The next bytes, when all have been touched; None where so many are not left."""
        self.wait()
        begin = -(-self._used // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if self._memory is None or begin + size > len(self._memory):
            return None
        self._used = begin + size
        return memoryview(self._memory)[begin : self._used]

    def give_back(self) -> None:
        """Stops touching, and lets the system have what nothing was taken of."""
        self._stopped.set()
        self.wait()
        self._memory = None

    def _touch(self, memory: mmap.mmap) -> None:
        # Through ctypes, because that releases the interpreter's lock.
        whole = (ctypes.c_char * len(memory)).from_buffer(memory)
        for begin in range(0, len(memory), _PIECE_BYTES):
            if self._stopped.is_set():
                return
            ctypes.memset(ctypes.addressof(whole) + begin, 0, min(_PIECE_BYTES, len(memory) - begin))
