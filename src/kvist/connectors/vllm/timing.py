"""How long steps took, for the cost of computing: only of steps that computed one request, and nothing else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A step computed tokens [start, end) of one sequence in so many seconds."""

    start: int
    end: int
    seconds: float


class StepTimes:
    """The step that was planned last, if its end tells how long computing takes.

    Where steps overlap, a report does not say of which step it is (those that compute nothing may end without one), and
    nothing is learned.
    """

    def __init__(self, *, overlap: bool) -> None:
        """Knows whether a step may be planned before the one before it has ended."""
        self._overlap = overlap
        self._running: tuple[int, int, float] | None = None

    def planned(self, tokens: tuple[int, int] | None, now_s: float) -> None:
        """A step begins; `tokens` are [start, end) of the only request that it computes, None if that is not so."""
        alone = tokens is not None and tokens[1] - tokens[0] > 1 and not self._overlap
        self._running = (*tokens, now_s) if alone and tokens is not None else None

    def reported(self, now_s: float, copy_s: float) -> Computed | None:
        """A step has ended, of which so many seconds were copying; what is learned from it."""
        running, self._running = self._running, None
        if running is None:
            return None
        start, end, began_s = running
        return Computed(start=start, end=end, seconds=max(0.0, now_s - began_s - copy_s))
