"""Memory touched ahead of its use: all there, all zero, cut without overlap, and given back."""

import mmap
from pathlib import Path

import pytest

from kvist.base.units import Bytes
from kvist.engine.backends.host_memory import TouchedMemory, huge_memory

MIB = 2**20


def resident_bytes() -> int:
    """Bytes of this process that are in memory and of no file."""
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def test_all_of_it_is_in_memory_after_waiting_and_gone_after_giving_it_back() -> None:
    before = resident_bytes()
    memory = TouchedMemory(Bytes(96 * MIB))
    memory.wait()
    assert memory.nbytes >= 96 * MIB
    assert resident_bytes() - before >= 90 * MIB
    memory.give_back()
    assert resident_bytes() - before <= 40 * MIB
    assert memory.nbytes == 0
    assert memory.take(1) is None


def test_giving_back_stops_what_is_still_being_touched() -> None:
    memory = TouchedMemory(Bytes(512 * MIB))
    memory.give_back()
    assert not memory._thread.is_alive()


def test_parts_are_zero_apart_aligned_and_as_long_as_was_asked() -> None:
    memory = TouchedMemory(Bytes(MIB))
    sizes = (1, 5000, 4096, MIB // 2)
    parts = [memory.take(size) for size in sizes]
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True), start=1):
        assert part is not None
        assert part.nbytes == size
        assert not any(part)
        part[:] = bytes([number]) * size
    assert [set(part) for part in parts if part is not None] == [{1}, {2}, {3}, {4}]


def test_as_much_can_be_taken_as_was_asked_for_and_no_more() -> None:
    memory = TouchedMemory(Bytes(MIB))
    assert memory.take(2 * MIB) is None
    assert memory.take(MIB) is not None
    assert memory.take(MIB) is None


def test_it_lives_as_long_as_what_was_taken_of_it() -> None:
    part = TouchedMemory(Bytes(MIB)).take(MIB)
    assert part is not None
    part[-1:] = b"x"
    assert part[-1] == ord("x")


def test_memory_in_large_pages_is_private_and_zero() -> None:
    memory = huge_memory(mmap.PAGESIZE)
    assert bytes(memory) == bytes(mmap.PAGESIZE)


def test_more_than_can_be_counted_is_an_error_of_the_systems_at_once() -> None:
    with pytest.raises((OSError, OverflowError)):
        TouchedMemory(Bytes(2**70))
