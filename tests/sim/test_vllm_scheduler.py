"""The scheduler's side before a naive vLLM, over a real fabric and tiers on virtual time, from a seed.

While it runs, `fakes.vllm_scheduler`, `fakes.vllm_workers` and `fakes.vllm_life` assert what nobody may suffer: wrong
KV attended, a buffer touched by two, a load's end told twice or never, a ticket of nobody's, a block that stays away.
Here stands what is to come of each trouble.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.dice import Dice
from fakes.fabric import but_no_lies_in_place
from fakes.fabric_life import Takes, well
from fakes.vllm_life import SHAPES, VllmLife
from fakes.vllm_shape import Shape
from fakes.vllm_workers import Manners
from kvist.base.errors import TierUnavailableError
from kvist.fabric.jobs import FindJob, Job, LoadJob
from kvist.tiers.faulty import Fail, Fault, Flip, Impostor, Resize, Torn, faulty, seeded
from kvist.tiers.ports import Tier

FAULTS: list[Fault] = [
    Fail(error=TierUnavailableError),
    Fail(error=TierUnavailableError, after=True),
    Flip(bit=4099),
    Flip(bit=77),
    Resize(by=-1),
    Torn(bytes_kept=600),
    Impostor(),
]

FULL = replace(SHAPES["full, two workers"], pool_blocks=40)
HYBRID = replace(SHAPES["hybrid, blocks of two sizes, two workers"], pool_blocks=40)


def troubled(seed: int, one_in: int) -> Callable[[Tier], Tier]:
    """One call of a tier in so many goes wrong."""
    return lambda tier: faulty(tier, but_no_lies_in_place(seeded(seed + len(tier.name), FAULTS, one_in=one_in)))


def hanging(kind: type, since_s: float) -> Takes:
    """From some time on, no job of a kind ends."""

    def takes(job: Job, dice: Dice, now_s: float) -> float | None:
        return None if isinstance(job, kind) and now_s > since_s else well(job, dice, now_s)

    return takes


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_stored_is_loaded_and_is_what_was_computed(name: str) -> None:
    shape = SHAPES[name]
    life = VllmLife(1, replace(shape, pool_blocks=shape.pool_blocks * 3 // 5))
    life.run(200)
    statistics = life.side.statistics()
    assert life.engine.external >= 400, life.engine.external
    assert statistics.loads["complete"] >= 5, statistics
    assert statistics.loads.keys() <= {"complete", "aborted"}, statistics
    assert 0 < statistics.tokens["dram"] <= life.engine.external, statistics
    life.end()


@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])
def test_preemption_takes_blocks_away_and_nothing_else(shape: Shape) -> None:
    life = VllmLife(2, replace(shape, pool_blocks=30), manners=Manners(late=3))
    life.run(200)
    assert life.engine.preemptions >= 5, life.engine.preemptions
    assert life.engine.external >= 400, life.engine.external
    assert life.engine.finished >= 20, life.engine.finished
    life.end()


@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])
def test_what_lies_and_what_cannot_copy_costs_hits_and_no_request(shape: Shape) -> None:
    life = VllmLife(3, shape, wrap=troubled(3, 6), manners=Manners(fails=25, late=2))
    life.run(250)
    statistics = life.side.statistics()
    assert life.engine.failed_loads >= 3, statistics
    assert statistics.stores["failed"] >= 3, statistics
    assert statistics.loads["complete"] >= 3, statistics
    assert life.engine.finished >= 30, life.engine.finished
    life.end()


@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])
def test_a_load_that_never_comes_ends_at_its_deadline_and_is_computed(shape: Shape) -> None:
    life = VllmLife(4, shape, names=("pool",), takes=hanging(LoadJob, 1.0))
    life.run(250)
    statistics = life.side.statistics()
    assert statistics.loads["late"] >= 5, statistics
    assert life.waited_s_max < 1.0, life.waited_s_max
    assert life.engine.finished >= 30, life.engine.finished
    life.end()


def test_a_pool_that_does_not_answer_holds_nobody_up_for_long() -> None:
    life = VllmLife(5, FULL, names=("pool",), takes=hanging(FindJob, 3.0))
    life.run(250)
    assert life.engine.finished >= 30, life.engine.finished
    assert life.engine.external > 0
    life.end()


@pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])
def test_after_a_reset_nothing_of_before_is_found(shape: Shape) -> None:
    refused = 0
    for seed in range(4, 8):
        life = VllmLife(seed, replace(shape, pool_blocks=30), manners=Manners(late=2))
        life.resets = 60
        life.run(300)
        assert life.engine.era >= 2, life.engine.era
        assert life.engine.external >= 200, life.engine.external
        refused += life.engine.resets_refused
        life.end()
    assert refused >= 5, "while somebody has blocks, the engine keeps what it has cached, and goes on with it"


def test_what_finds_no_room_is_held_for_a_while_and_then_let_go() -> None:
    life = VllmLife(7, replace(FULL, pool_blocks=200), staging_records=4, hold_s=0.05, copy_bytes_max=64)
    life.run(250)
    statistics = life.side.statistics()
    assert life.engine.held >= 3, life.engine.held
    assert statistics.stores["dropped"] >= 1, statistics
    assert statistics.stores["done"] >= 100, statistics
    life.end()


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_everything_at_once(name: str) -> None:
    events: Counter[str] = Counter()
    for seed in range(100, 112):
        dice, shape = Dice(seed), SHAPES[name]
        slow_s = dice.pick([0.0, 0.0, 0.01, 0.3, 3.0])

        def takes(job: Job, each: Dice, now_s: float, slow_s: float = slow_s) -> float | None:
            hangs = slow_s and each.number(1, 200) == 1
            return None if hangs else well(job, each, now_s) + slow_s * (each.number(1, 8) == 1)

        life = VllmLife(
            seed,
            replace(
                shape,
                pool_blocks=shape.pool_blocks * dice.number(5, 10) // 10,
                budget=dice.pick([16, 64, 200]),
            ),
            takes=takes,
            wrap=troubled(seed, dice.pick([5, 40, 10**9])),
            manners=Manners(fails=dice.pick([0, 0, 30]), late=dice.pick([0, 3])),
            names=dice.pick([("dram",), ("dram", "disk", "pool"), ("disk", "pool"), ("pool",)]),
            staging_records=dice.pick([2, 8, 40]),
            tier_records=dice.pick([20, 200]),
            copy_bytes_max=dice.pick([64, 1000, 2**20]),
            hold_s=dice.pick([0.05, 1.0]),
            offload_prompt_only=dice.pick([False, True]),
        )
        life.resets, life.aborts = dice.pick([0, 40]), dice.pick([8, 40])
        life.run(300)
        events.update(life.side.statistics().loads)
        events.update(preempted=life.engine.preemptions, aborts=life.engine.aborted, finished=life.engine.finished)
        life.end()
    assert events["complete"] >= 20, events
    assert min(events["failed"] + events["late"], events["aborts"]) > 0, events
