"""A directory in use by whoever does not behave: changed while it is read, failed half-way, filled by another model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.files import FailingFiles
from fakes.tiers import BLUE, NOW_UNIX_S, key_of, read_of, write_of
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import Absent, Address, Found, Place, ReadOutcome, Write

KIB, MIB = 2**10, 2**20
PLACE = 8 * KIB


@contextmanager
def opened(path: Path, port: FailingFiles | None = None, **fields: int) -> Iterator[DiskTier]:
    """The tier of a directory, for the length of a `with`."""
    told = {"bytes_max": 4 * MIB, "bytes_free_min": 0, "record_bytes_min": PLACE, "segment_bytes": 256 * KIB} | fields
    tier = DiskTier("disk", DiskSettings(directory=path / "tier", **told), port=port)
    try:
        yield tier
    finally:
        tier.close()


def address(number: int, length: int = PLACE) -> Address:
    """Of a key, at one of many places of equal length."""
    return Address(key=key_of(number), tenant=BLUE, place=Place(offset=number * length, length=length))


def writes_of(numbers: range, length: int = PLACE) -> list[Write]:
    """Records at places behind each other, each younger than the one before."""
    return [write_of(address(number, length), length, number) for number in numbers]


CHANGES: dict[str, tuple[Callable[[DiskTier, Address], object], object]] = {
    "pinned": (lambda tier, at: tier.keep([at], pinned=True, expires_unix_s=None), Found()),
    "unpinned": (lambda tier, at: tier.keep([at], pinned=False, expires_unix_s=None), Found()),
    "to expire": (lambda tier, at: tier.keep([at], pinned=False, expires_unix_s=NOW_UNIX_S + 9), Found()),
    "deleted": (lambda tier, at: tier.delete([at]), Absent()),
    "written anew": (lambda tier, at: tier.write([write_of(at, PLACE)]), Absent()),
    "overwritten": (
        lambda tier, at: tier.write([write_of(Address(key=key_of(9), tenant=BLUE, place=at.place))]),
        Absent(),
    ),
}
"""What becomes of a record while it is read, and what the reader is then told."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_reader_is_told_that_a_record_is_gone_only_when_it_is(tmp_path: Path, change: str) -> None:
    call, right = CHANGES[change]
    port = FailingFiles()
    found: list[ReadOutcome] = []
    with opened(tmp_path, port) as tier:
        tier.write(writes_of(range(1)))
        gate = port.gate = threading.Event()
        port.entered.clear()
        reader = threading.Thread(target=lambda: found.extend(tier.read([read_of(address(0), PLACE)])))
        reader.start()
        assert port.entered.wait(60)
        port.gate = None  # what comes now does not wait
        call(tier, address(0))
        gate.set()
        reader.join()
    assert found == [right]
