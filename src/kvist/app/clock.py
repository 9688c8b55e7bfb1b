"""The real clocks, named here only so that everything below the composition root takes time as a port."""

import time


class SystemClock:
    """Reads the operating system's highest-resolution monotonic clock; the real `kvist.base.clock.Clock`."""

    def now_s(self) -> float:
        """Seconds since an arbitrary, fixed start; never goes back within one process."""
        return time.perf_counter()


class SystemCalendar:
    """Reads the operating system's wall clock; the real `kvist.base.clock.Calendar`."""

    def now_unix_s(self) -> float:
        """Seconds since 1970-01-01 00:00 UTC, as the system believes."""
        return time.time()  # noqa: TID251  the one place where the wall clock is read
