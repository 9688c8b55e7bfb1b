"""Time as a port: whoever needs it is given it, so that tests and simulation can own it."""

from typing import Protocol


class Clock(Protocol):
    """Reads a monotonic time in seconds.

    Never goes back within one process; may be called from any thread; costs well under a microsecond.
    """

    def now_s(self) -> float:
        """Seconds since an arbitrary, fixed start."""
        ...


class Calendar(Protocol):
    """Reads the wall clock, for what outlives a process: creation and expiry of stored blocks.

    May jump, in either direction, at any time: nothing but ages of stored blocks may depend on it.
    """

    def now_unix_s(self) -> float:
        """Seconds since 1970-01-01 00:00 UTC."""
        ...
