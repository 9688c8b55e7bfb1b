"""The disk tier over real files: restarts, budgets, faults of the medium, and closing."""

import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.files import EDQUOT, EIO, ENOSPC, EROFS, FailingFiles, always, only
from fakes.tiers import BLUE, key_of, read_of, write_of
from kvist.base.errors import ConfigError, TierError, TierFullError, TierUnavailableError
from kvist.blocks.form import FormError, check_record
from kvist.tiers.disk import DiskTier, fastest_port
from kvist.tiers.disk_ring import RingFiles
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import Absent, Address, Damaged, Found, NotStored, Place, Stored, Write

KIB, MIB = 2**10, 2**20
PLACE = 8 * KIB
SEGMENT = 256 * KIB


def settings_of(path: Path, bytes_max: int = 2 * MIB) -> DiskSettings:
    """A small tier of several segments."""
    return DiskSettings(
        directory=path / "tier",
        bytes_max=bytes_max,
        bytes_free_min=0,
        record_bytes_min=PLACE,
        segment_bytes=SEGMENT,
    )


@contextmanager
def opened(path: Path, port: FailingFiles | None = None, bytes_max: int = 2 * MIB) -> Iterator[DiskTier]:
    """The tier of a directory, for the length of a `with`."""
    tier = DiskTier("disk", settings_of(path, bytes_max), port=port)
    try:
        yield tier
    finally:
        tier.close()


def address(number: int, place: int | None = None) -> Address:
    """Of a key, at one of many places of equal length."""
    offset = (number if place is None else place) * PLACE
    return Address(key=key_of(number), tenant=BLUE, place=Place(offset=offset, length=PLACE))


def writes_of(count: int, version: int = 0) -> list[Write]:
    """Records at places behind each other."""
    return [write_of(address(number), 5_000, version) for number in range(count)]


def expect_found(tier: DiskTier, *writes: Write) -> None:
    """All of them can be read."""
    reads = [read_of(each.address, each.record.nbytes) for each in writes]
    assert list(tier.read(reads)) == [Found()] * len(writes)
    assert [each.into for each in reads] == [each.record for each in writes]


def bytes_on_disk(path: Path) -> int:
    """As `du` counts."""
    return sum(each.stat().st_blocks * 512 for each in (path, *path.iterdir()))


class TestRestart:
    def test_everything_is_there_again(self, tmp_path: Path) -> None:
        writes = [*writes_of(20), write_of(address(50), 5_000, 7, expires=9e9)]
        with opened(tmp_path) as tier:
            assert list(tier.write(writes)) == [Stored()] * 21
            tier.keep([writes[3].address], pinned=True, expires_unix_s=8e9)
            tier.delete([writes[4].address])
            before = list(tier.entries())
        with opened(tmp_path) as tier:
            assert list(tier.entries()) == before
            assert [entry.address for entry in before if entry.pinned] == [writes[3].address]
            expect_found(tier, *writes[:4], *writes[5:])
            statistics = tier.statistics()
            assert (statistics.records, statistics.bytes_used) == (20, 20 * PLACE)
            assert (statistics.records_lost, statistics.indexes_lost) == (0, 0)

    def test_a_segment_that_is_missing_or_short_takes_its_records_with_it(self, tmp_path: Path) -> None:
        writes = writes_of(80)  # over three segments
        with opened(tmp_path) as tier:
            tier.write(writes)
        (tmp_path / "tier" / "segment-00000").unlink()
        with (tmp_path / "tier" / "segment-00001").open("r+b") as file:
            file.truncate(3 * PLACE + 100)
        with opened(tmp_path) as tier:
            statistics = tier.statistics()
            assert (statistics.records_lost, statistics.records) == (32 + 29, 19)
            expect_found(tier, *writes[32:35], *writes[64:])
            assert list(tier.write(writes)) == [Stored()] * 80
            expect_found(tier, *writes)
        with opened(tmp_path) as tier:
            assert tier.statistics().records_lost == 0

    def test_a_ruined_index_is_counted_and_begun_anew(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write(writes_of(9))
        (tmp_path / "tier" / "index.sqlite").write_bytes(b"no database" * 1000)
        with opened(tmp_path) as tier:
            assert (tier.statistics().indexes_lost, tier.statistics().records) == (1, 0)
            assert list(tier.write(writes_of(9))) == [Stored()] * 9
        with opened(tmp_path) as tier:
            assert (tier.statistics().indexes_lost, tier.statistics().records) == (0, 9)

    def test_a_smaller_budget_keeps_what_fits_and_a_larger_one_all(self, tmp_path: Path) -> None:
        writes = writes_of(170)
        with opened(tmp_path) as tier:
            tier.write(writes)
        with opened(tmp_path, bytes_max=MIB) as tier:
            fits = tier.bytes_for_records // PLACE
            assert tier.statistics().records_lost == 170 - fits
            expect_found(tier, *writes[:fits])
            assert bytes_on_disk(tmp_path / "tier") <= MIB
        with opened(tmp_path, bytes_max=4 * MIB) as tier:
            assert tier.bytes_for_records > 3 * MIB
            assert list(tier.write(writes)) == [Stored()] * 170
            expect_found(tier, *writes)

    def test_a_second_one_is_refused(self, tmp_path: Path) -> None:
        with opened(tmp_path), pytest.raises(ConfigError, match="is in use by the process"):
            DiskTier("other", settings_of(tmp_path))

    def test_an_index_that_cannot_be_opened_now_is_kept(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write(writes_of(3))
        other = sqlite3.connect(tmp_path / "tier" / "index.sqlite")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match="locked"):
            DiskTier("disk", settings_of(tmp_path))
        other.close()
        with opened(tmp_path) as tier:
            expect_found(tier, *writes_of(3))

    def test_a_budget_without_room_makes_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"give it .* or more"):
            DiskTier("disk", settings_of(tmp_path, 1000))
        assert not (tmp_path / "tier").exists()


class TestBudget:
    def test_all_files_stay_within_it_while_all_places_are_written_again_and_again(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            places, highest = tier.bytes_for_records // PLACE, 0
            for turn in range(12):
                for start in range(0, places, 50):
                    batch = [
                        write_of(address(turn * 1000 + place, place), 8_000 - 2 * turn)
                        for place in range(start, min(places, start + 50))
                    ]
                    assert list(tier.write(batch)) == [Stored()] * len(batch)
                    highest = max(highest, bytes_on_disk(tmp_path / "tier"))
            statistics = tier.statistics()
            assert (statistics.records, statistics.bytes_used) == (places, places * PLACE)
            assert tier.bytes_for_records < highest <= 2 * MIB
        assert bytes_on_disk(tmp_path / "tier") <= 2 * MIB

    def test_what_the_place_held_before_is_forgotten(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write(writes_of(4))
            wide = Address(key=key_of(9), tenant=BLUE, place=Place(offset=PLACE, length=2 * PLACE))
            assert list(tier.write([write_of(wide, 10_000)])) == [Stored()]
            assert list(tier.find([address(number) for number in range(4)])) == [True, False, False, True]
        with opened(tmp_path) as tier:
            assert tier.statistics().records == 3

    def test_a_record_that_moves_leaves_its_old_place(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write([write_of(address(1, 0))])
            moved = write_of(address(1, 5), version=1)
            tier.write([moved])
            assert list(tier.find([address(1, 0), address(1, 5)])) == [False, True]
        with opened(tmp_path) as tier:
            expect_found(tier, moved)
            assert tier.statistics().records == 1

    def test_more_records_than_rows_are_refused_alone(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            rows_max = settings_of(tmp_path).index.rows_max
            small = [
                Address(key=key_of(number), tenant=BLUE, place=Place(offset=number * 4096, length=4096))
                for number in range(rows_max + 5)
            ]
            outcomes = list(tier.write([write_of(each) for each in small]))
            assert outcomes[:rows_max] == [Stored()] * rows_max
            assert {type(each) for each in outcomes[rows_max:]} == {NotStored}

    @pytest.mark.parametrize(
        "place",
        [
            None,
            Place(offset=100, length=PLACE),
            Place(offset=0, length=4096),
            Place(offset=0, length=0),
            Place(offset=0, length=PLACE + 1),
            Place(offset=SEGMENT - 4096, length=PLACE),
            Place(offset=-PLACE, length=PLACE),
            Place(offset=2**62, length=PLACE),
        ],
    )
    def test_a_place_that_is_none_stores_nothing(self, tmp_path: Path, place: Place | None) -> None:
        with opened(tmp_path) as tier:
            wrong = Address(key=key_of(1), tenant=BLUE, place=place)
            with pytest.raises(TierError, match="disk"):
                tier.write([write_of(address(0), 5_000), write_of(wrong, 5_000)])
            assert list(tier.entries()) == []

    def test_files_are_private(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write(writes_of(3))
            modes = {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "tier").iterdir()}
            assert modes == {0o600}
            assert len(list((tmp_path / "tier").iterdir())) == 5


class TestFaults:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [(EIO, TierUnavailableError), (EROFS, TierUnavailableError), (ENOSPC, TierFullError), (EDQUOT, TierFullError)],
    )
    def test_a_medium_that_takes_nothing_fails_as_a_whole(
        self, tmp_path: Path, code: int, kind: type[TierError]
    ) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            tier.write(writes_of(2))
            port.write_fault = always(code)
            with pytest.raises(kind):
                tier.write(writes_of(5)[2:])
            port.write_fault = None
            assert len(list(tier.entries())) == 2
            expect_found(tier, *writes_of(2))
            assert list(tier.write(writes_of(5))) == [Stored()] * 5

    def test_a_record_that_the_medium_does_not_take_is_refused_alone(self, tmp_path: Path) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            port.write_fault = only(0, EIO)
            first, *others = tier.write(writes_of(4))
            assert first == NotStored(reason="Input/output error (EIO)")
            assert others == [Stored()] * 3
            assert list(tier.find([each.address for each in writes_of(4)])) == [False, True, True, True]

    def test_a_torn_write_is_not_stored_and_never_read(self, tmp_path: Path) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            tier.write(writes_of(1))
            port.write_fault = only(0, -512)
            with pytest.raises(TierFullError):
                tier.write(writes_of(1, version=1))
            assert list(tier.find([address(0)])) == [False]
        with opened(tmp_path) as tier:
            assert list(tier.read([read_of(address(0), 5_000)])) == [Absent()]

    def test_a_record_that_cannot_be_read_is_damaged_and_a_medium_that_cannot_is_unavailable(
        self, tmp_path: Path
    ) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            tier.write(writes_of(3))
            reads = [read_of(address(number), 5_000) for number in range(3)]
            port.read_fault = only(0, EIO)
            assert list(tier.read(reads)) == [Damaged(reason="Input/output error (EIO)"), Found(), Found()]
            port.read_fault = only(0, -512)
            assert isinstance(tier.read(reads)[0], Damaged)
            assert isinstance(tier.read(reads[:1])[0], Damaged)
            port.read_fault = always(EIO)
            with pytest.raises(TierUnavailableError, match="EIO"):
                tier.read(reads)
            port.read_fault = None
            assert list(tier.read(reads)) == [Found()] * 3

    def test_bytes_that_never_reached_the_medium_are_shown_by_the_record(self, tmp_path: Path) -> None:
        """As after a loss of power: the row is there, the bytes are what was there before."""
        with opened(tmp_path) as tier:
            tier.write(writes_of(1))
        with (tmp_path / "tier" / "segment-00000").open("r+b") as file:
            file.seek(4096)
            file.write(bytes(4096))
        with opened(tmp_path) as tier:
            read = read_of(address(0), 5_000)
            assert list(tier.read([read])) == [Found()]
            with pytest.raises(FormError, match="payload"):
                check_record(read.into, key=key_of(0), tenant=BLUE)

    def test_a_full_disk_stores_what_has_a_file_already(self, tmp_path: Path) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            tier.write(writes_of(1))
            port.allocate_code = ENOSPC
            outcomes = list(tier.write([write_of(address(1)), write_of(address(40))]))
            assert outcomes[0] == Stored()
            assert isinstance(outcomes[1], NotStored)
            full = NotStored(reason="No space left on device (ENOSPC)", lacks_room=True)
            assert list(tier.write([write_of(address(40))])) == [full], "the tier is well, and has other places"
            port.allocate_code = 0
            assert list(tier.write([write_of(address(40))])) == [Stored()]

    def test_the_floor_of_free_space_holds(self, tmp_path: Path) -> None:
        port = FailingFiles()
        settings = replace(settings_of(tmp_path), bytes_free_min=10 * MIB)
        tier = DiskTier("disk", settings, port=port)
        port.free = 10 * MIB + SEGMENT - 1
        assert [isinstance(each, NotStored) and each.lacks_room for each in tier.write(writes_of(1))] == [True]
        port.free += 1
        assert list(tier.write(writes_of(1))) == [Stored()]
        tier.close()

    def test_an_index_that_fails_acknowledges_nothing(self, tmp_path: Path) -> None:
        with opened(tmp_path) as tier:
            tier.write(writes_of(2))
            tier._index._database.execute("PRAGMA query_only = 1")
            for call in (
                lambda: tier.write([write_of(address(7))]),
                lambda: tier.delete([address(0)]),
                lambda: tier.keep([address(0)], pinned=True, expires_unix_s=None),
            ):
                with pytest.raises(TierUnavailableError, match="the index failed"):
                    call()
            assert [entry.pinned for entry in tier.entries()] == [False, False]
            tier._index._database.execute("PRAGMA query_only = 0")
            assert list(tier.write([write_of(address(7))])) == [Stored()]
            expect_found(tier, *writes_of(2))

    def test_a_start_that_fails_gives_everything_back(self, tmp_path: Path) -> None:
        port = FailingFiles()
        port.write_fault = always(EIO)
        with pytest.raises(ConfigError, match="cannot be used"):
            DiskTier("disk", settings_of(tmp_path), port=port)
        assert port.calls[-1] == "close"
        DiskTier("disk", settings_of(tmp_path)).close()


class TestThreads:
    @contextmanager
    def waiting(self, port: FailingFiles, call: Callable[[], object]) -> Iterator[list[object]]:
        """A call that has reached the medium and stays there until the `with` ends."""
        found: list[object] = []
        port.gate = threading.Event()
        port.entered.clear()
        thread = threading.Thread(target=lambda: found.append(call()))
        thread.start()
        assert port.entered.wait(60)
        yield found
        port.gate.set()
        thread.join()
        port.gate = None

    def test_a_place_that_is_being_written_is_refused_to_others(self, tmp_path: Path) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            with self.waiting(port, lambda: list(tier.write([write_of(address(1, 0))]))) as found:
                assert list(tier.find([address(1, 0)])) == [False]
                assert list(tier.write([write_of(address(2, 0))])) == [NotStored(reason="its place is being written")]
                assert list(tier.delete([address(1, 0)])) == [False]
            assert found == [[Stored()]]
            assert list(tier.find([address(1, 0)])) == [True]

    def test_a_record_that_is_deleted_while_it_is_read_is_absent(self, tmp_path: Path) -> None:
        port = FailingFiles()
        with opened(tmp_path, port) as tier:
            tier.write(writes_of(1))
            with self.waiting(port, lambda: list(tier.read([read_of(address(0), 5_000)]))) as found:
                assert list(tier.delete([address(0)])) == [True]
            assert found == [[Absent()]]

    def test_closing_does_not_wait_for_a_medium_that_hangs_and_keeps_the_directory_until_it_answers(
        self, tmp_path: Path
    ) -> None:
        port = FailingFiles()
        tier = DiskTier("disk", settings_of(tmp_path), port=port)
        with self.waiting(port, lambda: list(tier.write(writes_of(2)))) as found:
            tier.close()
            with pytest.raises(TierUnavailableError, match="closed"):
                tier.find([address(0)])
            with pytest.raises(ConfigError, match="in use"):
                DiskTier("disk", settings_of(tmp_path))
        assert found == [[Stored()] * 2]
        with opened(tmp_path) as again:
            expect_found(again, *writes_of(2))


def test_the_port_is_io_uring_where_there_is_one_and_the_statistics_say_so(tmp_path: Path) -> None:
    port = fastest_port()
    assert isinstance(port, RingFiles)
    port.close()
    with opened(tmp_path) as tier:
        assert tier.statistics().port == "io_uring"
        assert tier.statistics().direct == (tier._segments.granule > 1)
        assert tier.statistics().bytes_max == 2 * MIB
        tier.write(writes_of(1))
        assert tier.statistics().bytes_allocated == SEGMENT
