"""Whoever waits for a tier: how long, and what becomes of an answer that is late."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from fakes.fabric import BLUE, Rig, Unlent, chain_of
from kvist.base.errors import TierTimeoutError
from kvist.fabric.administration import Administration
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.outcome import Outcome
from kvist.tiers.ports import Address, Entry, Tier

DISK, POOL = TierName("disk"), TierName("pool")
TIMEOUT_S = 30.0


class Slow(Unlent):
    """A tier whose listings and pins wait until they may."""

    def __init__(self, tier: Tier, may: threading.Event) -> None:
        super().__init__(tier)
        self.keep, self.entries = self._keep, self._entries
        self._tier, self._may = tier, may

    def _keep(self, addresses: Sequence[Address], *, pinned: bool, expires_unix_s: float | None) -> Sequence[bool]:
        assert self._may.wait(TIMEOUT_S)
        return self._tier.keep(addresses, pinned=pinned, expires_unix_s=expires_unix_s)

    def _entries(self, tenant: object = None) -> Iterator[Entry]:
        for entry in list(self._tier.entries(tenant)):
            assert self._may.wait(TIMEOUT_S)
            yield entry


@pytest.fixture
def may() -> threading.Event:
    return threading.Event()


@pytest.fixture
def rig(may: threading.Event) -> Iterator[Rig]:
    made = Rig(make_movers=Movers, wrap=lambda tier: Slow(tier, may) if tier.name != "dram" else tier)
    made.store(chain_of("blue", 5))
    made.settle()
    yield made
    may.set()
    assert made.fabric.close(TIMEOUT_S)
    made.fabric.audit()
    made.regions.close()


def test_a_listing_that_takes_very_long_keeps_nobody_from_the_tier(rig: Rig, may: threading.Event) -> None:
    admin = Administration(rig.fabric)
    for _ in range(5):
        with pytest.raises(TierTimeoutError):
            admin.entries(POOL, timeout_s=0.01)
        rig.clock.advance(100.0)
        assert rig.books("pool").breaker == "closed"
    key = next(iter(rig.tiers[DISK]._tier._tier.entries())).address.key
    assert list(admin.where(key, BLUE, TIMEOUT_S)) == ["dram", "disk", "pool"]
    may.set()
    assert len(admin.entries(POOL, timeout_s=TIMEOUT_S)) == 5


@pytest.mark.parametrize("pinned", [True, False])
def test_books_follow_a_tier_that_pins_late(rig: Rig, may: threading.Event, *, pinned: bool) -> None:
    admin = Administration(rig.fabric)
    mine = admin.entries(DISK, tenant=BLUE)
    if not pinned:
        may.set()
        admin.pin(DISK, mine, pinned=True, timeout_s=TIMEOUT_S)
        may.clear()
    mine = admin.entries(DISK, tenant=BLUE)
    assert admin.pin(DISK, mine, pinned=pinned, timeout_s=0.01) == Outcome(left=5)
    assert {entry.pinned for entry in admin.entries(DISK)} == {not pinned}
    may.set()
    assert rig.fabric.until(lambda: not rig.fabric._desk.dispatch.live(), TIMEOUT_S)
    there = {entry.pinned for entry in rig.tiers[DISK].entries()}
    assert {entry.pinned for entry in admin.entries(DISK)} == there


def test_parts_of_a_listing_that_was_left_are_not_kept(rig: Rig, may: threading.Event) -> None:
    may.set()
    admin = Administration(rig.fabric)
    for _ in range(20):
        assert len(admin.entries(POOL, most=2, timeout_s=TIMEOUT_S)) == 2
    assert rig.fabric.until(lambda: not rig.fabric._desk.dispatch.live(), TIMEOUT_S)
    assert not rig.movers._reach.listings._open[POOL]
