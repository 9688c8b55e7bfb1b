"""Finished requests whose blocks vLLM keeps, because something of them was to be stored and found no room yet.

At most a tenth of vLLM's blocks are held so, and each for a few seconds; what is beyond that, or stands in a request's
way, is let go and counted.
Who is held is named in `StepOrders.freed` once, with the orders that store the last of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvist.base.clock import Clock
from kvist.connectors.vllm.lives import Life
from kvist.connectors.vllm.parked import Tables
from kvist.connectors.vllm.requests import EngineRequest
from kvist.connectors.vllm.settings import SchedulerSettings
from kvist.connectors.vllm.stores import Round, Stores, Story

_HELD_SHARE = 10
"""One in so many blocks may be held."""


@dataclass(slots=True, kw_only=True)
class _Held:
    life: Life
    story: Story
    blocks: int
    until_s: float


class Holds:
    """All that is held."""

    def __init__(self, stores: Stores, settings: SchedulerSettings, clock: Clock) -> None:
        """Stores through `stores`."""
        self._stores = stores
        self._settings = settings
        self._clock = clock
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def blocks(self) -> int:
        """Of vLLM's, that are held."""
        return sum(held.blocks for held in self._held.values())

    @property
    def blocks_max(self) -> int:
        """Most that may be."""
        return self._settings.pool_blocks // _HELD_SHARE

    def keep(self, life: Life, request: EngineRequest, tables: Tables) -> bool:
        """A request has ended, which had these blocks; whether they are held."""
        story = Story(tuple(life.chain(request)), tuple(tuple(table) for table in tables), request.prompt_tokens)
        if not life.is_stored or not self._stores.skip_settled(life, story):
            return False
        blocks = sum(1 for table in story.tables for block in table if block)
        if self.blocks + blocks > self.blocks_max:
            self._stores.forget(life)
            return False
        until_s = self._clock.now_s() + self._settings.hold_s
        self._held[request.id] = _Held(life=life, story=story, blocks=blocks, until_s=until_s)
        return True

    def step(self, turn: Round) -> Iterator[str]:
        """Orders what there is room for, longest held first; gives the requests whose blocks are free with that."""
        now_s = self._clock.now_s()
        for request_id, held in list(self._held.items()):
            is_over = not held.life.is_stored or self._stores.advance(held.life, held.story, turn)
            if is_over or now_s >= held.until_s:
                self._stores.forget(held.life)
                del self._held[request_id]
                yield request_id

    def give_way(self) -> bool:
        """Lets go of all with the next step, because running requests need blocks; whether there are any."""
        now_s = self._clock.now_s()
        for held in self._held.values():
            held.until_s = min(held.until_s, now_s)
        return bool(self._held)

    def lives(self) -> Iterator[Life]:
        """The requests that are held."""
        return (held.life for held in self._held.values())
