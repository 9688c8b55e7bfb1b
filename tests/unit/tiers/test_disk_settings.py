"""How a disk tier's budget is shared out."""

import re
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import parse_bytes
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
    lengths = [replace(SETTINGS, bytes_max=each).segment_bytes_wanted for each in (GIB, 40 * GIB, 3000 * GIB)]
    assert lengths == [16 * MIB, GIB, GIB]
    assert replace(SETTINGS, segment_bytes=5000).segment_bytes_wanted == 8192


@pytest.mark.parametrize("bytes_max", [MIB * 2**power for power in range(0, 41, 4)] + [2**60 - 1])
@pytest.mark.parametrize("sizes", [(4096,), (60_512, 369_152), (20 * MIB, 5000, 6000), (100 * MIB,)])
def test_every_budget_has_segments_for_records_of_every_length_or_is_refused(
    bytes_max: int, sizes: tuple[int, ...]
) -> None:
    settings = replace(
        SETTINGS, bytes_max=bytes_max, record_bytes_min=min(sizes), record_bytes_max=max(sizes), lengths=len(sizes)
    )
    segment_bytes = settings.segment_bytes_wanted
    assert segment_bytes % 4096 == 0
    assert segment_bytes >= max(sizes)
    limits = None
    is_little = bytes_max < 2 * len(sizes) * max(sizes) + 2 * MIB
    with suppress(ConfigError) if is_little else nullcontext():  # what is plenty may not be refused
        limits = settings.segments(segment_bytes)
    if limits is None:
        return
    assert limits.bytes_max // segment_bytes >= len(sizes), "what the books see are whole segments"
    assert limits.segments <= 99_999
    filled = limits.bytes_max // segment_bytes * (segment_bytes // max(sizes))
    assert filled * max(sizes) >= limits.bytes_max * (0.4 if limits.segments < 16 else 0.85)


def test_files_that_are_too_short_for_a_record_are_named() -> None:
    with pytest.raises(ConfigError, match=r"files of 1\.0 MiB, into which no record of 2\.0 MiB fits; empty it"):
        replace(SETTINGS, record_bytes_max=2 * MIB).segments(MIB)
    with pytest.raises(ConfigError, match=r"with files of 32\.0 GiB; give it .* or more, or empty it"):
        replace(SETTINGS, lengths=2).segments(32 * GIB)


@pytest.mark.parametrize("given", [1, 100_000, MIB])
@pytest.mark.parametrize("fields", [{}, {"record_bytes_max": 5 * MIB, "lengths": 3}, {"record_bytes_min": 4096}])
def test_the_budget_that_is_asked_for_is_enough(given: int, fields: dict[str, int]) -> None:
    asked = replace(SETTINGS, bytes_max=given, **fields)
    try:
        asked.segments(asked.segment_bytes_wanted)
    except ConfigError as error:
        found = re.search(r"give it ([\d.]+ \w+) or more", str(error))
        assert found is not None
        enough = replace(asked, bytes_max=int(1.05 * parse_bytes(found[1].replace(" ", ""))))  # it is rounded
        assert enough.segments(enough.segment_bytes_wanted).segments >= enough.lengths
    else:
        assert given == MIB


def test_a_budget_that_is_too_small_says_how_much_it_needs() -> None:
    small = replace(SETTINGS, bytes_max=100_000)
    with pytest.raises(ConfigError, match=r"97\.7 KiB are too few .* somewhere; give it .* or more"):
        small.segments(small.segment_bytes_wanted)


@pytest.mark.parametrize("field", ["record_bytes_min", "segment_bytes", "bytes_free_min", "bytes_max"])
def test_lengths_are_positive(field: str) -> None:
    settings = replace(SETTINGS, **{field: -1})
    with pytest.raises(ConfigError):
        settings.segments(settings.segment_bytes_wanted)
