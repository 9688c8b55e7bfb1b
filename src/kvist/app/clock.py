"""The real clock, named here only so that everything below the composition root takes time as a port."""

import time


class SystemClock:
    """Reads the operating system's highest-resolution monotonic clock; the real `kvist.base.clock.Clock`."""

    def now_s(self) -> float:
        """Seconds since an arbitrary, fixed start; never goes back within one process."""
        return time.perf_counter()
