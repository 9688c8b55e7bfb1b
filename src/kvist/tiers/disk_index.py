"""What lies where in the segment files, in an SQLite database that survives `kill -9`.

One row per record, under the offset of its place. Each batch of rows is one statement, and so one transaction: SQLite
gives up the interpreter's lock in every step, and to get it back may take 5 ms beside a thread that computes.

The database is in WAL mode and synchronises at checkpoints only: what was committed survives the process; a loss of
power may take the last rows, or leave rows whose bytes never reached the medium, which the records' checksums show.
Checkpoints are made here, when the log is about to outgrow its bound.

Law: rows of a call that failed are not there for anybody later. What a failed `put` may have left is dropped before
anything else is done, and nothing is acknowledged before that.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, get_args

from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Kind, Namespace, TenantTag

_VERSION: Final = 1
_LEAF_BYTES: Final = 4096
LOG_BYTES_MIN: Final = 256 * 2**10
_LOG_FRAME_BYTES: Final = _LEAF_BYTES + 24
_LOG_FRAMES_PER_ROW: Final = 5
_LOG_FRAMES_PER_STATEMENT: Final = 8
"""At worst: a row changes one leaf, and when the tree is balanced two beside it, and those above and what is free."""

_ROW_BYTES: Final = 320
_FIXED_BYTES: Final = 32 * _LEAF_BYTES
_STATEMENT_ROWS_MAX: Final = 64
_RUINED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})
_COLUMNS: Final = (
    "place, place_bytes, number, record_bytes, namespace, kv_group, kind, hash, tenant, created, expires, pinned"
)
_ROW: Final = f"({', '.join('?' * (_COLUMNS.count(',') + 1))})"
_KINDS: Final = get_args(Kind)
_INTEGER_MAX: Final = 2**62

T = TypeVar("T")


class Row(NamedTuple):
    """One record.

    Attributes:
        offset, place_bytes: of its place in the tier.
        number: rows that were written later have higher ones.
    """

    offset: int
    place_bytes: int
    number: int
    record_bytes: int
    key: BlockKey
    tenant: TenantTag
    created_unix_s: float
    expires_unix_s: float | None
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLimits:
    """How large the index may become.

    Attributes:
        rows_max: records.
        log_bytes_max: of the log beside the database: the longer, the fewer checkpoints, each of which waits for the
            medium; at least `LOG_BYTES_MIN`.
    """

    rows_max: int
    log_bytes_max: int

    @property
    def bytes_max(self) -> int:
        """Of the database alone; random insertion leaves its pages two thirds full."""
        return _FIXED_BYTES + self.rows_max * _ROW_BYTES

    @property
    def statement_rows(self) -> int:
        """Rows that one statement may change: half of the log at most."""
        frames = self.log_bytes_max // 2 // _LOG_FRAME_BYTES - _LOG_FRAMES_PER_STATEMENT
        return min(_STATEMENT_ROWS_MAX, frames // _LOG_FRAMES_PER_ROW)


class Index:
    """The rows on disk. One thread at a time; any thread.

    Attributes:
        segment_bytes: how long segment files are: as it was when the index was made, since places depend on it.
    """

    def __init__(self, path: Path, limits: IndexLimits, *, segment_bytes: int) -> None:
        """Opens the database, and makes its table if it is empty.

        Args:
            path: of the database; an empty file is an empty database.
            limits: how large it may become.
            segment_bytes: how long segment files should be, a multiple of 4096.

        Raises:
            sqlite3.Error: it is damaged, of another version, or cannot be used.
        """
        self._limits = limits
        self._log = path.with_name(path.name + "-wal")
        self._doubtful: set[int] = set()  # offsets whose rows may be there, and must not be
        self._log_room = 0  # bytes by which the log may certainly grow
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            self.segment_bytes = self._prepare(limits, segment_bytes)
        except sqlite3.Error:
            self._database.close()
            raise

    def _prepare(self, limits: IndexLimits, segment_bytes: int) -> int:
        leaves_max = limits.bytes_max // _LEAF_BYTES
        for pragma in (
            f"page_size = {_LEAF_BYTES}",
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "temp_store = MEMORY",
            "wal_autocheckpoint = 0",
            f"max_page_count = {leaves_max}",
        ):
            self._database.execute(f"PRAGMA {pragma}").fetchall()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._database.execute(
                f"CREATE TABLE IF NOT EXISTS records (place INTEGER PRIMARY KEY, {_COLUMNS.partition(', ')[2]})"
            )
            self._database.execute(f"PRAGMA application_id = {segment_bytes // _LEAF_BYTES}")
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            raise sqlite3.DatabaseError(f"the index is of version {version}, not {_VERSION}")
        self._database.execute("CREATE TABLE IF NOT EXISTS settings (one INTEGER PRIMARY KEY, record_bytes_min)")
        (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the index is damaged: {verdict}")
        self._checkpoint()
        (leaves,) = self._database.execute("PRAGMA application_id").fetchone()
        if leaves <= 0:
            raise sqlite3.DatabaseError(f"the index tells of segments of {leaves} times {_LEAF_BYTES} bytes")
        return int(leaves) * _LEAF_BYTES

    def shrink(self) -> None:
        """Gives back what the database has beyond its bound, once no more rows are there than there may be.

        Until then a budget that was larger once is not kept, since rows are still there that nobody has room for.

        Raises:
            sqlite3.Error: it is as large as before.
        """
        leaves_max = self._limits.bytes_max // _LEAF_BYTES
        (leaves,) = self._database.execute("PRAGMA page_count").fetchone()
        if leaves > leaves_max:
            self._database.execute("VACUUM")
            self._checkpoint()
            self._log_room = 0
            self._database.execute(f"PRAGMA max_page_count = {leaves_max}").fetchall()  # refused while it was larger

    def remember(self, record_bytes_min: int) -> None:
        """Notes what the budget is shared out by, for whoever opens the directory without knowing its records.

        Raises:
            sqlite3.Error: it is not noted.
        """
        (found,) = self._database.execute("SELECT (SELECT record_bytes_min FROM settings)").fetchone()
        if found != record_bytes_min:
            self._make_room(_LOG_FRAMES_PER_STATEMENT * _LOG_FRAME_BYTES)
            self._log_room -= _LOG_FRAMES_PER_STATEMENT * _LOG_FRAME_BYTES
            self._database.execute("REPLACE INTO settings (one, record_bytes_min) VALUES (1, ?)", [record_bytes_min])

    def rows(self) -> Iterator[Row | int]:
        """Every row, those written first first; of one that makes no sense only the offset."""
        for values in self._database.execute(f"SELECT {_COLUMNS} FROM records ORDER BY number"):  # noqa: S608  constant
            yield _row_of(values) or values[0]

    def put(self, rows: Sequence[Row]) -> None:
        """Adds rows, or replaces those at the same offsets; each is committed when this returns.

        Raises:
            sqlite3.Error: all are given up, and what was at their offsets before.
        """
        self.drop([])
        self._doubtful.update(row.offset for row in rows)
        for part in self._parts(rows):
            values = ", ".join([_ROW] * len(part))
            sql = f"REPLACE INTO records ({_COLUMNS}) VALUES {values}"  # noqa: S608  question marks
            self._database.execute(sql, [value for row in part for value in _values_of(row)])
        self._doubtful.clear()

    def drop(self, offsets: Sequence[int]) -> None:
        """Removes rows; each is gone for good when this returns.

        Raises:
            sqlite3.Error: some, or all, are still there.
        """
        for part in self._parts([*self._doubtful, *offsets]):
            marks = ", ".join("?" * len(part))
            self._database.execute(f"DELETE FROM records WHERE place IN ({marks})", part)  # noqa: S608  question marks
        self._doubtful.clear()

    def keep(self, offsets: Sequence[int], *, pinned: bool, expires_unix_s: float | None) -> None:
        """Sets pin and expiry of rows.

        Raises:
            sqlite3.Error: of some, or all, they are as before.
        """
        self.drop([])
        for part in self._parts(offsets):
            marks = ", ".join("?" * len(part))
            sql = f"UPDATE records SET pinned = ?, expires = ? WHERE place IN ({marks})"  # noqa: S608  question marks
            self._database.execute(sql, [pinned, expires_unix_s, *part])

    def close(self) -> None:
        """Ends all use.

        Raises:
            sqlite3.Error: the last checkpoint failed; what was committed is in the log and stays.
        """
        try:
            self.drop([])
        finally:
            self._database.close()

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """What each statement is about, once there is room for it in the log."""
        for start in range(0, len(items), self._limits.statement_rows):
            part = items[start : start + self._limits.statement_rows]
            frames = len(part) * _LOG_FRAMES_PER_ROW + _LOG_FRAMES_PER_STATEMENT
            self._make_room(frames * _LOG_FRAME_BYTES)
            self._log_room -= frames * _LOG_FRAME_BYTES
            yield part

    def _make_room(self, wanted: int) -> None:
        if self._log_room < wanted:  # by the worst case; it has hardly ever come to that
            self._log_room = self._limits.log_bytes_max - self._log_bytes()
        if self._log_room < wanted:
            self._checkpoint()
            self._log_room = self._limits.log_bytes_max - self._log_bytes()

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except FileNotFoundError:
            return 0

    def _checkpoint(self) -> None:
        """Brings the log into the database and empties it; one that cannot be emptied must not grow."""
        (busy, *_) = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("the index is in use by someone else")


def is_ruined(error: sqlite3.Error) -> bool:
    """Whether an index that fails so will never work again, rather than not now."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF in _RUINED


def _values_of(row: Row) -> tuple[object, ...]:
    key = row.key
    names = (key.namespace, key.group, _KINDS.index(key.kind), key.hash, row.tenant)
    times = (row.created_unix_s, row.expires_unix_s)
    return (row.offset, row.place_bytes, row.number, row.record_bytes, *names, *times, row.pinned)


def _row_of(values: tuple[object, ...]) -> Row | None:
    """A row from what the database holds, which may be anything."""
    match values:
        case (
            int(offset),
            int(place_bytes),
            int(number),
            int(record_bytes),
            bytes(namespace),
            int(group),
            int(kind),
            bytes(block_hash),
            bytes(tenant),
            float(created),
            float() | None as expires,
            (0 | 1) as pinned,
        ) if 0 <= offset < _INTEGER_MAX and 0 < record_bytes <= place_bytes < _INTEGER_MAX and 0 <= kind < len(_KINDS):
            key = BlockKey(Namespace(namespace), GroupId(group), _KINDS[kind], BlockHash(block_hash))
            whose = TenantTag(tenant)
            return Row(offset, place_bytes, number, record_bytes, key, whose, created, expires, bool(pinned))
        case _:
            return None
