"""The books are proven, and each way in which they can be wrong is told."""

from collections.abc import Callable

import pytest

from fakes.below import DictTiers, Manners
from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.ids import BlockHash, RequestId
from kvist.engine.core import EngineCore
from kvist.engine.offload import STORES
from kvist.fabric.messages import Ticket


def busy_core() -> EngineCore:
    """One runs, one loads, one waits, and blocks are held to be stored."""
    tiers = DictTiers((None,), 4)
    first = EngineTrial(Shape(), tiers=tiers)
    first.submit(request_of("known", (1, 0) * 10))
    first.drain()
    tiers.manners = Manners(land_s=9, rooms=0, is_punctual=True)
    trial = EngineTrial(Shape(sequences_max=2, step_tokens=12), tiers=tiers)
    trial.submit(request_of("runs", (2,) * 9, output=20), request_of("loads", (1, 0) * 10), request_of("waits", (0, 1)))
    trial.step()
    core = trial.core
    assert (list(core._running), [each.request.id for each in core._loading]) == (["runs"], ["loads"])
    assert [each.request.id for each in core._waiting] == ["waits"]
    assert core._offload.is_waiting
    return core


def lose_a_block_held_for_stores(core: EngineCore) -> None:
    core._cache.pools[0].release(core._offload.held()[0][0], STORES)


def lose_a_block_of_a_load(core: EngineCore) -> None:
    core._cache.pools[0].release(next(iter(core._loading)).table.held()[0][0], RequestId("loads"))


def let_a_waiting_one_hold_blocks(core: EngineCore) -> None:
    core._waiting[0].table.grow(4)


def run_what_is_not_loaded(core: EngineCore) -> None:
    load = core._loading._loads.pop(RequestId("loads"))
    core._running[RequestId("loads")] = load.sequence


def stand_up(core: EngineCore) -> None:
    core._seats.leave(core._running[RequestId("runs")])


def sit_without_running(core: EngineCore) -> None:
    core._seats.seat(core._waiting[0])


def lose_a_request(core: EngineCore) -> None:
    core._waiting.pop()


def run_twice(core: EngineCore) -> None:
    core._waiting.append(core._waiting[0])


def leave_a_ticket(core: EngineCore) -> None:
    core._loading._tickets[RequestId("gone")] = Ticket(99)


def ask_for_who_runs(core: EngineCore) -> None:
    core._loading._tickets[RequestId("runs")] = Ticket(99)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lose_a_block_held_for_stores, "block"),
        (lose_a_block_of_a_load, "block"),
        (let_a_waiting_one_hold_blocks, "held by|waiting"),
        (run_what_is_not_loaded, "not loaded"),
        (stand_up, "a running request does not sit"),
        (sit_without_running, "who does not run sits"),
        (lose_a_request, "in no queue, or in two"),
        (run_twice, "in no queue, or in two"),
        (leave_a_ticket, "tickets of {'gone'} are left"),
        (ask_for_who_runs, "tickets of {'runs'} are left"),
    ],
)
def test_a_mistake_is_named(wrong: Callable[[EngineCore], None], complaint: str) -> None:
    core = busy_core()
    core.audit()
    wrong(core)
    with pytest.raises(AssertionError, match=complaint):
        core.audit()


def test_blocks_in_flight_belong_to_somebody() -> None:
    core = EngineTrial(Shape()).core
    core.audit()
    core._in_flight.claim(RequestId("ghost"), [BlockHash(bytes(32))])
    with pytest.raises(AssertionError, match="in flight and nobody runs"):
        core.audit()
