"""Shared memory: bounds, other processes, devices that must be told, and copies that stop nobody."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvist.base.errors import CapacityError, ConfigError
from kvist.tiers.regions import Buffer, Region, RegionHandle, RegionId, Regions, copy_bytes

A, B = RegionId("a"), RegionId("b")


def descriptors() -> set[str]:
    """What this process has open, each with what it is."""
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{number.name} {number.readlink()}")
        except FileNotFoundError:  # the one that lists them
            continue
    return {each for each in found if "kvist-a" in each}


def test_a_region_begins_as_zeros_and_keeps_what_is_written() -> None:
    region = Region(A, 10_000)
    assert bytes(region.view(0, 10_000)) == bytes(10_000)
    region.view(100, 3)[:] = b"abc"
    assert bytes(region.view(98, 7)) == b"\0\0abc\0\0"
    region.close()


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 101), (100, 1), (50, -1), (2**70, 1), (0, 2**70)])
def test_nothing_outside_can_be_viewed(offset: int, length: int) -> None:
    region = Region(A, 100)
    with pytest.raises(AssertionError, match="is outside 100 bytes"):
        region.view(offset, length)
    region.close()


@pytest.mark.parametrize("size", [0, -1, 2**50, 2**63, 2**80])
def test_memory_that_is_not_there_is_missed_at_once_and_nothing_is_left_open(size: int) -> None:
    before = descriptors()
    with pytest.raises(CapacityError, match="shared memory for a"):
        Region(A, size)
    assert descriptors() == before


def test_a_name_that_the_system_does_not_take_is_an_error_too() -> None:
    with pytest.raises(CapacityError, match="shared memory"):
        Region(RegionId("n" * 300), 100)


def test_a_view_outlives_the_region_and_nothing_outlives_the_last_view() -> None:
    before = descriptors()
    region = Region(A, 100)
    view = region.view(0, 100)
    number = region.fd
    region.close()
    region.close()
    assert not any(each.startswith(f"{number} ") for each in descriptors() - before)
    view[:3] = b"abc"
    assert bytes(view[:4]) == b"abc\0"
    del region
    assert bytes(view[:4]) == b"abc\0"
    del view
    assert descriptors() == before


def test_another_process_sees_the_same_bytes_and_none_that_was_not_given_the_descriptor() -> None:
    region = Region(A, 4096)
    region.view(10, 5)[:] = b"hello"
    text = f"import mmap; m = mmap.mmap({region.fd}, 4096); print(m[10:15]); m[10:15] = b'again'"
    command = [sys.executable, "-S", "-c", text]
    seen = subprocess.run(command, pass_fds=[region.fd], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "b'hello'"
    assert bytes(region.view(10, 5)) == b"again"
    assert subprocess.run(command, close_fds=False, capture_output=True, check=False).returncode != 0
    region.close()


ATTACH = """
import sys
from kvist.tiers.regions import Region, RegionHandle
size, pid, fd, inode = map(int, sys.argv[2:6])
handle = RegionHandle(region=sys.argv[1], size=size, pid=pid, fd=fd, inode=inode)
region = Region.attached(handle, writable=True)
print(bytes(region.view(10, 5)))
region.view(20, 5)[:] = b"again"
region.close()
"""


class TestAttached:
    def test_another_process_finds_it_by_its_handle_alone_and_both_see_what_either_writes(self) -> None:
        region = Region(A, 10_000)
        region.view(10, 5)[:] = b"hello"
        handle = region.handle()
        words = [str(each) for each in (handle.region, handle.size, handle.pid, handle.fd, handle.inode)]
        seen = subprocess.run([sys.executable, "-c", ATTACH, *words], capture_output=True, text=True, check=True)
        assert seen.stdout.strip() == "b'hello'"
        assert bytes(region.view(20, 5)) == b"again"
        region.close()

    def test_what_may_only_be_read_is_refused_to_writers_and_shows_what_the_holder_writes(self) -> None:
        region = Region(A, 5_000)
        other = Region.attached(region.handle(), writable=False)
        view = other.view(100, 3)
        assert view.readonly
        with pytest.raises(TypeError):
            view[:] = b"abc"
        region.view(100, 3)[:] = b"abc"
        assert bytes(view) == b"abc"
        other.close()
        region.close()

    def test_its_end_is_not_the_end_of_the_memory_nor_the_other_way_round(self) -> None:
        before = descriptors()
        region = Region(A, 100)
        first, second = (Region.attached(region.handle(), writable=True) for _ in range(2))
        first.close()
        first.close()
        region.view(0, 3)[:] = b"abc"
        region.close()
        assert bytes(second.view(0, 4)) == b"abc\0"
        again = Region.attached(second.handle(), writable=True)
        again.view(3, 1)[:] = b"d"
        assert bytes(second.view(0, 4)) == b"abcd"
        second.close()
        again.close()
        del region, first, second, again
        assert descriptors() == before

    def test_a_device_is_told_of_it_too(self) -> None:
        told: list[str] = []

        def pin(memory: memoryview) -> Callable[[], None]:
            told.append(f"pinned {memory.nbytes}")
            return lambda: told.append("unpinned")

        region = Region(A, 5_000)
        other = Region.attached(region.handle(), writable=True, pin=pin)
        region.close()
        assert told == ["pinned 5000"]
        other.close()
        assert told == ["pinned 5000", "unpinned"]

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"pid": 2**22 + 1}, "cannot open 4.9 KiB of shared memory called a of process .*one machine, as one user"),
            ({"pid": -1}, "cannot open"),
            ({"pid": "1/root"}, "cannot open"),
            ({"fd": 2**20}, "cannot open"),
            ({"fd": -1}, "cannot open"),
            ({"inode": 1}, "is not 4.9 KiB of shared memory called a .* any more"),
            ({"size": 4999}, "has 5000 bytes"),
            ({"size": 0}, "has 5000 bytes"),
            ({"size": 2**70}, "has 5000 bytes"),
        ],
    )
    def test_what_is_not_as_the_handle_says_is_refused_and_leaves_nothing_open(
        self, change: dict[str, object], complaint: str
    ) -> None:
        region = Region(A, 5_000)
        before = descriptors()
        with pytest.raises(ConfigError, match=complaint):
            Region.attached(replace(region.handle(), **change), writable=True)
        assert descriptors() == before
        region.close()

    def test_a_number_that_has_come_to_mean_another_file_is_noticed(self, tmp_path: Path) -> None:
        region = Region(A, 100)
        handle = region.handle()
        region.close()
        (tmp_path / "other").write_bytes(bytes(100))
        other = os.open(tmp_path / "other", os.O_RDWR)
        try:
            with pytest.raises(ConfigError, match="any more; start both"):
                Region.attached(replace(handle, fd=other), writable=True)
        finally:
            os.close(other)

    @pytest.mark.parametrize("file", ["/dev/null", "/"])
    def test_what_is_no_memory_is_never_mapped(self, file: str) -> None:
        opened = os.open(file, os.O_RDONLY)
        try:
            found = os.fstat(opened)
            handle = RegionHandle(region=A, size=found.st_size, pid=os.getpid(), fd=opened, inode=found.st_ino)
            with pytest.raises(ConfigError):
                Region.attached(handle, writable=False)
        finally:
            os.close(opened)

    def test_a_closed_one_has_no_handle(self) -> None:
        region = Region(A, 100)
        region.close()
        with pytest.raises(AssertionError, match="a is closed"):
            region.handle()


class TestPin:
    def test_a_device_is_told_of_all_of_it_and_told_again_once_at_the_end(self) -> None:
        told: list[str] = []

        def pin(memory: memoryview) -> Callable[[], None]:
            told.append(f"pinned {memory.nbytes}")
            memory[:3] = b"abc"
            return lambda: told.append("unpinned")

        region = Region(A, 5_000, pin=pin)
        assert bytes(region.view(0, 3)) == b"abc"
        assert told == ["pinned 5000"]
        region.close()
        region.close()
        assert told == ["pinned 5000", "unpinned"]

    def test_a_device_that_does_not_take_it_leaves_nothing_behind(self) -> None:
        def pin(memory: memoryview) -> Callable[[], None]:
            raise CapacityError(f"the device does not take {memory.nbytes} bytes")

        before = descriptors()
        with pytest.raises(CapacityError, match="does not take 5000"):
            Region(A, 5_000, pin=pin)
        assert descriptors() == before


class TestRegions:
    def test_others_are_told_how_to_find_them_all(self) -> None:
        regions = Regions()
        first, second = regions.add(Region(A, 100)), regions.add(Region(B, 200))
        assert regions.handles() == (first.handle(), second.handle())
        assert [(each.region, each.size) for each in regions.handles()] == [(A, 100), (B, 200)]
        assert A in regions
        assert RegionId("c") not in regions
        regions.close()

    def test_a_buffer_is_found_by_the_name_of_its_region(self) -> None:
        regions = Regions()
        first, second = regions.add(Region(A, 100)), regions.add(Region(B, 200))
        regions.view(Buffer(region=B, offset=150, length=3))[:] = b"abc"
        assert bytes(second.view(150, 3)) == b"abc"
        assert bytes(first.view(0, 100)) == bytes(100)
        regions.close()
        assert first.fd == second.fd == -1

    def test_two_of_one_name_are_refused(self) -> None:
        regions = Regions()
        regions.add(Region(A, 100))
        other = Region(A, 100)
        with pytest.raises(AssertionError, match="two regions called a"):
            regions.add(other)
        other.close()
        regions.close()

    def test_a_buffer_ends_where_its_region_does(self) -> None:
        regions = Regions()
        regions.add(Region(A, 100))
        with pytest.raises(AssertionError, match="outside 100 bytes"):
            regions.view(Buffer(region=A, offset=90, length=11))
        regions.close()


class TestCopy:
    @pytest.mark.parametrize("size", [0, 1, 511, 4096, 300_001])
    @pytest.mark.parametrize("keep", [bytes, bytearray])
    def test_exactly_the_bytes_are_copied(self, size: int, keep: type) -> None:
        source = memoryview(keep(bytes(range(256)) * (size // 256 + 1)))[:size]
        room = bytearray(b"\xee" * (size + 6))
        copy_bytes(memoryview(room)[3 : 3 + size], source)
        assert room == b"\xee" * 3 + bytes(source) + b"\xee" * 3

    def test_another_length_is_our_own_mistake(self) -> None:
        room = bytearray(10)
        for size in (9, 11):
            with pytest.raises(AssertionError, match=f"{size} bytes do not fit into 10"):
                copy_bytes(memoryview(room), memoryview(bytes(size)))
        assert room == bytes(10)

    def test_a_target_that_may_not_be_written_is_an_error(self) -> None:
        with pytest.raises(TypeError):
            copy_bytes(memoryview(bytes(4)), memoryview(bytearray(4)))
