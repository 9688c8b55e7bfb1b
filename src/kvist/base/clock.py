"""Time as a port: whoever needs it is given it, so that tests and simulation can own it."""

from typing import Protocol


class Clock(Protocol):
    """Reads a monotonic time in seconds.

    Never goes back within one process; may be called from any thread; costs well under a microsecond.
    """

    def now_s(self) -> float:
        """Seconds since an arbitrary, fixed start."""
        ...
