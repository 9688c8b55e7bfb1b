"""Rows that were found, and which of them nothing on disk stands for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.files import FailingFiles
from fakes.tiers import BLUE, key_of
from kvist.tiers.disk_directory import INDEX, Directory
from kvist.tiers.disk_index import Index, Row
from kvist.tiers.disk_recovery import load_rows, open_index
from kvist.tiers.disk_segments import Segments
from kvist.tiers.disk_settings import DiskSettings

KIB = 2**10


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """A fresh one."""
    made = Directory(tmp_path)
    yield made
    made.close()


@pytest.fixture
def settings(tmp_path: Path) -> DiskSettings:
    """Of a small tier."""
    return DiskSettings(
        directory=tmp_path, bytes_max=2**20, bytes_free_min=0, record_bytes_min=4 * KIB, segment_bytes=64 * KIB
    )


@pytest.fixture
def segments(directory: Directory, settings: DiskSettings) -> Iterator[Segments]:
    """Its files, of which the first is there."""
    made = Segments(directory.fd, settings.segments(64 * KIB), FailingFiles())
    assert made.ensure(0) == 0
    yield made
    made.close()


@pytest.fixture
def index(directory: Directory, settings: DiskSettings) -> Iterator[Index]:
    """Its index."""
    made, lost = open_index(directory, settings)
    assert not lost
    yield made
    made.close()


def row(number: int, offset: int, version: int, length: int = 4 * KIB) -> Row:
    """A record at a place."""
    return Row(offset, length, version, length - 7, key_of(number), BLUE, 0.0, None, pinned=False)


@pytest.mark.parametrize(
    ("wrong", "lost"),
    [
        (row(1, 64 * KIB, 1), 1),  # in a file that is not there
        (row(1, 62 * KIB, 1), 1),  # at no multiple of 4096
        (row(1, 60 * KIB, 1, 8 * KIB), 1),  # over the end of a file
        (row(1, 2**40, 1), 1),  # far outside
        (row(1, 4 * KIB, 1, 8 * KIB), 1),  # under a later record
        (row(2, 32 * KIB, 1), 0),  # the earlier one of the same key: it was being replaced
        (row(2, 32 * KIB, 1)._replace(record_bytes=9000), 1),  # longer than its place
    ],
)
def test_what_is_not_true_is_dropped_for_good(index: Index, segments: Segments, wrong: Row, lost: int) -> None:
    right = [row(2, 8 * KIB, 2), row(3, 16 * KIB, 3)]
    index.put([right[1], wrong, right[0]])
    found = load_rows(index, segments, 100)
    assert list(found.rows) == right
    assert found.lost == lost
    assert list(index.rows()) == right


def test_of_more_rows_than_there_may_be_the_pinned_and_the_last_are_taken(index: Index, segments: Segments) -> None:
    rows = [row(number, number * 4 * KIB, number + 1) for number in range(10)]
    rows[2] = rows[2]._replace(pinned=True)
    index.put(rows)
    found = load_rows(index, segments, 6)
    assert found.lost == 4
    assert {each.number for each in found.rows} == {3, 6, 7, 8, 9, 10}
    assert list(index.rows()) == [rows[2], *rows[5:]]
    assert load_rows(index, segments, 0).lost == 6
    assert list(index.rows()) == []


def test_a_ruined_index_gives_way(directory: Directory, settings: DiskSettings, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(b"ruined" * 1000)
    (tmp_path / f"{INDEX}-wal").write_bytes(b"ruined" * 1000)
    index, lost = open_index(directory, settings)
    assert lost
    assert list(index.rows()) == []
    index.close()
