"""What a disk tier is told, and how its budget is shared out between records and everything else."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes, rounded_up
from kvist.tiers.disk_index import LOG_BYTES_MIN, IndexLimits
from kvist.tiers.disk_rows import PLACE_ALIGNMENT, place_bytes_for
from kvist.tiers.disk_segments import SegmentLimits

_FIXED_BYTES: Final = 96 * 2**10
"""The directory itself, lock, version, and the probe of direct I/O."""

_SEGMENT_OVERHEAD_BYTES: Final = 8192
"""What a file system may need to remember where a file lies."""

_LOG_SHARE: Final = 64
_LOG_BYTES_MAX: Final = 16 * 2**20
"""A checkpoint takes as long as writing 10 to 50 MB: with such a log there is one for some gigabytes of records."""

_SEGMENT_BYTES_MIN: Final = 16 * 2**20
_SEGMENT_BYTES_MAX: Final = 2**30
_SEGMENTS_WANTED: Final = 64
_SEGMENTS_MIN: Final = 8
"""For each length of record: a segment has places of one length only."""

_SEGMENTS_MAX: Final = 2**16
"""Files have numbers of five digits, each of them is open, and the books remember each."""

_SEARCH_BYTES: Final = 64 * 2**10
_SEARCH_STEP: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """One disk tier.

    Attributes:
        directory: its own; is made if there is none.
        bytes_max: of all files in it together.
        bytes_free_min: must be left in the file system after a segment file is made.
        record_bytes_min: of the shortest record that will be stored: the shorter, the more room for the index.
        record_bytes_max: of the longest one, which must fit into a segment; None: as long as the shortest.
        lengths: how many lengths of places there will be, each of which needs a segment of its own.
        segment_bytes: length of the files that hold records; None: about a 64th of the budget, less in a small one. A
            directory keeps the length that it was made with.
    """

    directory: Path
    bytes_max: int
    bytes_free_min: int = 2**30
    record_bytes_min: int = 64 * 2**10
    record_bytes_max: int | None = None
    lengths: int = 1
    segment_bytes: int | None = None

    @property
    def index(self) -> IndexLimits:
        """Room for the rows of as many records as could lie there."""
        rows_max = max(1, self.bytes_max // place_bytes_for(max(1, self.record_bytes_min)))
        log_bytes_max = max(LOG_BYTES_MIN, min(_LOG_BYTES_MAX, self.bytes_max // _LOG_SHARE))
        return IndexLimits(rows_max=rows_max, log_bytes_max=log_bytes_max)

    @property
    def segment_bytes_wanted(self) -> int:
        """Length of segment files in a new directory."""
        if self.segment_bytes is not None:
            return rounded_up(self.segment_bytes, PLACE_ALIGNMENT)
        usual = max(_SEGMENT_BYTES_MIN, min(_SEGMENT_BYTES_MAX, _power_of_two(self.bytes_max // _SEGMENTS_WANTED)))
        small = self._bytes_left // (_SEGMENTS_MIN * max(1, self.lengths))
        whole = min(usual, small) // self._longest * self._longest  # else the rest of each would be lost
        return max(self._longest, whole, _power_of_two(self.bytes_max // _SEGMENTS_MAX))

    @property
    def _longest(self) -> int:
        """Bytes of the longest place."""
        return place_bytes_for(max(1, self.record_bytes_min, self.record_bytes_max or 0))

    @property
    def _bytes_left(self) -> int:
        """For segments, with what the file system needs to remember them."""
        return self.bytes_max - _FIXED_BYTES - self.index.bytes_max - self.index.log_bytes_max

    def segments(self, segment_bytes: int) -> SegmentLimits:
        """What is left for records, cut into files of a given length.

        Raises:
            ConfigError: they are too short for the longest record, or too few for records of all lengths.
        """
        if min(segment_bytes, self.record_bytes_min, self.lengths) <= 0 or self.bytes_free_min < 0:
            raise ConfigError(f"{self} has a length that is no length; give positive numbers of bytes")
        if segment_bytes < self._longest:
            raise ConfigError(
                f"{self.directory} has files of {format_bytes(segment_bytes)}, into which no record of "
                f"{format_bytes(self._longest)} fits; empty it, or choose another directory for this tier"
            )
        rest = self._room(segment_bytes)
        if rest < self.lengths * segment_bytes:
            raise ConfigError(self._too_few(segment_bytes))
        return SegmentLimits(bytes_max=rest, segment_bytes=segment_bytes, bytes_free_min=self.bytes_free_min)

    def _room(self, segment_bytes: int) -> int:
        """Bytes for places."""
        files = -(-self.bytes_max // segment_bytes)
        return (self._bytes_left - files * _SEGMENT_OVERHEAD_BYTES) // PLACE_ALIGNMENT * PLACE_ALIGNMENT

    def _too_few(self, segment_bytes: int) -> str:
        """Says what budget would do."""
        is_new = segment_bytes == self.segment_bytes_wanted
        more = replace(self, bytes_max=max(_SEARCH_BYTES, self.bytes_max))
        while more._room(segment_bytes) < self.lengths * segment_bytes:  # noqa: SLF001  of the same class
            more = replace(more, bytes_max=more.bytes_max + more.bytes_max // _SEARCH_STEP)
            segment_bytes = more.segment_bytes_wanted if is_new else segment_bytes
        files = "" if is_new else f" with files of {format_bytes(segment_bytes)}"
        remedy = f"give it {format_bytes(more.bytes_max)} or more{'' if is_new else ', or empty it'}"
        return f"{format_bytes(self.bytes_max)} are too few for a disk tier in {self.directory}{files}; {remedy}"


def _power_of_two(least: int) -> int:
    """The smallest that is not less."""
    return 1 << max(0, least - 1).bit_length()
