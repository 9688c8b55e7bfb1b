"""Files of equal length as one row of bytes, direct or not, with and without room."""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.files import EIO, ENOSPC, FailingFiles, always, only
from kvist.tiers.disk_files import Piece
from kvist.tiers.disk_segments import BUFFERED_GRANULE, SegmentLimits, Segments, Span, granule_of
from kvist.tiers.ports import Place

KIB = 2**10
LIMITS = SegmentLimits(bytes_max=160 * KIB, segment_bytes=64 * KIB, bytes_free_min=0)


class Buffered(FailingFiles):
    """Files of a file system without direct I/O."""

    def write(self, pieces: list[Piece]) -> list[int]:
        direct = [bool(fcntl.fcntl(piece.fd, fcntl.F_GETFL) & os.O_DIRECT) for piece in pieces]
        return [-errno.EINVAL] * len(pieces) if any(direct) else list(super().write(pieces))


class Coarse(FailingFiles):
    """Files of a medium whose smallest unit is 4096 bytes."""

    def write(self, pieces: list[Piece]) -> list[int]:
        if any(piece.view.nbytes % 4096 for piece in pieces):
            return [-errno.EINVAL] * len(pieces)
        return list(super().write(pieces))


@pytest.fixture(params=[FailingFiles, Coarse, Buffered])
def port(request: pytest.FixtureRequest) -> FailingFiles:
    """Files of each kind of medium."""
    return request.param()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """A descriptor of an empty directory."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def filled(length: int, seed: int, *, shift: int = 0) -> memoryview:
    """Memory full of something, at an address with some remainder."""
    view = memoryview(mmap.mmap(-1, length + shift))[shift:]
    view[:] = bytes((seed * 7 + index) % 251 for index in range(length))
    return view


def blank(length: int, *, shift: int = 0) -> memoryview:
    """The same, empty."""
    return memoryview(mmap.mmap(-1, length + shift))[shift:]


class TestBytes:
    def test_the_granule_is_that_of_the_medium(self, directory: int) -> None:
        granules = [granule_of(directory, kind()) for kind in (FailingFiles, Coarse, Buffered)]
        assert granules[0] in {512, 4096, BUFFERED_GRANULE}
        assert granules[1] in {4096, BUFFERED_GRANULE}
        assert granules[2] == BUFFERED_GRANULE
        assert os.listdir(directory) == []

    @pytest.mark.parametrize("shift", [0, 1, 512])
    @pytest.mark.parametrize("length", [1, 511, 512, 513, 4096, 4097, 10_000, 64 * KIB])
    def test_any_length_from_and_to_any_address(
        self, directory: int, port: FailingFiles, length: int, shift: int
    ) -> None:
        segments = Segments(directory, LIMITS, port)
        spans = [Span(offset, filled(length, offset, shift=shift)) for offset in (64 * KIB, 0)]
        assert [segments.ensure(span.offset) for span in spans] == [0, 0]
        assert segments.write(spans) == [0, 0]
        around = [blank(length + 64, shift=shift) for _ in spans]
        into = [Span(span.offset, view[:length]) for span, view in zip(spans, around, strict=True)]
        assert segments.read(into) == [0, 0]
        for span, view in zip(spans, around, strict=True):
            assert view[:length] == span.view
            assert bytes(view[length:]) == bytes(64)
        segments.close()

    def test_detours_take_turns_in_a_bounded_amount_of_memory(self, directory: int, port: FailingFiles) -> None:
        limits = SegmentLimits(bytes_max=32 * 1024 * KIB, segment_bytes=32 * 1024 * KIB, bytes_free_min=0)
        segments = Segments(directory, limits, port)
        assert segments.ensure(0) == 0
        length = 3 * 1024 * KIB + 1
        spans = [Span(index * 3200 * KIB, filled(length, index, shift=1)) for index in range(7)]
        port.calls.clear()
        assert segments.write(spans) == [0] * 7
        assert port.calls.count("write") == (1 if segments.granule == BUFFERED_GRANULE else 4)
        into = [Span(span.offset, blank(length, shift=1)) for span in spans]
        assert segments.read(into) == [0] * 7
        assert [each.view for each in into] == [each.view for each in spans]
        segments.close()

    def test_read_only_memory_is_written(self, directory: int, port: FailingFiles) -> None:
        segments = Segments(directory, LIMITS, port)
        segments.ensure(0)
        assert segments.write([Span(0, memoryview(b"abc" * 400))]) == [0]
        into = blank(1200)
        assert segments.read([Span(0, into)]) == [0]
        assert bytes(into) == b"abc" * 400
        segments.close()

    def test_an_error_is_of_its_span(self, directory: int, port: FailingFiles) -> None:
        segments = Segments(directory, LIMITS, port)
        segments.ensure(0)
        spans = [Span(index * 8192, filled(8192, index)) for index in range(3)]
        port.write_fault = only(1, EIO)
        assert segments.write(spans) == [0, EIO, 0]
        port.write_fault = only(1, -4096)
        assert segments.write(spans) == [0, ENOSPC, 0]
        port.read_fault = only(2, EIO)
        assert segments.read([Span(span.offset, blank(8192)) for span in spans]) == [0, 0, EIO]
        port.read_fault = only(0, -4096)
        assert segments.read([Span(span.offset, blank(8192)) for span in spans]) == [errno.ENODATA, 0, 0]
        segments.close()

    def test_what_cannot_be_synced_is_not_stored(self, directory: int) -> None:
        port = Buffered()
        segments = Segments(directory, LIMITS, port)
        segments.ensure(0)
        port.sync_code = EIO
        assert segments.write([Span(0, filled(512, 1))]) == [EIO]
        port.sync_code = 0
        assert segments.write([Span(0, filled(512, 1))]) == [0]
        segments.close()


class TestFiles:
    def test_a_file_is_made_when_it_is_needed_and_whole(self, directory: int, port: FailingFiles) -> None:
        segments = Segments(directory, LIMITS, port)
        assert (segments.bytes_allocated, os.listdir(directory)) == (0, [])
        assert [segments.ensure(offset) for offset in (128 * KIB, 159 * KIB, 0)] == [0, 0, 0]
        assert sorted(os.listdir(directory)) == ["segment-00000", "segment-00002"]
        assert segments.bytes_allocated == 64 * KIB + 32 * KIB
        assert [segments.holds(0, 64 * KIB), segments.holds(128 * KIB, 32 * KIB)] == [True, True]
        assert [segments.holds(64 * KIB, 1), segments.holds(159 * KIB, 2 * KIB)] == [False, False]
        segments.close()

    def test_a_place_is_within_one_file(self) -> None:
        allowed = [(0, 4096), (0, 64 * KIB), (60 * KIB, 4 * KIB), (128 * KIB, 32 * KIB)]
        refused = [(-4096, 4096), (0, 0), (60 * KIB, 8 * KIB), (128 * KIB, 36 * KIB), (160 * KIB, 4096), (0, 160 * KIB)]
        assert all(LIMITS.allow(Place(offset=offset, length=length)) for offset, length in allowed)
        assert not any(LIMITS.allow(Place(offset=offset, length=length)) for offset, length in refused)

    def test_no_file_is_made_below_the_floor(self, directory: int) -> None:
        port = FailingFiles()
        limits = SegmentLimits(bytes_max=160 * KIB, segment_bytes=64 * KIB, bytes_free_min=1000 * KIB)
        segments = Segments(directory, limits, port)
        port.free = 1064 * KIB - 1
        assert segments.ensure(0) == ENOSPC
        assert (segments.bytes_allocated, os.listdir(directory)) == (0, [])
        port.free += 1
        assert segments.ensure(0) == 0
        segments.close()

    def test_a_file_that_cannot_be_made_takes_nothing_and_is_tried_again(self, directory: int) -> None:
        port = FailingFiles()
        segments = Segments(directory, LIMITS, port)
        port.allocate_code = ENOSPC
        assert segments.ensure(0) == ENOSPC
        assert segments.bytes_allocated == 0
        port.allocate_code = 0
        assert segments.ensure(0) == 0
        assert segments.holds(0, 64 * KIB)
        segments.close()

    def test_what_is_there_is_taken_over_and_cut_to_new_limits(self, directory: int, tmp_path: Path) -> None:
        first = Segments(directory, LIMITS, FailingFiles())
        assert [first.ensure(offset) for offset in (0, 64 * KIB, 128 * KIB)] == [0, 0, 0]
        first.write([Span(0, filled(4096, 3))])
        first.close()
        smaller = SegmentLimits(bytes_max=100 * KIB, segment_bytes=64 * KIB, bytes_free_min=0)
        second = Segments(directory, smaller, FailingFiles())
        assert {each.name: each.stat().st_size for each in tmp_path.iterdir()} == {
            "segment-00000": 64 * KIB,
            "segment-00001": 36 * KIB,
        }
        assert second.bytes_allocated == 100 * KIB
        into = blank(4096)
        assert second.read([Span(0, into)]) == [0]
        assert into == filled(4096, 3)
        second.close()
        third = Segments(directory, LIMITS, FailingFiles())
        assert not third.holds(64 * KIB, 64 * KIB)
        assert third.ensure(64 * KIB) == 0
        assert third.holds(64 * KIB, 64 * KIB)
        third.close()

    def test_a_medium_on_which_nothing_works_is_told(self, directory: int) -> None:
        port = FailingFiles()
        port.write_fault = always(EIO)
        with pytest.raises(OSError, match="Input/output error"):
            Segments(directory, LIMITS, port)
        assert os.listdir(directory) == []
