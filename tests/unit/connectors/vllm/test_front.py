"""An error of ours ends the use of the cache and nothing else: whatever vLLM waits for, it is told."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fakes.vllm_objects import Tables, request, scheduler_output
from fakes.vllm_side import FULL, HYBRID, SideRig, fine_hashes
from fakes.vllm_side import request as ours
from kvist.connectors.vllm.front import Front
from kvist.connectors.vllm.orders import LoadEnd, StepOrders
from kvist.connectors.vllm.reading import Foreign
from kvist.connectors.vllm.scheduler import SchedulerSide

VERBS = ["arrived", "matched", "allocated", "sources", "step", "reported", "finished", "relieve", "statistics"]


class Failing:
    """A real side, of which one verb fails from some moment on."""

    def __init__(self, side: SchedulerSide) -> None:
        self._side = side
        self.broken: str | None = None

    def __getattr__(self, verb: str) -> object:
        return self._fail if verb == self.broken else getattr(self._side, verb)

    def _fail(self, *_: object) -> None:
        raise ZeroDivisionError(self.broken)


class FrontRig:
    """A front before a real side over tiers that have the KV of a sequence called "story"."""

    def __init__(self, *, groups: int = 1, staging_records: int = 200) -> None:
        shape = replace(FULL if groups == 1 else HYBRID, pool_blocks=400)
        self.rig = SideRig(shape, staging_records=staging_records)
        self.rig.store(ours("earlier", "story", 160))
        self.side = Failing(self.rig.side)
        self.front = Front(self.side, block_tokens=16, groups=groups)  # type: ignore[arg-type]  a side, with one verb less

    def request(self, name: str = "r", tokens: int = 160, **changed: object) -> Foreign:
        """One of vLLM's over that sequence."""
        given = {"num_tokens": tokens, "num_prompt_tokens": tokens, "num_computed_tokens": 0}
        return request(name, **given | {"block_hashes": fine_hashes("story", tokens)} | changed)

    def park(self, theirs: Foreign, *, computed: int = 0, first: int = 40) -> tuple[list[int], ...]:
        """Lets a request wait for the load of whatever there is of it."""
        self.front.arrived(theirs)
        self.rig.life.pass_time(0.01)
        tokens, _ = self.front.matched(theirs, computed)
        assert tokens
        blocks = self.rig.tables(first, computed + tokens)
        self.front.allocated(theirs, SimpleNamespace(get_block_ids=lambda: blocks), tokens)
        return blocks

    def step(self, **changed: object) -> StepOrders:
        """The orders of a step in which nothing computes, unless it is said."""
        return self.front.step(scheduler_output(**changed))


def test_a_front_adds_nothing_while_all_is_well() -> None:
    rig = FrontRig()
    theirs = rig.request()
    blocks = rig.park(theirs)
    assert rig.front.sources(theirs, 144) == {"dram": 144}
    rig.rig.life.pass_time(1.0)
    orders = rig.step()
    assert [each.request for each in orders.loads] == ["r"] * 9
    assert orders.ends == (LoadEnd(request="r", failed=False),)
    rig.rig.done(orders, finished=["r"])
    theirs.num_computed_tokens = 144
    tables = Tables({"r": (blocks[0] + [90],)})
    scheduled = rig.step(num_scheduled_tokens={"r": 16}, kv_connector_block_state=tables)
    assert not scheduled.ends
    assert not rig.front.finished(theirs, tables.blocks["r"])
    statistics = rig.front.statistics()
    assert statistics is not None
    assert statistics.tokens["dram"] == 144
    assert not rig.front.is_detached


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_raises_whichever_of_them_fails(verb: str, caplog: pytest.LogCaptureFixture) -> None:
    rig, theirs = FrontRig(), request()
    rig.side.broken = verb
    blocks = SimpleNamespace(get_block_ids=lambda: ([7, 8],))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            rig.front.arrived(theirs)
            rig.front.matched(theirs, 0)
            rig.front.allocated(theirs, blocks, 0)
            rig.front.sources(theirs, 16)
            rig.step()
            rig.front.reported(None, ())
            rig.front.finished(theirs, ([7, 8],))
            rig.front.relieve()
            rig.front.statistics()
    assert rig.front.is_detached
    assert len(caplog.records) == 1
    assert "vLLM goes on without" in caplog.text
    assert rig.front.statistics() is None


@pytest.mark.parametrize("verb", ["step", "reported", "matched"])
def test_a_load_that_vllm_waits_for_is_ended_exactly_once_with_what_is_invalid(verb: str) -> None:
    rig = FrontRig()
    blocks = rig.park(rig.request(), computed=32)
    rig.side.broken = verb
    rig.front.reported(None, ())
    rig.front.matched(rig.request("other"), 0)
    orders = rig.step()
    # The first two blocks were vLLM's own; of the ninth on nothing was to be loaded.
    assert orders.ends == (LoadEnd(request="r", failed=True, invalid=tuple(blocks[0][2:9])),)
    assert rig.step() == StepOrders()


def test_with_several_groups_the_whole_request_is_recomputed() -> None:
    rig = FrontRig(groups=2)
    rig.park(rig.request())
    rig.side.broken = "step"
    assert rig.step().ends == (LoadEnd(request="r", failed=True),)


def test_a_load_whose_begin_failed_is_ended_too() -> None:
    rig = FrontRig()
    rig.side.broken = "allocated"
    rig.park(rig.request())
    assert rig.front.is_detached
    assert [end.request for end in rig.step().ends] == ["r"]


def test_a_load_that_was_ended_is_not_ended_again() -> None:
    rig = FrontRig()
    rig.park(rig.request())
    rig.rig.life.pass_time(1.0)
    assert [end.request for end in rig.step().ends] == ["r"]
    rig.side.broken = "step"
    assert rig.step().ends == ()


def test_a_request_that_was_aborted_while_it_loaded_is_still_told_its_end() -> None:
    rig, theirs = FrontRig(), request("r")
    rig.park(rig.request())
    rig.side.broken = "step"
    assert not rig.front.finished(theirs, ([1],))
    assert [end.request for end in rig.step().ends] == ["r"]


def test_blocks_that_are_held_are_given_back_once() -> None:
    rig = FrontRig(staging_records=32)
    hashes = fine_hashes("another", 320)
    theirs = rig.request("long", tokens=320, block_hashes=hashes)
    blocks = (list(range(30, 50)),)
    rig.front.arrived(theirs)
    rig.front.allocated(theirs, SimpleNamespace(get_block_ids=lambda: blocks), 0)
    rig.step(num_scheduled_tokens={"long": 320}, kv_connector_block_state=Tables({"long": blocks}))
    assert rig.front.finished(theirs, blocks)
    rig.side.broken = "reported"
    rig.front.reported(None, ())
    assert rig.front.relieve()
    assert rig.step().freed == ("long",)
    assert rig.step().freed == ()
    assert rig.front.relieve(), "where steps overlap, the next one is planned before vLLM has the blocks back"
    rig.front.reported(None, (), {"long"})
    assert not rig.front.relieve()


def test_detached_nothing_is_claimed_stored_or_held() -> None:
    rig, theirs = FrontRig(), request()
    rig.side.broken = "arrived"
    rig.front.arrived(theirs)
    assert rig.front.matched(theirs, 0) == (0, False)
    assert rig.front.sources(theirs, 16) == {}
    assert rig.step(num_scheduled_tokens={"r": 32}) == StepOrders()
    assert not rig.front.finished(theirs, ([1, 2],))
    rig.front.close()


def test_what_vllm_hands_over_may_be_wrong_too() -> None:
    rig = FrontRig()
    rig.front.arrived(SimpleNamespace(request_id="r"))
    assert rig.front.is_detached
    rig.front.step(SimpleNamespace())


def test_whoever_detaches_it_is_heard_once_and_loads_are_ended(caplog: pytest.LogCaptureFixture) -> None:
    rig = FrontRig()
    blocks = rig.park(rig.request())
    for _ in range(2):
        rig.front.detach("all workers are others")
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["all workers are others"]
    assert rig.step().ends == (LoadEnd(request="r", failed=True, invalid=tuple(blocks[0][:9])),)
    assert rig.step().is_empty
