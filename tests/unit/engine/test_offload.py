"""What is offered, copied, held and let go of, block by block."""

import pytest

from fakes.below import DictTiers, Manners
from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import CapacityError
from kvist.base.ids import RequestId
from kvist.blocks.lifecycle import State
from kvist.engine.backend import BackendError
from kvist.engine.offload import STORES

SIZE = 4
PROMPT = tuple((place * place * 7) % 3 for place in range(64))


class Ground:
    """An engine over tiers that take so many stores at once, each of which takes a while."""

    def __init__(self, *, rooms: int = 1000, store_s: int = 0, blocks: int = 60, **shape: object) -> None:
        self.shape = Shape(blocks=(blocks,) * len(shape.get("windows", (None,))), step_tokens=64, **shape)
        manners = Manners(rooms=rooms, store_s=store_s, is_punctual=True)
        self.tiers = DictTiers(self.shape.windows, SIZE, manners=manners)
        self.trial = EngineTrial(self.shape, tiers=self.tiers)

    def run(self, name: str, tokens: int, output: int = 1) -> None:
        self.trial.submit(request_of(name, PROMPT[:tokens], output=output))
        self.trial.drain()

    @property
    def held(self) -> int:
        return sum(map(len, self.trial.core._offload.held()))

    @property
    def dropped(self) -> int:
        return self.trial.core.statistics().stores_dropped


def test_every_full_block_is_stored_once_whoever_fills_it() -> None:
    ground = Ground()
    ground.run("a", 21)
    assert len(ground.tiers.records) == 5
    ground.run("b", 21, output=9)
    assert len(ground.tiers.records) == 7  # and what the answer filled
    assert ground.trial.backend.copied_out == 7
    ground.trial.check_ended()


def test_what_is_stored_is_what_the_block_holds() -> None:
    ground = Ground()
    ground.run("a", 9)
    digests = [number for row in ground.tiers.records.values() for number in memoryview(row).cast("q").tolist()]
    assert digests == ground.trial.truth.digests[RequestId("a")][:8]


def test_of_a_window_what_a_later_hit_needs_is_stored_and_the_rest_is_not() -> None:
    ground = Ground(windows=(None, 8))
    ground.run("a", 60)
    counts = [sum(name[1] == group for name in ground.tiers.records) for group in (0, 1)]
    assert counts[0] == 15
    assert counts[1] < 10
    assert ground.trial.backend.copied_out == sum(counts)


def test_where_there_is_no_room_blocks_are_held_until_there_is() -> None:
    ground = Ground(rooms=2, store_s=5)
    ground.run("a", 21)
    assert ground.held == 3
    assert len(ground.tiers._rooms) == 2
    pool = ground.trial.pools[0]
    for block in ground.trial.core._offload.held()[0]:
        assert (pool.state(block), pool.holders(block)) == (State.HELD, {STORES})
    assert ground.trial.core.heeds_tiers
    while ground.trial.core.heeds_tiers:
        ground.tiers.tick()
        ground.trial.core.step()
        ground.trial.check()
    assert ground.held == 0
    assert ground.dropped == 0
    ground.trial.check_ended()
    while ground.tiers._storing:
        ground.tiers.tick()
    assert len(ground.tiers.records) == 5


def test_the_longest_waiting_is_stored_first() -> None:
    ground = Ground(rooms=1, store_s=3)
    ground.run("a", 21)
    chain = [name[2] for name, _ in ground.tiers._rooms.values()]
    while ground.tiers._storing or ground.held:
        ground.tiers.tick()
        ground.trial.core.step()
        chain += [name[2] for name, _ in ground.tiers._rooms.values() if name[2] not in chain]
    known = ground.trial.core._cache.pools[0]
    indices = [known.find(each) for each in chain]
    assert indices == sorted(indices)
    assert len(indices) == 5


def test_at_most_a_tenth_of_a_pool_is_held_and_the_rest_is_let_go_of_and_counted() -> None:
    ground = Ground(rooms=0)
    ground.run("a", 53)
    assert (ground.held, ground.dropped) == (6, 13 - 6)
    ground.run("b", 9)
    assert ground.held == 6
    assert ground.trial.backend.copied_out == 0


def test_a_pool_of_less_than_ten_blocks_holds_none() -> None:
    ground = Ground(rooms=0, blocks=9)
    ground.run("a", 20)
    assert (ground.held, ground.dropped) == (0, 5)


def test_what_is_held_gives_way_to_a_request_that_needs_all_blocks() -> None:
    ground = Ground(rooms=0, blocks=20)
    ground.run("a", 9)
    assert ground.held == 2
    ground.trial.submit(request_of("b", tuple((token + 1) % 3 for token in (*PROMPT, *PROMPT))[:76], output=5))
    ground.trial.drain()
    ground.trial.check()
    assert ground.dropped >= 2
    assert not ground.trial.core.statistics().preemptions


@pytest.mark.parametrize("fault", [CapacityError("no room"), BackendError("broken")])
def test_a_copy_that_fails_costs_a_store_and_nothing_else(fault: CapacityError | BackendError) -> None:
    ground = Ground()
    ground.trial.backend.copy_fault = fault
    ground.run("a", 21)
    assert ground.dropped == 5
    assert not ground.tiers.records
    ground.trial.check_ended()  # rooms were given back
    ground.run("b", 33)
    assert len(ground.tiers.records) == 3


def test_what_an_aborted_request_filled_is_stored_too() -> None:
    ground = Ground(windows=(None, 8))
    ground.trial.submit(request_of("a", PROMPT[:40], output=30))
    ground.trial.step()
    before = set(ground.tiers.records)
    ground.trial.step()
    ground.trial.abort(RequestId("a"))
    assert before <= set(ground.tiers.records)
    ground.trial.check_ended()


def test_blocks_of_the_answer_stay_out_where_only_prompts_are_wanted() -> None:
    ground = Ground(offload_prompt_only=True)
    ground.run("a", 10, output=20)
    assert len(ground.tiers.records) == 2
    ground.trial.check_ended()


def test_no_request_may_be_called_as_the_holder_of_stores() -> None:
    ground = Ground()
    ground.trial.submit(request_of(STORES, PROMPT[:5]))
    assert ground.trial.ended(STORES)
    assert ground.trial.core.statistics().refusals == 1
