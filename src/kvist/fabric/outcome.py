"""What became of the records that an operator named."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the records that an operator named.

    Attributes:
        done: copied, moved, verified or removed, as was asked.
        damaged, absent: found so, and taken out of the books.
        left: not done: the tier failed, had no room, or time was over.
    """

    done: int = 0
    damaged: int = 0
    absent: int = 0
    left: int = 0

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            done=self.done + other.done,
            damaged=self.damaged + other.damaged,
            absent=self.absent + other.absent,
            left=self.left + other.left,
        )
