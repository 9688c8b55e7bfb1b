"""The largest number that fits, found by halving."""

from collections.abc import Callable


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number in [low, high] that fits, given that low does and that none fits above one that does not.

    >>> largest(1, 100, lambda number: number * number <= 50)
    7
    """
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
