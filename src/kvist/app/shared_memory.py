"""Shared memory for tiers and staging, refused while it can be: a region is touched when it is made.

Who takes more than is free is not told so by the system: it, or a neighbour, is killed.
"""

from collections.abc import Callable

from kvist.app.memory import bytes_free
from kvist.base.errors import CapacityError
from kvist.base.units import format_bytes
from kvist.tiers.regions import Region, RegionId


def shared_region(region_id: str, size: int, what: str, free: Callable[[], int] = bytes_free) -> Region:
    """Allocates a region.

    Args:
        region_id: its name in messages.
        size: bytes.
        what: the setting that asks for it, for the operator.
        free: bytes that this process may still take.

    Raises:
        CapacityError: the system, or a control group, does not leave so much.
    """
    left = free()
    if size > left:
        raise CapacityError(
            f"{what}: {format_bytes(size)} of memory are asked for and {format_bytes(left)} are free; ask for less"
        )
    return Region(RegionId(region_id), size)
