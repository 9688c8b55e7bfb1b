"""An engine, the fabric and its tiers on virtual time, from a seed, with tiers that are slow, hang, lie or are away.

While it runs, `fakes.fabric_life` asserts what no request may suffer: wrong bytes, a question or a load that holds it
up beyond its deadline, and books, staging and holders that do not add up. Here stands what is to come of each fault.
"""

from collections.abc import Callable

import pytest

from fakes.dice import Dice
from fakes.fabric import but_no_lies_in_place
from fakes.fabric_life import Life, Takes, well
from kvist.base.errors import TierFullError, TierUnavailableError
from kvist.fabric.jobs import DeleteJob, FindJob, Job, LoadJob, StampJob, StoreJob
from kvist.tiers.faulty import Fail, Fault, Flip, Impostor, Plan, Resize, Torn, faulty, seeded
from kvist.tiers.ports import Tier, Verb

pytestmark = pytest.mark.slow

SEEDS = [1, 2]
FOR_EVER = 1e9
LITTLE_DRAM = {"dram": 24 * 4096, "disk": 400 * 4096}


def tier_of(job: Job) -> str:
    """Which tier a job is for."""
    return "" if isinstance(job, StampJob) else job.tier


def troubled(tier: str, kinds: tuple[type, ...], seconds: float | None, since_s: float, until_s: float) -> Takes:
    """All tiers well, but for some jobs of one, which take so long (None: hang) for a while."""

    def takes(job: Job, dice: Dice, now_s: float) -> float | None:
        if tier_of(job) == tier and isinstance(job, kinds) and since_s <= now_s < until_s:
            return seconds
        return well(job, dice, now_s)

    return takes


def only(tier: str, plan: Plan) -> Callable[[Tier], Tier]:
    """Faults of one tier alone."""
    return lambda each: faulty(each, plan) if each.name == tier else each


@pytest.mark.parametrize("seed", SEEDS)
def test_what_dram_has_no_room_for_comes_from_disk_and_goes_back_up(seed: int) -> None:
    life = Life(seed, limits=LITTLE_DRAM)
    life.run(300)
    dram, disk = life.rig.books("dram"), life.rig.books("disk")
    assert disk.loaded > 100, disk
    assert dram.stored > disk.stored + 50, "what came from disk was not written to dram"
    assert life.tally.failed == 0, life.tally
    assert life.tally.blocks_loaded > life.tally.blocks_computed, life.tally
    life.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_pool_serves_what_the_tiers_of_this_host_have_lost(seed: int) -> None:
    life = Life(seed, limits={"dram": 16 * 4096, "disk": 16 * 4096})
    life.run(300)
    pool = life.rig.books("pool")
    assert pool.loaded > 50, pool
    assert pool.queried == pool.hit + pool.miss
    life.end()


@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        ((LoadJob,), None),
        ((StoreJob, DeleteJob), None),
        ((LoadJob, StoreJob, DeleteJob), None),
        ((LoadJob, StoreJob, DeleteJob), 10.0),
    ],
)
def test_a_slow_or_hanging_disk_is_left_alone_and_comes_back(kinds: tuple[type, ...], seconds: float | None) -> None:
    life = Life(3, takes=troubled("disk", kinds, seconds, 1.0, 5.0), limits=LITTLE_DRAM, documents=12)
    life.run(100)
    before = life.rig.books("disk")
    life.run(300)
    assert life.rig.books("disk").breaker != "closed", life.rig.books("disk")
    stored, finished, dropped = life.rig.books("dram").stored, life.tally.finished, life.tally.stores_dropped
    life.run(100)
    assert life.tally.stores_dropped == dropped <= 100, "what hangs in one tier keeps blocks from all"
    assert life.tally.finished > finished, "requests wait for a tier that hangs"
    assert life.rig.books("dram").stored > stored, "what hangs in one tier keeps others from being written"
    life.movers.heal()
    life.run(600 if seconds is None else 1500)
    after = life.rig.books("disk")
    assert after.breaker == "closed", after
    assert after.stored > before.stored, after
    assert after.loaded > before.loaded, after
    life.end()


def test_a_tier_that_never_returns_is_lived_without() -> None:
    takes = troubled("pool", (StoreJob, LoadJob, FindJob), None, 0.5, FOR_EVER)
    life = Life(9, takes=takes, limits=LITTLE_DRAM, documents=20)
    life.run(600)
    stored, finished, late = life.rig.books("disk").stored, life.tally.finished, life.rig.books("pool").late
    dropped = life.tally.stores_dropped
    life.run(200)
    assert life.rig.books("disk").stored > stored, life.rig.books("disk")
    assert life.tally.finished > finished + 50, life.tally
    assert life.tally.stores_dropped == dropped <= 100, life.tally
    assert life.rig.books("pool").late <= late + 30, "loads are planned again and again from where nothing comes"
    life.end()


def test_a_pool_that_answers_and_never_gives_is_left_alone() -> None:
    takes = troubled("pool", (LoadJob,), None, 0.5, FOR_EVER)
    life = Life(10, takes=takes, limits={"dram": 16 * 4096, "disk": 16 * 4096}, staging_records=24)
    life.run(800)
    assert life.rig.books("pool").breaker != "closed"
    finished, late = life.tally.finished, life.rig.books("pool").late
    life.run(400)
    assert life.tally.finished > finished + 100, life.tally
    assert life.rig.books("pool").late <= late + 20, "loads are planned again and again from where nothing comes"
    life.end()


@pytest.mark.parametrize("kinds", [(FindJob,), (FindJob, LoadJob, StoreJob)])
def test_a_hanging_pool_costs_each_question_at_most_its_deadline_and_then_none(kinds: tuple[type, ...]) -> None:
    life = Life(4, takes=troubled("pool", kinds, None, 1.0, 4.5), limits={"dram": 16 * 4096, "disk": 16 * 4096})
    life.run(450)
    assert life.rig.books("pool").breaker != "closed", life.rig.books("pool")
    finished, loaded = life.tally.finished, life.rig.books("pool").loaded
    life.movers.heal()
    life.run(900)
    assert life.tally.finished > finished
    assert life.rig.books("pool").breaker == "closed", life.rig.books("pool")
    assert life.rig.books("pool").loaded > loaded, "the pool is not asked again"
    life.end()


FAULTS: list[Fault] = [
    Fail(error=TierUnavailableError),
    Fail(error=TierUnavailableError, after=True),
    Flip(bit=4099),
    Flip(bit=77),
    Resize(by=-1),
    Resize(by=1),
    Torn(bytes_kept=700),
    Impostor(),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("one_in", [4, 40])
def test_tiers_that_lie_and_fail_now_and_then_cost_hits_and_nothing_else(seed: int, one_in: int) -> None:
    def wrap(tier: Tier) -> Tier:
        return faulty(tier, but_no_lies_in_place(seeded(seed + len(tier.name), FAULTS, one_in=one_in)))

    life = Life(seed, wrap=wrap, limits=LITTLE_DRAM)
    life.run(300)
    books = life.fabric.statistics().tiers
    assert sum(each.quarantined for each in books) > 0, books
    assert life.tally.finished > 100, life.tally
    life.end()


@pytest.mark.parametrize("error", [TierUnavailableError, TierFullError])
def test_a_disk_that_takes_no_writes_is_still_read(error: type[TierUnavailableError | TierFullError]) -> None:
    refuses: list[bool] = [False]

    def plan(verb: Verb, number: int) -> Fault | None:
        return Fail(error=error) if verb == "write" and refuses[0] else None

    life = Life(5, wrap=only("disk", plan), limits=LITTLE_DRAM)
    life.run(150)
    refuses[0] = True
    before = life.rig.books("disk")
    life.run(300)
    after = life.rig.books("disk")
    assert after.stored == before.stored, "a write that failed was counted"
    assert after.loaded > before.loaded, "a disk that cannot be written can be read"
    life.end()


def test_a_pool_that_is_killed_and_restarted_is_used_again() -> None:
    is_away: list[bool] = [False]

    def plan(verb: Verb, number: int) -> Fault | None:
        return Fail(error=TierUnavailableError) if is_away[0] else None

    life = Life(6, limits={"dram": 16 * 4096, "disk": 16 * 4096}, wrap=only("pool", plan))
    life.run(100)
    is_away[0] = True
    life.run(200)
    assert life.rig.books("pool").breaker != "closed"
    is_away[0] = False
    before = life.rig.books("pool")
    life.run(900)
    after = life.rig.books("pool")
    assert after.breaker == "closed", after
    assert after.loaded > before.loaded, after
    assert after.stored > before.stored, after
    life.end()


@pytest.mark.parametrize("jump_s", [-1e7, -100.0, 100.0, 1e7])
def test_a_clock_that_jumps_changes_ages_and_nothing_else(jump_s: float) -> None:
    life = Life(7, ttl_s=30.0, limits=LITTLE_DRAM)
    life.run(150)
    life.rig.calendar.time_unix_s += jump_s
    life.run(150)
    assert life.tally.failed <= 8, life.tally
    expired = life.rig.books("dram").expired
    assert (expired > 0) == (jump_s > 0), f"{expired} records expired"
    life.end()


@pytest.mark.parametrize("staging_records", [1, 2, 5])
def test_staging_for_a_few_records_is_enough_for_everything(staging_records: int) -> None:
    life = Life(8, limits=LITTLE_DRAM, staging_records=staging_records)
    life.run(250)
    assert life.rig.books("disk").loaded > 0, life.rig.books("disk")
    assert life.tally.finished > 50, life.tally
    life.end()
