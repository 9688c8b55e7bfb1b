"""Who owns which bytes of the shared memory that loads and stores pass through.

Knows offsets and owners; does not know the memory itself. A buffer belongs to one named owner until that owner gives
it back, which it does when the I/O has returned and not before: a load that is given up at its deadline still owns the
bytes into which a slow tier may write (law 8).

Buffers lie in a `Space` of their own, so that lengths do not fragment each other, and begin at multiples of 4,096
bytes, so that a disk may write from and read into them directly.
"""

from collections.abc import Collection, Mapping

from kvist.fabric.messages import Ticket
from kvist.fabric.space import Space
from kvist.tiers.ports import Place
from kvist.tiers.regions import Buffer, RegionId

STAGING_ALIGNMENT = 4096


class Staging:
    """Hands out the bytes of one region and takes them back. O(1) per call; called under one lock."""

    def __init__(self, region: RegionId, size: int, *, extent_bytes: int) -> None:
        """Starts with everything free.

        Args:
            region: of which the buffers are parts.
            size: bytes of the region.
            extent_bytes: multiple of 4,096, at least as long as the longest record; see `space`.
        """
        self.bytes_max = size
        self._region = region
        self._space = Space(bytes_max=size, extent_bytes=extent_bytes, alignment=STAGING_ALIGNMENT)
        self._owners: dict[int, tuple[Ticket, Buffer]] = {}

    @property
    def bytes_used(self) -> int:
        """Bytes that are owned now, alignment included."""
        return self._space.bytes_used

    def why_never(self, length: int) -> str | None:
        """Why a buffer of this length can never be had, however long one waits; None if it can."""
        return self._space.why_never(length)

    def take(self, owner: Ticket, length: int) -> Buffer | None:
        """A buffer of exactly `length` bytes that is the owner's from now on; None while there is no room."""
        if self._space.why_never(length) is not None:
            return None
        place = self._space.take(self._space.length_of(length))
        if place is None:
            return None
        buffer = Buffer(region=self._region, offset=place.offset, length=length)
        self._owners[place.offset] = (owner, buffer)
        return buffer

    def give(self, buffer: Buffer, owner: Ticket) -> None:
        """Ends the owner's use of a buffer; no I/O may touch it any more."""
        held = self._owners.get(buffer.offset)
        assert held == (owner, buffer), f"{buffer} is not {owner}'s to give: {held}"
        del self._owners[buffer.offset]
        self._space.give(self._place(buffer))

    def owners(self) -> Mapping[Ticket, int]:
        """Buffers by owner."""
        counts: dict[Ticket, int] = {}
        for owner, _ in self._owners.values():
            counts[owner] = counts.get(owner, 0) + 1
        return counts

    def audit(self, live: Collection[Ticket]) -> None:
        """Proves that buffers are disjoint and owned by those that are alive.

        Raises:
            AssertionError: naming the first difference.
        """
        dead = {owner for owner, _ in self._owners.values()} - set(live)
        assert not dead, f"staging is owned by {dead}, who are gone"
        self._space.audit(self._place(buffer) for _, buffer in self._owners.values())

    def _place(self, buffer: Buffer) -> Place:
        return Place(offset=buffer.offset, length=self._space.length_of(buffer.length))
