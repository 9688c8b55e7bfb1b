"""Takes the engine's events from its thread to the event loop.

Laws:
    * The order of events is kept.
    * The engine's thread never waits, and wakes the loop once per burst of events, not once per event.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from kvist.engine.messages import Event
from kvist.server.ports import Deliver

_log = logging.getLogger(__name__)

Take = Callable[[Event], None]


class Handover:
    """One way from any thread to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._events: deque[tuple[Take, Event]] = deque()
        self._woken = False

    def deliver_to(self, take: Take) -> Deliver:
        """Returns what the engine may call from its thread; `take` is then called on the loop."""

        def deliver(event: Event) -> None:
            self._events.append((take, event))
            # Read after the append: whoever finds the loop woken already has its event seen by that wake-up, because
            # the loop clears the mark before it empties the queue.
            if not self._woken:
                self._woken = True
                self._wake()

        return deliver

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._empty)
        except RuntimeError:
            # The loop is closed: the server is gone, and with it everyone who waited for this.
            _log.debug("an event of the engine came after the server had ended")

    def _empty(self) -> None:
        self._woken = False
        while self._events:
            take, event = self._events.popleft()
            take(event)
