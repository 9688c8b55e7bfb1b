"""What the disk tier relies on from every `FilePort`: PlainFiles, RingFiles, and FailingFiles while nothing fails."""

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fakes.files import FailingFiles
from kvist.tiers.disk_files import FilePort, Piece, PlainFiles
from kvist.tiers.disk_ring import RingFiles

MAKERS: dict[str, Callable[[], FilePort]] = {
    "plain": PlainFiles,
    "ring": RingFiles,
    "shallow ring": lambda: RingFiles(depth=2),
    "failing": FailingFiles,
}
KIB = 2**10
NO_FD = 2**20
"""A descriptor that nobody has."""


@pytest.fixture(params=MAKERS)
def port(request: pytest.FixtureRequest) -> Iterator[FilePort]:
    """Each kind of port."""
    made = MAKERS[request.param]()
    yield made
    made.close()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    """A file of 1 MiB of zeros."""
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(found, 1024 * KIB)
    yield found
    os.close(found)


def memory(length: int, *, seed: int | None = None) -> memoryview:
    """Memory that direct I/O would accept, empty or full of something."""
    found = memoryview(mmap.mmap(-1, length))
    if seed is not None:
        found[:] = bytes((seed + index) % 251 for index in range(length))
    return found


class TestMoves:
    def test_nothing_moves_nothing(self, port: FilePort) -> None:
        assert list(port.read([])) == list(port.write([])) == []

    @pytest.mark.parametrize("count", [1, 2, 3, 70])
    def test_what_is_written_is_read_in_whatever_order(self, port: FilePort, fd: int, count: int) -> None:
        views = [memory(4 * KIB, seed=index) for index in range(count)]
        order = [index * 37 % count if count % 37 else index for index in range(count)]
        written = port.write([Piece(fd, place * 4 * KIB, view) for place, view in zip(order, views, strict=True)])
        assert list(written) == [4 * KIB] * count
        into = [memory(4 * KIB) for _ in range(count)]
        assert (
            list(port.read([Piece(fd, place * 4 * KIB, view) for place, view in enumerate(into)])) == [4 * KIB] * count
        )
        for place, view in zip(order, views, strict=True):
            assert into[place] == view

    def test_pieces_of_many_lengths_and_with_gaps(self, port: FilePort, fd: int) -> None:
        lengths, offset, pieces = (1, 512, 4096, 5, 200 * KIB, 64 * KIB), 7, []
        for seed, length in enumerate(lengths):
            pieces.append(Piece(fd, offset, memory(length, seed=seed)))
            offset += length + (seed % 2) * 100
        assert list(port.write(pieces)) == list(lengths)
        into = [Piece(fd, piece.offset, memory(piece.view.nbytes)) for piece in reversed(pieces)]
        assert list(port.read(into)) == list(reversed(lengths))
        assert [each.view for each in reversed(into)] == [each.view for each in pieces]

    def test_a_file_that_ends_is_told_by_fewer_bytes(self, port: FilePort, fd: int) -> None:
        end = 1024 * KIB
        reads = [Piece(fd, end - 8192, memory(4096)), Piece(fd, end - 4096, memory(8192)), Piece(fd, end, memory(512))]
        assert list(port.read(reads)) == [4096, 4096, 0]

    def test_an_error_is_of_its_piece_alone(self, port: FilePort, fd: int) -> None:
        whole = [Piece(fd, 0, memory(512, seed=1)), Piece(fd, 512, memory(512, seed=2))]
        assert list(port.write([whole[0], Piece(NO_FD, 0, memory(512)), whole[1]])) == [512, -errno.EBADF, 512]
        into = [Piece(fd, 0, memory(512)), Piece(NO_FD, 0, memory(512)), Piece(fd, 512, memory(512))]
        assert list(port.read(into)) == [512, -errno.EBADF, 512]
        assert [into[0].view, into[2].view] == [each.view for each in whole]

    def test_threads_do_not_meet(self, port: FilePort, fd: int) -> None:
        def use(thread: int) -> bool:
            place = thread * 128 * KIB
            for turn in range(20):
                views = [memory(4 * KIB, seed=thread + turn + index) for index in range(8)]
                port.write([Piece(fd, place + index * 4 * KIB, view) for index, view in enumerate(views)])
                into = [memory(4 * KIB) for _ in views]
                port.read([Piece(fd, place + index * 4 * KIB, view) for index, view in enumerate(into)])
                if into != views:
                    return False
            return True

        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(use, range(6))) == [True] * 6


class TestRoom:
    def test_allocated_bytes_are_there_and_what_was_written_stays(self, port: FilePort, tmp_path: Path) -> None:
        fd = os.open(tmp_path / "fresh", os.O_RDWR | os.O_CREAT, 0o600)
        port.allocate(fd, 64 * KIB)
        assert os.fstat(fd).st_size == 64 * KIB <= os.fstat(fd).st_blocks * 512
        port.write([Piece(fd, 0, memory(512, seed=3))])
        port.allocate(fd, 128 * KIB)
        port.sync(fd)
        into = memory(512)
        port.read([Piece(fd, 0, into)])
        assert into == memory(512, seed=3)
        assert port.bytes_free(fd) > 0
        os.close(fd)

    def test_what_cannot_be_done_raises(self, port: FilePort) -> None:
        for call in (lambda: port.sync(NO_FD), lambda: port.allocate(NO_FD, 1), lambda: port.bytes_free(NO_FD)):
            with pytest.raises(OSError, match="descriptor"):
                call()
