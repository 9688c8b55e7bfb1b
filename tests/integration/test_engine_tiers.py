"""An engine's thread over the real fabric and the threads of its movers: all are woken, and nobody waits in vain."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fakes.backend import MemoryBackend, Truth, answer_alone
from fakes.fabric import HandMovers, Rig
from fakes.shape import VOCAB, Shape, request_of
from kvist.app.clock import SystemClock
from kvist.base.ids import TokenId
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.cost.choice import choose, choose_longest
from kvist.engine.below import Below
from kvist.engine.core import EngineCore
from kvist.engine.messages import Admitted, Event, Failed, Finished, Refused, TokenDrawn
from kvist.engine.thread import EngineThread
from kvist.fabric.carry import Reach
from kvist.fabric.movers import Movers
from kvist.fabric.policies import LoadChoice
from kvist.fabric.ports import Carrier
from kvist.fabric.settings import Policies

SHAPE = Shape(blocks=(200,))
PROMPT = tuple((place * place * 7) % 3 for place in range(100))
PATIENCE_S = 30
"""How long a test waits for what has to come; only a failing one waits as long."""


def rig_of(
    movers: Callable[[Reach], Carrier] = Movers, *, staging_records: int = 64, load_choice: LoadChoice = choose_longest
) -> Rig:
    """A fabric with a real clock over DRAM and a pool."""
    return Rig(
        payloads=(8 * SHAPE.block_tokens,),
        names=("dram", "pool"),
        staging_records=staging_records,
        make_movers=movers,
        clock=SystemClock(),
        settings={"block_tokens": SHAPE.block_tokens, "policies": Policies(load_choice=load_choice)},
    )


class Engine:
    """One engine with a thread of its own, and what its requests were told."""

    def __init__(self, rig: Rig) -> None:
        self._truth = Truth()
        pools = [BlockPool(count) for count in SHAPE.blocks]
        cache = PrefixCache(namespace_of({}), pools, SHAPE.windows, block_tokens=SHAPE.block_tokens)
        backend = MemoryBackend(
            SHAPE.blocks, SHAPE.windows, block_tokens=SHAPE.block_tokens, vocab=VOCAB, truth=self._truth
        )
        below = Below(tiers=rig.fabric, view=rig.regions.view, time_s=rig.clock.now_s)
        self.thread = EngineThread(EngineCore(backend, cache, SHAPE.settings, secret=b"", below=below), SHAPE.limits)
        self.events: dict[str, list[Event]] = defaultdict(list)
        self._told = threading.Condition()

    def submit(self, name: str, prompt: tuple[int, ...]) -> None:
        request = request_of(name, prompt)
        self._truth.add(request)
        self.thread.submit(request, self._hear)

    def ask(self, name: str, prompt: tuple[int, ...]) -> Admitted:
        """Submits, waits for the end, and proves that the answer is right."""
        self.submit(name, prompt)
        assert isinstance(self.last(name), Finished)
        tokens: list[TokenId] = [each.token for each in self.events[name] if isinstance(each, TokenDrawn)]
        assert tokens == answer_alone(request_of(name, prompt), VOCAB)
        return next(each for each in self.events[name] if isinstance(each, Admitted))

    def last(self, name: str) -> Event:
        """Waits for the last event of a request."""

        def ended() -> list[Event]:
            return [each for each in self.events[name] if isinstance(each, Finished | Refused | Failed)]

        with self._told:
            assert self._told.wait_for(ended, timeout=PATIENCE_S), f"{name} waits for ever"
            return ended()[0]

    def _hear(self, event: Event) -> None:
        with self._told:
            self.events[event.request_id].append(event)
            self._told.notify_all()


@contextmanager
def engine_over(rig: Rig) -> Iterator[Engine]:
    """A running engine with nothing in its own memory."""
    engine = Engine(rig)
    engine.thread.start()
    try:
        yield engine
    finally:
        engine.thread.stop()
    assert engine.thread.fault is None


def until(rig: Rig, is_so: Callable[[], bool]) -> None:
    """Waits for something that the movers bring about."""
    for _ in range(10_000):
        if is_so():
            return
        rig.fabric.wait(PATIENCE_S / 100)
    pytest.fail("it never comes")


def stored(rig: Rig, records: int) -> Callable[[], bool]:
    return lambda: all(rig.books(name).stored == records for name in ("dram", "pool"))


def test_what_one_engine_stored_another_is_woken_with() -> None:
    rig = rig_of()
    with engine_over(rig) as first:
        assert first.ask("a", PROMPT).tokens_cached == 0
        until(rig, stored(rig, 25))
    with engine_over(rig) as second:
        event = second.ask("a", PROMPT)
        assert [(source.tier, source.tokens) for source in event.sources] == [("dram", 96)]
        assert second.thread.statistics().loads == 1
        assert second.ask("b", PROMPT).sources[0].tier == "G1"
    assert rig.fabric.close(PATIENCE_S)
    rig.fabric.audit()


def test_an_idle_engine_stores_what_it_had_to_hold_as_soon_as_there_is_room() -> None:
    rig = rig_of(staging_records=8)  # of which stores may take half
    with engine_over(rig) as engine:
        engine.ask("a", PROMPT)
        until(rig, lambda: rig.books("pool").stored + engine.thread.statistics().stores_dropped == 25)
        assert rig.books("pool").stored > 4
    assert rig.fabric.close(PATIENCE_S)


def test_tiers_that_never_answer_cost_time_and_nothing_else() -> None:
    rig = rig_of(HandMovers)
    with engine_over(rig) as engine:
        engine.ask("a", PROMPT)  # its question is never answered
        assert engine.ask("b", PROMPT[:50]).tokens_cached == 48
        assert engine.thread.statistics().loads == 0
    with engine_over(rig) as engine:
        engine.submit("gone", PROMPT[::-1])
        engine.thread.abort(request_of("gone", (0,)).id)
        assert isinstance(engine.last("gone"), Finished)


def test_loads_that_never_come_are_computed() -> None:
    rig = rig_of(HandMovers, load_choice=choose)
    with engine_over(rig) as engine:
        engine.ask("a", PROMPT)
    rig.movers.do_all()
    with engine_over(rig) as engine:
        event = engine.ask("a", PROMPT)
        assert event.tokens_cached == 0
        assert engine.thread.statistics().loads_failed == 1
    rig.movers.do_all()
    rig.fabric.audit()
