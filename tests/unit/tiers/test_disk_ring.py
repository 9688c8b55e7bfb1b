"""The parts of io_uring that the contract of the port does not show."""

import errno
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvist.tiers.disk_files import Piece
from kvist.tiers.disk_ring import RingFiles


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A file of 64 KiB."""
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(found, bytes(range(256)) * 256)
    yield found
    os.close(found)


def open_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_ring_goes_round_many_times(fd: int) -> None:
    files = RingFiles(depth=4)
    for turn in range(300):
        into = memory(256)
        assert list(files.read([Piece(fd, turn % 200 * 256, into)])) == [256]
        assert bytes(into) == bytes(range(256))
    files.close()


def test_closing_gives_everything_back(fd: int) -> None:
    before = open_descriptors()
    files = RingFiles()
    assert open_descriptors() > before
    files.read([Piece(fd, 0, memory(256))])
    files.close()
    files.close()
    assert open_descriptors() == before


def test_a_ring_that_is_in_use_closes_when_it_has_ended() -> None:
    before = open_descriptors()
    reading, writing = os.pipe()
    files, into = RingFiles(), memory(16)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(files.read([Piece(reading, 0, into)])))
    thread.start()
    while files._idle:  # until the thread has taken the ring
        pass
    files.close()
    os.write(writing, b"x" * 16)
    thread.join()
    os.close(reading)
    os.close(writing)
    assert found == [16]
    assert bytes(into) == b"x" * 16
    assert open_descriptors() == before


def test_memory_is_not_given_up_while_a_signal_is_raised(fd: int) -> None:
    """A signal that raises finds the call waiting; it must wait until the move has ended, and only then raise."""

    class Rung(Exception):  # noqa: N818  it is no error
        """The signal's handler raises it."""

    def ring(number: int, frame: object) -> None:
        os.write(writing, b"y" * 16)  # the move ends, so that the call can
        raise Rung

    reading, writing = os.pipe()
    before = signal.signal(signal.SIGALRM, ring)
    files, into = RingFiles(), memory(16)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Rung):
            files.read([Piece(reading, 0, into)])
        assert bytes(into) == b"y" * 16
        again = memory(256)
        assert list(files.read([Piece(fd, 0, again)])) == [256]
    finally:
        signal.signal(signal.SIGALRM, before)
        files.close()
        os.close(reading)
        os.close(writing)


def test_memory_is_not_given_up_while_the_system_call_fails_again_and_again(fd: int) -> None:
    """The ring's descriptor becomes another file's while two moves are under way, so that no further call works."""
    reading, writing = os.pipe()
    files, returned = RingFiles(depth=4), threading.Event()
    ring, before = files._idle[0], signal.signal(signal.SIGALRM, lambda number, frame: None)
    parts, early = [memory(16), memory(16)], []

    def break_the_ring() -> None:
        while files._idle or ring._submit[ring._taken_at] != 2:  # until the kernel has both
            pass
        os.dup2(fd, ring.fd)
        while not early:  # the signal ends the wait, and what is then called fails; until the first has landed
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            early.append(returned.wait(0.2))
        os.write(writing, b"y" * 16)
        os.write(writing, b"y" * 16)

    thread = threading.Thread(target=break_the_ring)
    try:
        thread.start()
        found = list(files.read([Piece(reading, 0, part) for part in parts]))
        returned.set()
        thread.join()
        assert early == [False], "the memory was given up while the kernel still had it"
        assert [bytes(part) for part in parts] == [b"y" * 16] * 2
        assert found == [-errno.EOPNOTSUPP] * 2
        again = memory(256)
        assert list(files.read([Piece(fd, 0, again)])) == [256], "the broken ring was used again"
        assert bytes(again) == bytes(range(256))
    finally:
        signal.signal(signal.SIGALRM, before)
        files.close()
        os.close(reading)
        os.close(writing)


def test_a_ring_that_takes_nothing_moves_nothing_and_is_not_used_again(fd: int) -> None:
    files = RingFiles(depth=4)
    os.dup2(fd, files._idle[0].fd)
    parts = [memory(256) for _ in range(9)]
    assert list(files.read([Piece(fd, 0, part) for part in parts])) == [-errno.EOPNOTSUPP] * 9
    assert {bytes(part) for part in parts} == {bytes(256)}
    assert list(files.read([Piece(fd, 0, part) for part in parts])) == [256] * 9
    files.close()


def test_memory_that_cannot_be_written_is_refused_before_anything_moves(fd: int) -> None:
    files = RingFiles()
    good = memory(256)
    with pytest.raises(TypeError):
        files.read([Piece(fd, 0, good), Piece(fd, 0, memoryview(b"x" * 256))])
    assert bytes(good) == bytes(256)
    assert list(files.read([Piece(fd, 0, good)])) == [256]
    files.close()


def test_a_system_that_has_no_room_for_a_ring_says_so() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        RingFiles(depth=2**20)


def memory(length: int) -> memoryview:
    """Zeros."""
    return memoryview(mmap.mmap(-1, length))
