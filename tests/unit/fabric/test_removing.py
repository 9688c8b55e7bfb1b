"""Removals of many records: whoever waits for the lock gets it soon, and nothing comes back that was on its way."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fakes.fabric import BLUE, RED, Rig, chain_of
from kvist.base.errors import TierUnavailableError
from kvist.fabric.administration import Administration
from kvist.fabric.control import Fabric, Inside
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.orders import BATCH
from kvist.fabric.outcome import Outcome
from kvist.tiers.faulty import Fail, faulty
from kvist.tiers.ports import Tier

DRAM, DISK, POOL = TierName("dram"), TierName("disk"), TierName("pool")
TIMEOUT_S = 30.0
MANY = 5 * BATCH + 7


class Watched:
    """A fabric whose owner is told how many records left the books while an operator's verb had the lock."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.until = fabric.until
        self.most = 0

    @contextmanager
    def inside(self) -> Iterator[Inside]:
        with self._fabric.inside() as inside:
            books = [tier.book for tier in inside.desk.tiers if tier.book is not None]
            before = [book.statistics().resident for book in books]
            yield inside
            after = [book.statistics().resident for book in books]
            self.most = max(self.most, *(old - new for old, new in zip(before, after, strict=True)))


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(make_movers=Movers, tier_records=2 * MANY, staging_records=MANY)
    for first in range(0, MANY, 50):
        made.store(chain_of("blue", MANY)[first : first + 50], first=first)
        made.settle()
    yield made
    assert made.fabric.close(TIMEOUT_S)
    made.fabric.audit()
    made.regions.close()


VERBS: dict[str, Callable[[Administration, TierName], Outcome]] = {
    "purge": lambda admin, tier: admin.purge(None, TIMEOUT_S),
    "purge of a tier": lambda admin, tier: admin.purge_tier(tier, None, TIMEOUT_S),
    "purge of a tenant": lambda admin, tier: admin.purge_tier(tier, BLUE, TIMEOUT_S),
    "remove": lambda admin, tier: admin.remove(tier, admin.entries(tier, most=10**9), TIMEOUT_S),
    "move": lambda admin, tier: admin.move(
        tier, POOL if tier == DRAM else DRAM, admin.entries(tier, most=10**9), TIMEOUT_S
    ),
}


@pytest.mark.parametrize("tier", [DRAM, DISK])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_has_the_lock_for_more_than_a_batch(rig: Rig, verb: str, tier: TierName) -> None:
    stored = rig.books(tier).resident
    assert stored > 4 * BATCH
    watched = Watched(rig.fabric)
    outcome = VERBS[verb](Administration(watched), tier)
    assert outcome.left == 0
    assert rig.books(tier).resident == 0
    assert list(rig.tiers[tier].entries()) == []
    assert 0 < watched.most <= BATCH


def test_counts_are_those_of_what_was_removed(rig: Rig) -> None:
    admin, entries = Administration(rig.fabric), Administration(rig.fabric).entries(POOL, most=10**9)
    rig.tiers[POOL].delete([entry.address for entry in entries[:9]])
    assert admin.remove(POOL, entries, TIMEOUT_S) == Outcome(done=len(entries) - 9, absent=9)
    assert rig.books(POOL).purged == len(entries) - 9
    assert admin.remove(POOL, entries, TIMEOUT_S) == Outcome(absent=len(entries))
    assert rig.books(POOL).purged == len(entries) - 9
    assert admin.purge_tier(POOL, None, TIMEOUT_S) == Outcome()


def test_a_tier_that_fails_leaves_what_it_has_and_says_so() -> None:
    failing = {"pool"}

    def wrap(tier: Tier) -> Tier:
        broken = Fail(error=TierUnavailableError)
        return faulty(tier, lambda verb, _: broken if verb == "delete" and tier.name in failing else None)

    rig = Rig(make_movers=Movers, wrap=wrap)
    rig.store(chain_of("blue", 5))
    rig.settle()
    admin = Administration(rig.fabric)
    assert admin.purge_tier(POOL, BLUE, TIMEOUT_S) == Outcome(left=5)
    assert rig.books(POOL).purged == 0
    failing.clear()
    assert admin.purge_tier(POOL, BLUE, TIMEOUT_S) == Outcome(done=5)
    assert rig.fabric.close(TIMEOUT_S)
    rig.regions.close()


@pytest.mark.parametrize("tenant", [BLUE, None])
@pytest.mark.parametrize("tier", [DRAM, DISK, POOL])
def test_what_has_room_or_is_being_stamped_does_not_come_back(tier: TierName, tenant: object) -> None:
    rig = Rig()
    rig.store(chain_of("blue", 3))
    rig.store(chain_of("red", 2), tenant=RED)
    with rig.fabric.inside() as inside:
        inside.storing.refuse(inside.desk.by_name[tier], tenant)
    rig.movers.do_all()
    for name in (DRAM, DISK, POOL):
        left = {entry.address.tenant for entry in rig.tiers[name].entries()}
        refused = {BLUE, RED} if tenant is None else {BLUE}
        assert left == ({BLUE, RED} - refused if name == tier else {BLUE, RED}), name
    rig.fabric.audit()
    assert rig.fabric.statistics().staging_bytes_used == 0
    rig.close()


def test_what_is_being_written_to_a_keyed_tier_is_deleted_behind_it() -> None:
    """The writes wait in the tier's lane when the purge begins, in no listing yet."""
    rig = Rig(make_movers=Movers)
    rooms = rig.store(chain_of("blue", 6))
    assert rooms
    outcome = Administration(rig.fabric).purge_tier(POOL, BLUE, TIMEOUT_S)
    rig.settle()
    assert outcome.left == 0
    assert list(rig.tiers[POOL].entries()) == []
    with rig.fabric.inside() as inside:
        assert not any(inside.desk.by_name[POOL].has(entry.address.key, 0.0) for entry in rig.tiers[DISK].entries())
    assert rig.fabric.close(TIMEOUT_S)
    rig.fabric.audit()
    rig.regions.close()


def test_the_slowest_tier_is_purged_first_so_that_nothing_is_loaded_back_above(rig: Rig) -> None:
    """A load from below writes to the tiers above it: there nothing may be purged before all below is."""
    order: list[str] = []

    class Noting(Watched):
        @contextmanager
        def inside(self) -> Iterator[Inside]:
            with super().inside() as inside:
                yield inside
                empty = [tier.name for tier in inside.desk.tiers if not tier.books(0.0).resident]
                order.extend(name for name in empty if name not in order)

    Administration(Noting(rig.fabric)).purge(None, TIMEOUT_S)
    assert order == [POOL, DISK, DRAM]
