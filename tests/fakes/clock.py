"""A clock that goes where its owner puts it."""


class HandClock:
    """Stands still until it is moved, and then only forward."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._time_s = start_s

    def now_s(self) -> float:
        """The time it was moved to."""
        return self._time_s

    def advance(self, by_s: float) -> None:
        """Moves it by so many seconds."""
        assert by_s >= 0, f"time does not go back by {-by_s} s"
        self._time_s += by_s
