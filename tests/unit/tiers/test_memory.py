"""What only host memory promises: places are bounded and apart, and nothing is copied that can be looked at."""

import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.tiers import BLUE, key_of, read_of, record_of, write_of
from kvist.base.errors import TierError, TierUnavailableError
from kvist.tiers.memory import MemoryTier
from kvist.tiers.ports import Absent, Address, Damaged, Found, Place, Stored, Write
from kvist.tiers.regions import Region, RegionId

SIZE = 64 * 100


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region(RegionId("dram"), SIZE)
    yield made
    made.close()


@pytest.fixture
def tier(region: Region) -> MemoryTier:
    return MemoryTier("dram", region, alignment=64)


def at(offset: int, length: int = 640, number: int = 0) -> Address:
    return Address(key=key_of(number), tenant=BLUE, place=Place(offset=offset, length=length))


@pytest.mark.parametrize(
    ("offset", "length"),
    [(-64, 640), (SIZE, 640), (SIZE - 64, 640), (0, SIZE + 64), (0, 0), (64, -64), (32, 640), (2**70, 640), (0, 2**70)],
)
def test_a_place_outside_or_askew_is_refused_by_every_verb(tier: MemoryTier, offset: int, length: int) -> None:
    address = at(offset, length)
    for call in (
        lambda: tier.find([address]),
        lambda: tier.read([read_of(address)]),
        lambda: tier.lend([address]),
        lambda: tier.write([write_of(address)]),
        lambda: tier.delete([address]),
        lambda: tier.keep([address], pinned=True, expires_unix_s=None),
    ):
        with pytest.raises(TierError, match=f"dram: .*offset={offset}.*6400 bytes at multiples of 64"):
            call()
    assert tier.statistics().records == 0


def test_an_address_without_a_place_is_refused(tier: MemoryTier) -> None:
    with pytest.raises(TierError, match="without a place"):
        tier.write([write_of(Address(key=key_of(0), tenant=BLUE))])


def test_a_record_longer_than_its_place_is_refused_and_its_neighbour_unharmed(tier: MemoryTier) -> None:
    neighbour = write_of(at(640, number=1))
    tier.write([neighbour])
    with pytest.raises(TierError, match="642 bytes do not fit"):
        tier.write([write_of(at(0), 642)])
    assert tier.find([at(0)]) == [False]
    read = read_of(neighbour.address)
    assert tier.read([read]) == [Found()]
    assert read.into == neighbour.record


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (640, 640),
        (640, 704),
        (640, 1280),
        (1216, 640),
        (576, 128),
        (64, 640),
        (0, 1280),
        (0, SIZE),
        (704, 64),
        (1216, 64),
    ],
)
def test_a_place_that_overlaps_anothers_is_refused_and_nothing_changes(
    tier: MemoryTier, offset: int, length: int
) -> None:
    holder = write_of(at(640, number=1))
    tier.write([holder])
    record = record_of(at(offset), 512)[: min(length, 512)]
    with pytest.raises(TierError, match="is taken from 640 on"):
        tier.write([Write(address=at(offset, length), record=record, created_unix_s=0)])
    read = read_of(holder.address)
    assert tier.read([read]) == [Found()]
    assert read.into == holder.record
    assert tier.statistics().bytes_used == 640


def test_places_that_touch_are_apart(tier: MemoryTier) -> None:
    writes = [write_of(at(offset, number=offset)) for offset in (1280, 0, 640)]
    assert tier.write(writes) == [Stored()] * 3
    assert {entry.address for entry in tier.entries()} == {each.address for each in writes}
    for write in writes:
        read = read_of(write.address)
        assert tier.read([read]) == [Found()]
        assert read.into == write.record


def test_a_replaced_record_is_of_the_same_place(tier: MemoryTier) -> None:
    tier.write([write_of(at(0))])
    with pytest.raises(TierError, match="is taken"):
        tier.write([write_of(at(0, length=1280))])
    assert tier.write([write_of(at(0), 512, version=1)]) == [Stored()]
    assert isinstance(tier.read([read_of(at(0), 600)])[0], Damaged)
    assert tier.statistics().records == 1


def test_what_is_lent_is_the_memory_itself(tier: MemoryTier, region: Region) -> None:
    write = write_of(at(1280))
    tier.write([write])
    (place,) = tier.lend([write.address])
    region.view(1280 + 5, 1)[:] = b"\x7f"
    assert place[5] == 0x7F
    assert place.nbytes == 640
    assert bytes(place[6:600]) == bytes(write.record[6:])


def test_what_is_lent_stays_when_the_tier_closes(tier: MemoryTier, region: Region) -> None:
    write = write_of(at(0))
    tier.write([write])
    (place,) = tier.lend([write.address])
    tier.close()
    region.close()
    assert place[:600] == write.record


def test_a_tier_begins_empty_whatever_its_region_holds(tier: MemoryTier, region: Region) -> None:
    write = write_of(at(0))
    tier.write([write])
    again = MemoryTier("again", region)
    assert again.find([write.address]) == [False]
    assert again.read([read_of(write.address)]) == [Absent()]
    assert list(again.entries()) == []


def test_a_record_is_there_only_once_it_is_written(region: Region) -> None:
    """A write that is refused in the middle of a call leaves the ones before it, and nothing of its own."""
    tier = MemoryTier("dram", region)
    with pytest.raises(TierError):
        tier.write([write_of(at(0)), write_of(at(64, number=1)), write_of(at(1280, number=2))])
    assert [entry.address for entry in tier.entries()] == [at(0)]
    assert tier.write([write_of(at(640, number=3))]) == [Stored()]


def test_two_threads_cannot_write_one_place_at_once(region: Region) -> None:
    """Whoever comes second is refused or replaces; the bytes are always one record's, whole."""
    tier, begun = MemoryTier("dram", region), threading.Barrier(2)
    records = {number: record_of(at(0, SIZE, number), 6400) for number in (1, 2)}
    refused: list[int] = []

    def use(number: int) -> None:
        begun.wait()
        for _ in range(300):
            address = at(0, SIZE, number)
            try:
                tier.write([Write(address=address, record=records[number], created_unix_s=0)])
                read = read_of(address, 6400)
                if tier.read([read]) == [Found()]:
                    assert read.into == records[number]
                tier.delete([address])
            except TierError:
                refused.append(number)

    with ThreadPoolExecutor(2) as threads:
        for each in [threads.submit(use, number) for number in (1, 2)]:
            each.result(timeout=60)
    assert list(tier.entries()) == []
    assert tier.statistics().bytes_used == 0
    assert len(refused) < 600, "nobody ever wrote"


def test_numbers_are_of_places_and_of_what_they_waste(tier: MemoryTier) -> None:
    tier.write([write_of(at(0), 600), write_of(at(640, 1280, 1), 512)])
    books = tier.statistics()
    assert (books.records, books.bytes_used, books.bytes_max) == (2, 1920, SIZE)
    assert books.bytes_overhead == 40 + 768
    tier.delete([at(0)])
    assert tier.statistics().bytes_used == 1280


def test_storing_and_lending_allocate_nothing_of_the_size_of_a_record() -> None:
    size = 2**20
    region = Region(RegionId("large"), 8 * size)
    tier = MemoryTier("dram", region, alignment=64)
    addresses = [at(number * size, size, number) for number in range(8)]
    source = memoryview(bytearray(size))
    writes = [Write(address=address, record=source, created_unix_s=0) for address in addresses]
    tracemalloc.start()
    try:
        for _ in range(3):
            tier.write(writes)
            places = tier.lend(addresses)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(places) == 8
    assert peak < 64 * 1024, f"{peak} bytes were allocated for 24 records of {size}"
    region.close()


def test_a_tier_that_closes_in_the_middle_of_a_write_says_so(tier: MemoryTier) -> None:
    class Closing:
        """A list whose second write comes after the tier has closed."""

        def __iter__(self) -> Iterator[Write]:
            yield write_of(at(0))
            tier.close()
            yield write_of(at(640, number=1))

    with pytest.raises(TierUnavailableError, match="dram: it is closed"):
        tier.write(Closing())
    assert tier.statistics().records == 1


def test_an_alignment_of_nothing_is_our_own_mistake(region: Region) -> None:
    with pytest.raises(AssertionError, match="aligned to 0"):
        MemoryTier("dram", region, alignment=0)
