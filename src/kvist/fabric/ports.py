"""What control needs of whoever moves bytes."""

from collections.abc import Callable
from typing import Protocol

from kvist.fabric.jobs import Job, Report
from kvist.fabric.messages import Ticket


class Carrier(Protocol):
    """Takes jobs, does them elsewhere, and reports each exactly once.

    Jobs that change one tier are done one after the other in the order of their submission; all others in any order,
    several at once.
    """

    def start(self, report: Callable[[Report], None]) -> None:
        """Tells whom to report to, from the carrier's own threads; called once, before the first job."""
        ...

    def submit(self, job: Job) -> bool:
        """Takes a job without blocking; False: not taken, because its lane is full or the carrier is closed."""
        ...

    def withdraw(self, ticket: Ticket) -> bool:
        """Takes a job back that has not begun; True: it never will, and no report comes."""
        ...

    def close(self, timeout_s: float) -> bool:
        """Takes no more jobs, skips those that wait and lets running ones end; whether all ended in time.

        What hangs is left behind in daemon threads.
        """
        ...
