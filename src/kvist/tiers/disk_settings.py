"""What a disk tier is told, and how its budget is shared out between records and everything else."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """One disk tier.

    Attributes:
        directory: its own; is made if there is none.
        bytes_max: of all files in it together.
        bytes_free_min: must be left in the file system after a segment file is made.
        record_bytes_min: of the shortest record that will be stored: the shorter, the more room for the index.
        segment_bytes: length of the files that hold records; None: about a 64th of the budget. A directory keeps the
            length that it was made with.
    """

    directory: Path
    bytes_max: int
    bytes_free_min: int = 2**30
    record_bytes_min: int = 64 * 2**10
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
            return -(-self.segment_bytes // PLACE_ALIGNMENT) * PLACE_ALIGNMENT
        wanted = 1 << max(0, self.bytes_max // _SEGMENTS_WANTED - 1).bit_length()
        return max(_SEGMENT_BYTES_MIN, min(_SEGMENT_BYTES_MAX, wanted))

    def segments(self, segment_bytes: int) -> SegmentLimits:
        """What is left for records, cut into files of a given length.

        Raises:
            ConfigError: nothing is left.
        """
        if min(segment_bytes, self.record_bytes_min) <= 0 or self.bytes_free_min < 0:
            raise ConfigError(f"{self} has a length that is no length; give positive numbers of bytes")
        files = -(-self.bytes_max // segment_bytes)
        rest = self.bytes_max - _FIXED_BYTES - self.index.bytes_max - self.index.log_bytes_max
        rest = (rest - files * _SEGMENT_OVERHEAD_BYTES) // PLACE_ALIGNMENT * PLACE_ALIGNMENT
        if rest < place_bytes_for(self.record_bytes_min):
            needed = format_bytes(self.bytes_max - rest + place_bytes_for(self.record_bytes_min))
            given = format_bytes(self.bytes_max)
            raise ConfigError(f"{given} are too few for a disk tier in {self.directory}; give it {needed} or more")
        return SegmentLimits(bytes_max=rest, segment_bytes=segment_bytes, bytes_free_min=self.bytes_free_min)
