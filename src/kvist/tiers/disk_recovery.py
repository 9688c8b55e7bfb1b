"""What a disk tier finds when it starts: an index that works or none, and the rows that are true of the files."""

import sqlite3
from typing import NamedTuple

from kvist.tiers.disk_directory import Directory
from kvist.tiers.disk_index import Index, Row, is_ruined
from kvist.tiers.disk_rows import PLACE_ALIGNMENT, Rows, place_of
from kvist.tiers.disk_segments import Segments
from kvist.tiers.disk_settings import DiskSettings


class Recovered(NamedTuple):
    """Rows, and how many there were besides: that nothing on disk stands for, or that there is no room for."""

    rows: Rows
    lost: int


def open_index(directory: Directory, settings: DiskSettings) -> tuple[Index, bool]:
    """Opens the index of a directory; one that is ruined gives way to an empty one.

    Returns:
        The index, and whether another one was lost.

    Raises:
        sqlite3.Error: it cannot be used now.
        OSError: the same.
    """
    limits, wanted = settings.index, settings.segment_bytes_wanted
    try:
        return Index(directory.prepare_index(), limits, segment_bytes=wanted), False
    except sqlite3.Error as error:
        if not is_ruined(error):
            raise
    directory.forget_index()
    return Index(directory.prepare_index(), limits, segment_bytes=wanted), True


def load_rows(index: Index, segments: Segments, rows_max: int) -> Recovered:
    """Reads the rows whose records are on disk, and drops all others from the index.

    Of more than `rows_max` those stay that are pinned, and then those that were written last.

    Raises:
        sqlite3.Error: the index cannot be read or changed.
    """
    rows, lost = Rows(segments.limits.segment_bytes), 0
    wrong: list[int] = []
    for row in list(index.rows()):
        if isinstance(row, Row) and _is_true(row, segments):
            replaced = rows.restore(row)
            wrong += [each.offset for each in replaced]
            lost += sum(each.key != row.key for each in replaced)  # the others were being replaced
        else:
            wrong.append(row.offset if isinstance(row, Row) else row)
            lost += 1
    surplus = sorted(rows, key=lambda row: (row.pinned, row.number))[: max(0, len(rows) - rows_max)]
    rows.remove(surplus)
    index.drop([*wrong, *(row.offset for row in surplus)])
    index.shrink()
    lost += len(surplus)
    return Recovered(rows, lost)


def _is_true(row: Row, segments: Segments) -> bool:
    place = place_of(row)
    is_whole = place.offset % PLACE_ALIGNMENT == 0 and segments.limits.allow(place)
    return is_whole and segments.holds(place.offset, place.length)
