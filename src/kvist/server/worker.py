"""The one thread that reads bodies and turns text into tokens, so that the event loop never waits for a long prompt.

One, because a tokenizer encodes for one thread at a time, and because one core is enough to stay ahead of any engine.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """Runs functions one after the other on a thread of its own, which starts with the first."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvist-tokenise")

    async def run(self, work: Callable[[], T]) -> T:
        """Returns what `work` returns, or raises what it raises; a caller that is cancelled leaves it running."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Ends the thread after the work it has begun; later calls of `run` fail."""
        self._threads.shutdown(wait=True, cancel_futures=True)
