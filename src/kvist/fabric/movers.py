"""Threads that do jobs: a few per tier, and a bounded queue per lane, so that a hung tier hangs only its own.

    tier    ask: 1 thread    read: some threads    change: 1 thread, so that deletions and writes keep their order
            (read: 1 thread where records are looked at in place, since those would only wait for each other)
            list: 1 thread, because an operator may go through a tier for minutes
    stamping: 1 thread of its own

Threads are daemons: what hangs for ever in a tier does not keep the process alive.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvist.fabric.carry import Reach, carry
from kvist.fabric.jobs import Job, Lane, Report, Skipped, StampJob, lane_of
from kvist.fabric.messages import Ticket
from kvist.tiers.ports import Lender

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverSettings:
    """Bounds of the movers.

    Attributes:
        read_threads: per tier that has to fetch. Looking at lent records is all computing, in short calls that give up
            the interpreter's lock: two threads that do so pass it to and fro, and the engine's thread gets it seldom.
        queue_jobs: jobs that may wait in one lane of one tier.
    """

    read_threads: int = 2
    queue_jobs: int = 64


class Movers:
    """Does jobs in threads of this process; a `kvist.fabric.ports.Carrier`."""

    def __init__(self, reach: Reach, settings: MoverSettings | None = None) -> None:
        """Makes the lanes of every tier that can be reached; threads begin with `start`."""
        self._reach = reach
        settings = settings or MoverSettings()
        self._lanes: dict[tuple[str, Lane], _Queue] = {}
        for name, tier in reach.tiers.items():
            reading = 1 if isinstance(tier, Lender) else settings.read_threads
            threads: dict[Lane, int] = {"ask": 1, "read": reading, "change": 1, "list": 1}
            for lane, count in threads.items():
                self._lanes[name, lane] = _Queue(f"kvist-{name}-{lane}", count, settings.queue_jobs)
        self._stamping = _Queue("kvist-stamp", 1, settings.queue_jobs)
        self._report: Callable[[Report], None] | None = None

    def start(self, report: Callable[[Report], None]) -> None:
        """Begins to work; `report` is called from the movers' threads, and from `close`."""
        assert self._report is None, "movers were started twice"
        self._report = report
        for queue in self._queues():
            queue.start(self._work)

    def submit(self, job: Job) -> bool:
        """Puts a job into its lane; False: the lane is full or closed."""
        return self._queue(job).put(job)

    def withdraw(self, ticket: Ticket) -> bool:
        """Takes a job out of its lane if it has not begun; then nothing is reported of it."""
        return any(queue.take_back(ticket) for queue in self._queues())

    def close(self, timeout_s: float) -> bool:
        """Ends the threads once what they are doing is done; jobs that wait are reported as skipped."""
        for queue in self._queues():
            for job in queue.close():
                self._tell(Skipped(ticket=job.ticket))
        until_s = self._reach.clock.now_s() + timeout_s
        ended = [queue.join(max(0.0, until_s - self._reach.clock.now_s())) for queue in self._queues()]
        return all(ended)

    def _queues(self) -> list["_Queue"]:
        return [*self._lanes.values(), self._stamping]

    def _queue(self, job: Job) -> "_Queue":
        return self._stamping if isinstance(job, StampJob) else self._lanes[job.tier, lane_of(job)]

    def _work(self, queue: "_Queue") -> None:
        while (job := queue.take()) is not None:
            self._tell(carry(job, self._reach))

    def _tell(self, report: Report) -> None:
        assert self._report is not None, "a job was taken before the start"
        try:
            self._report(report)
        except Exception:  # noqa: BLE001  a thread that ended here would leave its lane unserved for ever
            _log.exception("control could not take a report")


class _Queue:
    """The jobs of one lane, oldest first, and the threads that do them."""

    def __init__(self, name: str, threads: int, jobs_max: int) -> None:
        self._name = name
        self._jobs_max = jobs_max
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads_wanted = threads
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[["_Queue"], None]) -> None:
        for index in range(self._threads_wanted):
            thread = threading.Thread(target=work, args=(self,), name=f"{self._name}-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def put(self, job: Job) -> bool:
        with self._changed:
            fits = not self._closed and len(self._jobs) < self._jobs_max
            if fits:
                self._jobs.append(job)
                self._changed.notify()
            return fits

    def take(self) -> Job | None:
        """Waits for the next job; None: the lane is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return self._jobs.popleft() if self._jobs else None

    def take_back(self, ticket: Ticket) -> bool:
        with self._changed:
            mine = next((job for job in self._jobs if job.ticket == ticket), None)
            if mine is not None:
                self._jobs.remove(mine)
            return mine is not None

    def close(self) -> list[Job]:
        """Takes no more jobs, and gives back those that have not begun."""
        with self._changed:
            self._closed = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
            return left

    def join(self, timeout_s: float) -> bool:
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)
