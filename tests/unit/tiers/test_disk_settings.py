"""How a disk tier's budget is shared out."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvist.base.errors import ConfigError
from kvist.tiers.disk_settings import DiskSettings

MIB, GIB = 2**20, 2**30
SETTINGS = DiskSettings(directory=Path("somewhere"), bytes_max=40 * GIB)


@pytest.mark.parametrize("bytes_max", [20 * MIB, 100 * MIB, GIB, 40 * GIB, 3000 * GIB])
@pytest.mark.parametrize("record_bytes_min", [4096, 64 * 2**10, MIB])
def test_what_is_left_for_records_and_what_is_not_make_the_budget(bytes_max: int, record_bytes_min: int) -> None:
    settings = replace(SETTINGS, bytes_max=bytes_max, record_bytes_min=record_bytes_min)
    limits = settings.segments(settings.segment_bytes_wanted)
    index = settings.index
    assert limits.bytes_max + index.bytes_max + index.log_bytes_max < bytes_max
    assert limits.bytes_max % 4096 == 0
    assert sum(map(limits.length, range(limits.segments))) == limits.bytes_max
    assert limits.bytes_max // record_bytes_min <= index.rows_max, "there is room for more records than rows"
    wanted = {4096: 0.87, 64 * 2**10: 0.95, MIB: 0.95}[record_bytes_min]
    assert limits.bytes_max > wanted * bytes_max


def test_segments_are_neither_too_many_nor_too_long() -> None:
    lengths = [replace(SETTINGS, bytes_max=each).segment_bytes_wanted for each in (MIB, GIB, 40 * GIB, 3000 * GIB)]
    assert lengths == [16 * MIB, 16 * MIB, GIB, GIB]
    assert replace(SETTINGS, segment_bytes=5000).segment_bytes_wanted == 8192


def test_a_budget_that_is_too_small_says_how_much_it_needs() -> None:
    small = replace(SETTINGS, bytes_max=100_000)
    with pytest.raises(ConfigError, match=r"97\.7 KiB are too few .* somewhere; give it .* or more"):
        small.segments(small.segment_bytes_wanted)


@pytest.mark.parametrize("field", ["record_bytes_min", "segment_bytes", "bytes_free_min", "bytes_max"])
def test_lengths_are_positive(field: str) -> None:
    settings = replace(SETTINGS, **{field: -1})
    with pytest.raises(ConfigError):
        settings.segments(settings.segment_bytes_wanted)
