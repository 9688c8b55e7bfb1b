"""The rows in SQLite: committed when a call returns, bounded, and honest about ruin."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.tiers import BLUE, key_of
from kvist.tiers.disk_index import LOG_BYTES_MIN, Index, IndexLimits, Row, is_ruined

LIMITS = IndexLimits(rows_max=2_000, log_bytes_max=LOG_BYTES_MIN)


def row(number: int, offset: int | None = None, version: int | None = None) -> Row:
    """One of many rows."""
    place = number * 8192 if offset is None else offset
    return Row(place, 8192, version or number, 5000, key_of(number), BLUE, 1.5 * number, None, pinned=False)


def opened(path: Path, limits: IndexLimits = LIMITS) -> Index:
    """The index of a directory."""
    return Index(path / "index", limits, segment_bytes=2**20)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    """An empty one."""
    made = opened(tmp_path)
    yield made
    made.close()


def copied(path: Path, target: Path) -> Path:
    """The files of an index as they are now, as a process that dies leaves them."""
    target.mkdir()
    for each in path.iterdir():
        if each.is_file():
            (target / each.name).write_bytes(each.read_bytes())
    return target


def test_rows_come_back_as_they_were_in_the_order_of_writing(index: Index) -> None:
    rows = [row(3), row(1), row(2)._replace(expires_unix_s=7.5, pinned=True)]
    index.put(rows)
    assert list(index.rows()) == [row(1), rows[2], row(3)]
    index.put([row(9, offset=8192, version=10)])
    assert list(index.rows()) == [rows[2], row(3), row(9, offset=8192, version=10)]


def test_what_a_call_did_outlives_a_process_that_is_killed(index: Index, tmp_path: Path) -> None:
    rows = [row(number) for number in range(1, 301)]
    index.put(rows)
    index.drop([each.offset for each in rows[::2]])
    index.keep([rows[1].offset], pinned=True, expires_unix_s=9.0)
    again = opened(copied(tmp_path, tmp_path / "copy"))
    assert list(again.rows()) == [rows[1]._replace(pinned=True, expires_unix_s=9.0), *rows[3::2]]
    again.close()


def test_nothing_to_do_is_done(index: Index) -> None:
    index.put([])
    index.drop([])
    index.keep([], pinned=True, expires_unix_s=None)
    index.drop([12345])
    assert list(index.rows()) == []


@pytest.mark.parametrize("size", [1, 16, 500])
def test_database_and_log_stay_within_their_bounds_when_full_and_rewritten(
    index: Index, tmp_path: Path, size: int
) -> None:
    order = [number * 1_103 % 2_000 for number in range(2_000)]
    database = log = 0
    for turn in range(2):
        for start in range(0, 2_000, size):
            part = order[start : start + size]
            if turn:
                index.drop([number * 8192 for number in part])
            index.put([row(number, version=turn * 2_000 + start + 1) for number in part])
            database = max(database, (tmp_path / "index").stat().st_size)
            log = max(log, (tmp_path / "index-wal").stat().st_size)
    assert 2_000 * 100 < database <= LIMITS.bytes_max
    assert 0 < log <= LIMITS.log_bytes_max
    assert len(list(index.rows())) == 2_000


def test_more_rows_than_there_is_room_for_are_refused_whole(tmp_path: Path) -> None:
    index = opened(tmp_path, IndexLimits(rows_max=1, log_bytes_max=LOG_BYTES_MIN))
    with pytest.raises(sqlite3.OperationalError, match="full"):
        index.put([row(number) for number in range(1, 10_000)])
    few = [row(number) for number in range(20_000, 20_100)]
    index.put(few)
    assert list(index.rows()) == few
    index.close()


@pytest.mark.parametrize("failing", [1, 5, 9, 12])
@pytest.mark.parametrize(
    "then",
    [
        lambda index: index.drop([]),
        lambda index: index.drop([row(3).offset]),
        lambda index: index.keep([], pinned=True, expires_unix_s=None),
        lambda index: index.put([row(20)]),
        lambda index: index.close(),
    ],
)
def test_rows_of_a_call_that_failed_are_not_there_later(
    tmp_path: Path, failing: int, then: Callable[[Index], object]
) -> None:
    index = opened(tmp_path)
    assert LIMITS.statement_rows < 9, "the call is to fail in its first statement, its last, and between"
    index.put([row(0)])
    index._database.execute(
        f"CREATE TEMP TRIGGER refuse BEFORE INSERT ON records WHEN NEW.number = {failing} "
        "BEGIN SELECT RAISE(ABORT, 'as told'); END"
    )
    with pytest.raises(sqlite3.Error, match="as told"):
        index.put([row(number) for number in range(1, 13)])
    then(index)
    again = opened(copied(tmp_path, tmp_path / "copy"))
    assert {each.offset for each in again.rows() if isinstance(each, Row)} <= {row(0).offset, row(20).offset}
    again.close()


def test_rows_that_could_not_be_dropped_after_a_failure_are_dropped_when_that_works(index: Index) -> None:
    index._database.execute(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON records WHEN NEW.number = 12 BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(sqlite3.Error, match="no"):
        index.put([row(number) for number in range(1, 13)])
    assert len(list(index.rows())) > 0, "nothing was left to be dropped"
    index._database.execute("PRAGMA query_only = 1")
    for call in (lambda: index.drop([]), lambda: index.put([row(20)])):
        with pytest.raises(sqlite3.Error):
            call()
    index._database.execute("PRAGMA query_only = 0")
    index.put([row(1, version=30)])
    assert list(index.rows()) == [row(1, version=30)]


def test_segments_keep_the_length_that_they_were_made_with(tmp_path: Path) -> None:
    opened(tmp_path).close()
    again = Index(tmp_path / "index", LIMITS, segment_bytes=2**30)
    assert again.segment_bytes == 2**20
    again.close()


def test_what_the_budget_was_last_shared_out_by_is_there_for_others(tmp_path: Path) -> None:
    for least in (4096, 8192, 8192):
        index = opened(tmp_path)
        index.remember(least)
        index.close()
        reader = sqlite3.connect(tmp_path / "index")
        assert reader.execute("SELECT record_bytes_min FROM settings").fetchall() == [(least,)]
        reader.close()


def test_an_index_that_was_larger_is_made_smaller(tmp_path: Path) -> None:
    large = opened(tmp_path)
    large.put([row(number) for number in range(1, 2_000)])
    large.drop([row(number).offset for number in range(20, 2_000)])
    large.close()
    small = IndexLimits(rows_max=20, log_bytes_max=LOG_BYTES_MIN)
    again = opened(tmp_path, small)
    again.shrink()
    assert (tmp_path / "index").stat().st_size <= small.bytes_max
    assert list(again.rows()) == [row(number) for number in range(1, 20)]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        again.put([row(number) for number in range(1_000, 3_000)])
    assert (tmp_path / "index").stat().st_size <= small.bytes_max, "the bound holds from now on"
    again.close()


@pytest.mark.parametrize(
    "values",
    [
        "0, 8192, 1, 5000, x'00', 0, 0, x'00', x'00', 1.0, NULL, 2",
        "0, 8192, 1, 5000, x'00', 0, 9, x'00', x'00', 1.0, NULL, 0",
        "0, 8192, 1, 9000, x'00', 0, 0, x'00', x'00', 1.0, NULL, 0",
        "-1, 8192, 1, 5000, x'00', 0, 0, x'00', x'00', 1.0, NULL, 0",
        "0, 8192, 'one', 5000, x'00', 0, 0, x'00', x'00', 1.0, NULL, 0",
        "0, 8192, 1, 5000, 'text', 0, 0, x'00', x'00', 1.0, NULL, 0",
        "0, 8192, NULL, 5000, x'00', 0, 0, x'00', x'00', 'soon', NULL, 0",
    ],
)
def test_a_row_that_makes_no_sense_is_only_a_place(index: Index, values: str) -> None:
    index._database.execute(f"INSERT INTO records VALUES ({values})")  # noqa: S608  the values above
    assert list(index.rows()) == [int(values.partition(",")[0])]


def damage_first_bytes(path: Path) -> None:
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])


def damage_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:8192] = bytes(range(256)) * 16
    path.write_bytes(content)


def replace_by_text(path: Path) -> None:
    path.write_text("this is no database, whatever its name says " * 100)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def another_table(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("ALTER TABLE records RENAME COLUMN hash TO digest")
    database.commit()
    database.close()


def another_version(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 9")
    database.close()


RUINS = [damage_first_bytes, damage_middle, replace_by_text, cut, another_version, another_table]


@pytest.mark.parametrize("ruin", RUINS)
def test_ruin_is_told_from_what_will_pass(tmp_path: Path, ruin: object) -> None:
    index = opened(tmp_path)
    index.put([row(number) for number in range(1, 200)])
    index.close()
    assert callable(ruin)
    ruin(tmp_path / "index")
    with pytest.raises(sqlite3.Error) as caught:  # noqa: PT012  an iterator fails as late as it likes
        again = opened(tmp_path)
        try:
            list(again.rows())
        finally:
            again.close()
    assert is_ruined(caught.value)


def test_an_index_that_another_program_has_open_is_not_ruined(tmp_path: Path) -> None:
    opened(tmp_path).close()
    other = sqlite3.connect(tmp_path / "index")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError) as caught:
        opened(tmp_path)
    assert not is_ruined(caught.value)
    other.close()
