"""A directory in use by whoever does not behave: changed while it is read, failed half-way, filled by another model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.files import ENOSPC, FailingFiles
from fakes.tiers import BLUE, NOW_UNIX_S, key_of, read_of, write_of
from kvist.app.clock import SystemClock
from kvist.app.tier_specs import DiskSpec
from kvist.app.tiers import opened_tiers
from kvist.base.errors import TierUnavailableError
from kvist.fabric.book import Book
from kvist.fabric.claims import BookLimits, Claim, Reserved
from kvist.fabric.messages import Ticket
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import Absent, Address, Found, NotStored, Place, ReadOutcome, Stored, Tier, Write
from kvist.tiers.regions import Regions

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


def test_records_of_a_write_that_failed_half_way_do_not_come_back(tmp_path: Path) -> None:
    """Their owner deletes them, as of a write of which nothing is known; an operator may have purged everything."""
    writes = writes_of(range(12))
    with opened(tmp_path) as tier:
        tier.write(writes[:2])
        tier._index._database.execute(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON records WHEN NEW.place = 90112 "
            "BEGIN SELECT RAISE(ABORT, 'as told'); END"
        )
        with pytest.raises(TierUnavailableError, match="as told"):
            tier.write(writes)
        tier.delete([each.address for each in writes])
        assert list(tier.entries()) == []
    with opened(tmp_path) as tier:
        assert (list(tier.entries()), tier.statistics().records_lost) == ([], 0)


class Shop:
    """A tier and its books, used as a server uses them; what is stored is counted at the tier."""

    def __init__(self, tier: Tier, book: Book) -> None:
        self.tier, self.book, self.now_unix_s = tier, book, NOW_UNIX_S
        tier.delete(book.restore(tier.entries(), NOW_UNIX_S))
        self.kept = book.statistics().resident

    def store(self, numbers: range, length: int) -> int:
        """Stores records, a few in each call as a mover does; how many the tier acknowledged."""
        stored = 0
        for start in range(numbers.start, numbers.stop, 16):
            stored += self._store(range(start, min(start + 16, numbers.stop)), length)
        return stored

    def _store(self, numbers: range, length: int) -> int:
        writes: list[Write] = []
        for number in numbers:
            claim = Claim(key=key_of(number), tenant=BLUE, record_bytes=length)
            answer = self.book.reserve(claim, Ticket(1), self.now_unix_s)
            if isinstance(answer, Reserved):
                self.tier.delete(answer.evicted)
                writes.append(write_of(answer.address, length, number))
        outcomes = self.tier.write(writes)
        for write, outcome in zip(writes, outcomes, strict=True):
            key = write.address.key
            if not isinstance(outcome, NotStored):
                self.book.commit(key, Ticket(1), write.created_unix_s)
            else:
                self.book.cancel(key, Ticket(1), full_unix_s=self.now_unix_s if outcome.lacks_room else None)
        self.book.audit(())
        assert self.tier.statistics().records == self.book.statistics().resident
        return sum(outcome == Stored() for outcome in outcomes)


@contextmanager
def served(path: Path, length: int, size: int = 6 * MIB) -> Iterator[Shop]:
    """The directory as a server opens it whose model has records of this length."""
    spec = DiskSpec(name="disk", path=str(path / "tier"), bytes=size, free_min=1)
    with opened_tiers([spec], [length], Regions(), SystemClock()) as tiers:
        (opened,) = tiers.values()
        assert opened.settings.limits is not None
        yield Shop(opened.tier, Book(opened.settings.limits))


@pytest.mark.parametrize(("before", "after"), [(4 * KIB, 128 * KIB), (128 * KIB, 4 * KIB), (4 * KIB, 12 * KIB)])
def test_a_directory_full_of_one_model_s_records_goes_on_with_another_s(
    tmp_path: Path, before: int, after: int
) -> None:
    with served(tmp_path, before) as shop:
        shop.store(range(1500), before)
        filled = shop.book.statistics()
        assert filled.evicted > 0, "it was not full"
    with served(tmp_path, after) as shop:
        lost = shop.tier.statistics().records_lost + shop.book.statistics().evicted
        assert shop.kept + lost == filled.resident, "records went that no ledger knows of"
        assert shop.store(range(2000, 2200), after) == 200
        young = {key_of(number) for number in range(2150, 2200)}
        stored = {entry.address.key for entry in shop.book.entries()}
        assert len(young & stored) >= min(len(young), len(stored)) // 2
    with served(tmp_path, after) as shop:
        assert shop.kept == len(stored)
        assert shop.store(range(2200, 2300), after) == 100


def test_a_medium_that_others_have_filled_goes_on_with_the_files_that_there_are(tmp_path: Path) -> None:
    """And with all of them again when there is room."""
    port = FailingFiles()
    with opened(tmp_path, port) as tier:
        limits = BookLimits(
            bytes_max=tier.bytes_for_records,
            extent_bytes=tier.segment_bytes,
            alignment=tier.alignment,
            records_max=tier.records_max,
        )
        shop = Shop(tier, Book(limits))
        per_file, files = tier.segment_bytes // PLACE, tier.bytes_for_records // tier.segment_bytes
        assert shop.store(range(3 * per_file), PLACE) == 3 * per_file
        port.allocate_code = ENOSPC
        stored = shop.store(range(1000, 1400), PLACE)
        assert 400 - 16 <= stored < 400, "a call or so is what it takes to learn it"
        assert shop.book.statistics().resident == 3 * per_file
        assert shop.store(range(2000, 2400), 2 * PLACE) == 400, "records of another length as well"
        shop.now_unix_s += 3600.0
        assert 400 - 16 <= shop.store(range(3000, 3400), PLACE) < 400, "it was not tried again"
        port.allocate_code = 0
        shop.now_unix_s += 3600.0
        assert shop.store(range(4000, 4800), PLACE) == 800
        assert tier.statistics().bytes_allocated >= files * tier.segment_bytes


def test_a_smaller_budget_holds_from_the_start_whatever_the_index_has_grown_to(tmp_path: Path) -> None:
    """Many short records before, few long ones after: most of the rows go, and so must their room."""
    short = [
        write_of(Address(key=key_of(number), tenant=BLUE, place=Place(offset=4096 * number, length=4096)), 600)
        for number in range(5000)
    ]
    with opened(tmp_path, bytes_max=32 * MIB, record_bytes_min=4096) as tier:
        for start in range(0, len(short), 500):
            tier.write(short[start : start + 500])
    small = {"bytes_max": 3 * MIB, "record_bytes_min": 64 * KIB}
    for turn in range(3):
        with opened(tmp_path, **small) as tier:
            most = bytes_on_disk(tmp_path / "tier")
            tier.delete([entry.address for entry in tier.entries()])
            for number in range(tier.bytes_for_records // (64 * KIB)):
                assert list(tier.write([write_of(address(number, 64 * KIB), 64 * KIB, turn)])) == [Stored()]
                most = max(most, bytes_on_disk(tmp_path / "tier"))
            assert most <= small["bytes_max"]
            assert tier.statistics().records <= tier.records_max
            assert (tier.statistics().records_lost > 4000) == (turn == 0)


def bytes_on_disk(path: Path) -> int:
    """As `du` counts."""
    return sum(each.stat().st_blocks * 512 for each in (path, *path.iterdir()))
