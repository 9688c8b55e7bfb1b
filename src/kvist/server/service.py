"""What all request handlers of one app share: the engine, the tokenizer and the state between requests."""

import asyncio
import itertools
from collections.abc import Callable

from kvist.base.clock import Clock
from kvist.server.handover import Handover
from kvist.server.lifecycle import Lifecycle
from kvist.server.logprobs import TokenTexts
from kvist.server.metrics import Metrics
from kvist.server.ports import Engine, Tokenizer
from kvist.server.settings import ServerSettings
from kvist.server.worker import Worker

Draw = Callable[[], int]
"""Returns 64 random bits; source of ids and of seeds that clients leave open."""


class Service:
    """One engine, as seen by the handlers.

    Attributes:
        lifecycle: whether new requests are taken.
        metrics: what is measured here and read from the engine.
        texts: single tokens as text.
        worker: where long work goes.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, settings: ServerSettings, clock: Clock, draw: Draw
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.settings = settings
        self.clock = clock
        self.draw = draw
        self.lifecycle = Lifecycle()
        self.metrics = Metrics(engine, self.lifecycle, settings.memory)
        self.texts = TokenTexts(tokenizer)
        self.worker = Worker()
        self._started_s = clock.now_s()
        self._serials = itertools.count()
        self._handover: Handover | None = None

    def new_id(self) -> str:
        """An id that no one can guess and that is never given twice."""
        return f"{self.draw():016x}{next(self._serials):08x}"

    def unix_s(self) -> int:
        """The time of day, as far as the monotonic clock kept it since the model was loaded."""
        return self.settings.model.created_s + int(self.clock.now_s() - self._started_s)

    def handover(self) -> Handover:
        """The way from the engine's thread to the running loop."""
        loop = asyncio.get_running_loop()
        if self._handover is None or self._handover.loop is not loop:
            self._handover = Handover(loop)
        return self._handover
