"""How far a long piece of work has come, told to whoever draws it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One report.

    Attributes:
        stage: what is being done, in words; a new stage begins when it changes.
        done: bytes done of this stage.
        total: bytes of this stage; None when nobody knows.
    """

    stage: str
    done: int = 0
    total: int | None = None


Report = Callable[[Progress], None]
"""Takes reports on the thread that does the work; must return soon."""


def silent(progress: Progress) -> None:
    """Draws nothing."""
