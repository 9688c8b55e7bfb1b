"""An operator's verbs over a fabric with real movers: each waits for what it started, and says what was not done."""

from collections.abc import Iterator

import pytest

from fakes.fabric import BLUE, NAMESPACE, RED, Rig, chain_of
from kvist.base.errors import ConfigError, TierError, TierUnavailableError
from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey
from kvist.fabric.administration import Administration
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.outcome import Outcome
from kvist.tiers.faulty import Fail, Fault, Flip, faulty
from kvist.tiers.ports import Address, Entry, Tier, Verb

DRAM, DISK, POOL = TierName("dram"), TierName("disk"), TierName("pool")
CHAINS = {BLUE: chain_of("blue", 5), RED: chain_of("red", 3)}
TIMEOUT_S = 30.0


class Faults:
    """Faults that a test switches on, by tier and verb."""

    def __init__(self) -> None:
        self.by_tier: dict[tuple[str, Verb], Fault] = {}

    def wrap(self, tier: Tier) -> Tier:
        return faulty(tier, lambda verb, number: self.by_tier.get((tier.name, verb)))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def rig(faults: Faults) -> Iterator[Rig]:
    made = Rig(make_movers=Movers, wrap=faults.wrap)
    for tenant, chain in CHAINS.items():
        made.store(chain, tenant=tenant)
        made.settle()
    yield made
    assert made.fabric.close(TIMEOUT_S)
    made.fabric.audit()
    made.regions.close()


@pytest.fixture
def administration(rig: Rig) -> Administration:
    return Administration(rig.fabric)


def test_entries_are_listed_by_tenant_and_choice_and_no_more_than_wanted(administration: Administration) -> None:
    for tier in (DRAM, DISK, POOL):
        assert len(administration.entries(tier, timeout_s=TIMEOUT_S)) == 8
        mine = administration.entries(tier, tenant=BLUE, timeout_s=TIMEOUT_S)
        assert {entry.address.key.hash for entry in mine} == set(CHAINS[BLUE])
        for most in (0, 1, 2, 5, 6):
            assert administration.entries(tier, tenant=BLUE, most=most) == list(mine[:most])
        kept = {entry.address.key for entry in mine[3:]}
        found = administration.entries(tier, most=1, means=lambda entry, kept=kept: entry.address.key in kept)
        assert [entry.address.key in kept for entry in found] == [True]


def test_a_record_is_shown_wherever_it_is_and_only_to_its_tenant(administration: Administration) -> None:
    key = BlockKey(NAMESPACE, GroupId(0), "prefix", CHAINS[BLUE][0])
    shown = administration.where(key, BLUE, TIMEOUT_S)
    assert list(shown) == [DRAM, DISK, POOL]
    assert shown[POOL] is None
    assert list(administration.where(key, RED, TIMEOUT_S)) == []
    absent = key._replace(hash=chain_of("nobody's", 1)[0])
    assert list(administration.where(absent, BLUE, TIMEOUT_S)) == []


def test_a_pin_is_seen_in_the_books_and_at_the_tier(rig: Rig, administration: Administration) -> None:
    mine = administration.entries(DISK, tenant=BLUE)
    assert administration.pin(DISK, mine, pinned=True, timeout_s=TIMEOUT_S) == Outcome(done=5)
    assert all(entry.pinned for entry in administration.entries(DISK, tenant=BLUE))
    assert sum(entry.pinned for entry in rig.tiers[DISK].entries()) == 5
    assert administration.pin(DISK, mine[:2], pinned=False, timeout_s=TIMEOUT_S) == Outcome(done=2)
    assert sum(entry.pinned for entry in administration.entries(DISK)) == 3
    assert sum(entry.pinned for entry in rig.tiers[DISK].entries()) == 3


def test_a_pin_that_the_tier_does_not_take_is_not_in_the_books_either(
    administration: Administration, faults: Faults
) -> None:
    faults.by_tier["disk", "keep"] = Fail(error=TierUnavailableError)
    mine = administration.entries(DISK, tenant=BLUE)
    assert administration.pin(DISK, mine, pinned=True, timeout_s=TIMEOUT_S) == Outcome(left=5)
    assert not any(entry.pinned for entry in administration.entries(DISK))


def test_records_move_between_all_kinds_of_tiers(rig: Rig, administration: Administration) -> None:
    assert administration.purge(RED, TIMEOUT_S) == Outcome(done=9)
    for source, target in ((DRAM, DISK), (DISK, POOL), (POOL, DRAM), (DRAM, POOL), (POOL, DISK), (DISK, DRAM)):
        entries = administration.entries(source, timeout_s=TIMEOUT_S)
        assert len(entries) == 5
        assert administration.copy(source, target, entries, TIMEOUT_S) == Outcome(done=5), (source, target)
    entries = administration.entries(DISK)
    assert administration.move(DISK, POOL, entries, TIMEOUT_S) == Outcome(done=5)
    assert administration.entries(DISK) == []
    assert list(rig.tiers[DISK].entries()) == []
    assert administration.copy(POOL, DISK, administration.entries(POOL), TIMEOUT_S) == Outcome(done=5)
    ticket = rig.ask(CHAINS[BLUE])
    assert rig.plan(ticket).tokens == 5 * 16
    rig.fabric.drop(ticket)


def test_what_cannot_be_written_is_left_where_it_was(rig: Rig, administration: Administration, faults: Faults) -> None:
    administration.move(DISK, POOL, administration.entries(DISK), TIMEOUT_S)
    faults.by_tier["disk", "write"] = Fail(error=TierUnavailableError)
    entries = administration.entries(DRAM)
    assert administration.move(DRAM, DISK, entries, TIMEOUT_S) == Outcome(left=8)
    assert len(administration.entries(DRAM)) == 8
    assert rig.books("disk").resident == 0


@pytest.mark.parametrize("tenant", [BLUE, None])
def test_a_purge_leaves_nothing_of_a_tenant_and_everything_of_the_other(
    rig: Rig, administration: Administration, tenant: None
) -> None:
    seen: list[tuple[int, int]] = []
    outcome = administration.purge(tenant, TIMEOUT_S, lambda done, of: seen.append((done, of)))
    left = 0 if tenant is None else 3
    assert outcome == Outcome(done=3 * (8 - left))
    assert seen[-1] == (3 * (8 - left), 3 * (8 - left))
    for tier in (DRAM, DISK, POOL):
        assert {entry.address.tenant for entry in rig.tiers[tier].entries()} == ({RED} if left else set())
        assert rig.books(tier).purged == 8 - left


def test_verifying_finds_what_is_damaged_and_takes_it_out(
    rig: Rig, administration: Administration, faults: Faults
) -> None:
    for tier in (DRAM, DISK, POOL):
        assert administration.verify(tier, timeout_s=TIMEOUT_S) == Outcome(done=8), tier
        faults.by_tier[tier, "read"] = Flip(bit=4321)  # of the last record of each call
        found = administration.verify(tier, timeout_s=TIMEOUT_S)
        assert found.damaged >= 2, tier
        assert found.done + found.damaged == 8, tier
        del faults.by_tier[tier, "read"]
        assert administration.verify(tier, timeout_s=TIMEOUT_S) == Outcome(done=found.done), tier
        assert rig.books(tier).quarantined == found.damaged
        assert len(list(rig.tiers[tier].entries())) == found.done


def test_what_a_tier_had_before_is_taken_over_and_what_cannot_be_right_is_deleted(rig: Rig) -> None:
    administration = Administration(rig.fabric)
    administration.purge(None, TIMEOUT_S)
    old = Rig(make_movers=Movers)
    old.store(CHAINS[BLUE])
    old.settle()
    entries = list(Administration(old.fabric).entries(DISK))
    new = Rig(make_movers=Movers)
    key = entries[0].address.key._replace(hash=CHAINS[RED][0])
    wrong = Entry(
        address=Address(key=key, tenant=BLUE, place=entries[0].address.place),  # two records in one place
        record_bytes=entries[0].record_bytes,
        created_unix_s=0.0,
        expires_unix_s=None,
        pinned=False,
    )
    outcome = Administration(new.fabric).restore(DISK, [*entries, wrong], TIMEOUT_S)
    assert outcome == Outcome(done=5, absent=1)
    assert new.books("disk").resident == 5
    for each in (old, new):
        assert each.fabric.close(TIMEOUT_S)
        each.regions.close()


def test_a_tier_that_is_away_or_unknown_is_named(administration: Administration, faults: Faults) -> None:
    faults.by_tier["pool", "entries"] = Fail(error=TierUnavailableError)
    with pytest.raises(TierError, match="pool"):
        administration.entries(POOL, timeout_s=TIMEOUT_S)
    with pytest.raises(ConfigError, match=r"attic.*dram, disk, pool"):
        administration.entries(TierName("attic"))
    with pytest.raises(ConfigError, match="pool"):
        administration.restore(POOL, [], TIMEOUT_S)


def test_what_a_pool_has_lost_is_copied_before_it_is_removed_elsewhere(
    rig: Rig, administration: Administration
) -> None:
    pool = rig.tiers[POOL]
    pool.delete([entry.address for entry in pool.entries()])  # behind the fabric's back, as a flush or an eviction does
    entries = administration.entries(DISK, timeout_s=TIMEOUT_S)
    assert administration.move(DISK, POOL, entries, TIMEOUT_S) == Outcome(done=8)
    assert len(list(pool.entries())) == 8
    assert administration.entries(DISK, timeout_s=TIMEOUT_S) == []
