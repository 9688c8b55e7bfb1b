"""The bytes of one placed tier, cut into extents of equal places.

    |  extent 0: class 24 KiB     |  extent 1: class 310 KiB    |  extent 2: free  | ...
    | place | place | place | rest|   place   |   place   | rest|                  |

Every extent belongs to one class (the length of its places) or to none; it belongs to none again as soon as its last
place is given back. So a class cannot fragment another one's bytes: what one extent has, any class may have next.
Each operation is O(1).

An extent may exist on paper only: a medium that others fill has no room for it. Those where nothing was ever stored
are *unproven*; when one turns out to be missing, all of them are shut until one is tried again and proves itself.

Laws:
    * Places in use never overlap, and none crosses the border of an extent.
    * No place is handed out in a shut extent.
    * With a single class every whole extent can be filled; lost are a rest smaller than a place in each extent, and
      what `bytes_max` has beyond the last whole extent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvist.base.units import rounded_up
from kvist.tiers.ports import Place

_RETRY_S = 60.0


@dataclass(slots=True, kw_only=True)
class _Extent:
    """Places 0 to `fresh` have been used since the extent got its class; `given` of them are free again."""

    start: int
    length: int = 0
    places: int = 0
    fresh: int = 0
    given: dict[int, None] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return self.fresh - len(self.given)


class Space:
    """Hands out places by length and takes them back; remembers nothing about what is in them.

    Attributes:
        extents: how many whole extents there are.
        bytes_used: of the places in use.
    """

    def __init__(self, *, bytes_max: int, extent_bytes: int, alignment: int) -> None:
        """Cuts [0, bytes_max) into extents.

        Args:
            bytes_max: no place ends beyond it.
            extent_bytes: of each extent, at least as long as the longest place; a multiple of `alignment`.
            alignment: of the places' offsets and lengths.
        """
        assert alignment > 0, f"an alignment of {alignment} bytes"
        assert extent_bytes > 0, f"extents of {extent_bytes} bytes"
        assert extent_bytes % alignment == 0, f"extents of {extent_bytes} bytes do not keep {alignment} bytes alignment"
        self.extents = max(0, bytes_max) // extent_bytes
        self.bytes_used = 0
        self._extent_bytes = extent_bytes
        self._alignment = alignment
        self._table = [_Extent(start=index * extent_bytes) for index in range(self.extents)]
        self._free = dict.fromkeys(range(self.extents))
        self._open: dict[int, dict[int, None]] = {}
        self._unproven = dict.fromkeys(range(self.extents))
        self._shut: dict[int, None] = {}
        self._shut_unix_s = 0.0

    def length_of(self, record_bytes: int) -> int:
        """Bytes of the place that a record needs."""
        return rounded_up(record_bytes, self._alignment)

    def why_never(self, record_bytes: int) -> str | None:
        """Why no place can ever hold such a record, even if nothing else were stored; None if one can."""
        if record_bytes <= 0:
            return f"a record of {record_bytes} bytes is empty"
        if self.length_of(record_bytes) > self._extent_bytes:
            return f"a record of {record_bytes} bytes is longer than an extent of {self._extent_bytes}"
        return None if self.extents else f"the budget has no room for one extent of {self._extent_bytes} bytes"

    def extent_of(self, offset: int) -> int:
        """Index of the extent in which a place lies."""
        return offset // self._extent_bytes

    def class_of(self, extent: int) -> int:
        """Length of the extent's places; 0 while it belongs to no class."""
        return self._table[extent].length

    def has_room(self, length: int) -> bool:
        """Whether `take` would find a place of this length."""
        return bool(self._free or self._open.get(length))

    def take(self, length: int) -> Place | None:
        """A place of this length, which is in use from now on; None while there is none."""
        opened = self._open.get(length)
        if opened:
            index = next(iter(opened))
        elif self._free:
            index = self._assign(next(iter(self._free)), length)
        else:
            return None
        extent = self._table[index]
        if extent.given:
            number = extent.given.popitem()[0]
        else:
            number = extent.fresh
            extent.fresh += 1
        self._fill(index, length)
        return Place(offset=extent.start + number * length, length=length)

    def claim(self, place: Place) -> str | None:
        """Marks a place that somebody chose earlier as in use; why that cannot be, or None when it is done."""
        index, length = self.extent_of(place.offset), place.length
        if length <= 0 or length % self._alignment or length > self._extent_bytes:
            return f"{place} has no length that places here have"
        if not 0 <= index < self.extents:
            return f"{place} is outside {self.extents} extents of {self._extent_bytes} bytes"
        number, rest = divmod(place.offset - self._table[index].start, length)
        if rest or number >= self._extent_bytes // length:
            return f"{place} is not where places of its length begin"
        if self._table[index].length not in {0, length}:
            return f"{place} overlaps others of {self._table[index].length} bytes"
        extent = self._table[index if self._table[index].length else self._assign(index, length)]
        if number >= extent.fresh:
            extent.given.update(dict.fromkeys(range(extent.fresh, number)))
            extent.fresh = number + 1
        elif number in extent.given:
            del extent.given[number]
        else:
            return f"{place} is in use already"
        self._fill(index, length)
        self.prove(place)
        return None

    def give(self, place: Place) -> None:
        """Takes back a place that was in use."""
        index = self.extent_of(place.offset)
        extent = self._table[index]
        number = (place.offset - extent.start) // place.length
        assert place.length == extent.length, f"{place} is not of the class of its extent, {extent.length}"
        assert number < extent.fresh, f"{place} was never in use"
        assert number not in extent.given, f"{place} is not in use"
        extent.given[number] = None
        self.bytes_used -= place.length
        if extent.used == 0:
            self._open.get(place.length, {}).pop(index, None)
            self._table[index] = extent = _Extent(start=extent.start)
        if index not in self._shut:
            self._offer(index, extent)

    def prove(self, place: Place) -> None:
        """Something was stored there: the extent exists, and so may others that were thought to be missing."""
        index = self.extent_of(place.offset)
        if index in self._unproven:
            del self._unproven[index]
            while self._shut:
                self._reopen(next(iter(self._shut)))

    def shut(self, place: Place, now_unix_s: float) -> None:
        """The medium has no room for the extent of a place: for a while, none is used where nothing was ever stored.

        Does nothing when something was stored in this one: then it exists, and what is wrong is something else.
        """
        if self.extent_of(place.offset) not in self._unproven:
            return
        self._shut_unix_s = now_unix_s
        for index in self._unproven:
            self._shut[index] = None
            self._free.pop(index, None)
            self._open.get(self._table[index].length, {}).pop(index, None)

    def retry(self, now_unix_s: float) -> None:
        """From time to time uses one of the extents that are shut, to see whether the medium has room again."""
        if not self._shut or 0 <= now_unix_s - self._shut_unix_s < _RETRY_S:  # the calendar may jump either way
            return
        self._shut_unix_s = now_unix_s
        empty = next((index for index in self._shut if not self._table[index].length), None)
        if empty is not None:
            self._reopen(empty)

    def places(self, extent: int) -> Sequence[int]:
        """Offsets of the places in use in one extent, ascending."""
        one = self._table[extent]
        return [one.start + number * one.length for number in range(one.fresh) if number not in one.given]

    def audit(self, places: Iterable[Place]) -> None:
        """Compares with the places that their owners believe to be in use.

        Raises:
            AssertionError: naming the first difference.
        """
        expected = sorted((place.offset, place.length) for place in places)
        found = [(at, one.length) for index, one in enumerate(self._table) for at in self.places(index)]
        assert found == expected, f"in use are {found[:5]}..., their owners say {expected[:5]}..."
        ends = [(at, at + length) for at, length in found]
        for (_, end), (after, _) in pairwise(ends):
            assert end <= after, f"a place that ends at {end} overlaps the one at {after}"
        assert self.bytes_used == sum(length for _, length in found), f"{self.bytes_used} bytes are counted"
        for index, extent in enumerate(self._table):
            is_shut, is_free = index in self._shut, index in self._free
            assert (extent.used == 0) == (extent.length == 0) == (is_free or (is_shut and not extent.used)), (
                f"extent {index}: {extent}, free: {is_free}, shut: {is_shut}"
            )
            assert not (is_shut and (is_free or index not in self._unproven)), f"extent {index} is shut and in use"
            is_open = index in self._open.get(extent.length, {})
            wanted = 0 < extent.used < extent.places and not is_shut
            assert is_open == wanted, f"extent {index} is open: {is_open}, {extent}"

    def _reopen(self, index: int) -> None:
        del self._shut[index]
        self._offer(index, self._table[index])

    def _offer(self, index: int, extent: _Extent) -> None:
        """Lets places be taken from an extent that has some."""
        if not extent.length:
            self._free[index] = None
        elif extent.used < extent.places:
            self._open.setdefault(extent.length, {})[index] = None

    def _assign(self, index: int, length: int) -> int:
        del self._free[index]
        extent = self._table[index]
        extent.length, extent.places = length, self._extent_bytes // length
        self._open.setdefault(length, {})[index] = None
        return index

    def _fill(self, index: int, length: int) -> None:
        """Counts a place that was just taken; a full extent is no longer open."""
        self.bytes_used += length
        extent = self._table[index]
        if extent.used == extent.places:
            del self._open[length][index]
