"""Whether new requests are taken, and what still runs; the drain at the end of a server's life.

    accepting ──drain()──▶ draining ──(the last one leaves)──▶ idle

Knows requests as things that run and can be aborted; does not know HTTP nor signals. Used on the event loop alone.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvist.server.errors import draining

Abort = Callable[[], None]


class Lifecycle:
    """The state of one server between its start and its end."""

    def __init__(self) -> None:
        self._draining = False
        self._aborts: list[Abort] = []
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_accepting(self) -> bool:
        """Whether new requests are taken."""
        return not self._draining

    @property
    def running(self) -> int:
        """Requests admitted that have not left."""
        return len(self._aborts)

    def check_accepting(self) -> None:
        """Raises `ApiError` (503) while draining."""
        if self._draining:
            raise draining()

    @contextmanager
    def admitted(self, abort: Abort) -> Iterator[None]:
        """Counts a request as running while the context lasts; `abort` must make it end soon.

        Raises:
            ApiError: 503 while draining.
        """
        self.check_accepting()
        self._aborts.append(abort)
        self._idle.clear()
        try:
            yield
        finally:
            self._aborts.remove(abort)
            if not self._aborts:
                self._idle.set()

    def drain(self) -> None:
        """Takes nothing new from now on; what runs goes on."""
        self._draining = True

    def abort_all(self) -> None:
        """Asks all that run to end now."""
        for abort in list(self._aborts):
            abort()

    async def wait_idle(self) -> None:
        """Returns when nothing runs."""
        await self._idle.wait()
