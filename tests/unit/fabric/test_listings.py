"""A tier is gone through once for all parts of a listing, and listings that nobody ends do not pile up."""

import pytest

from fakes.tiers import BLUE, DictTier, key_of, write_of
from kvist.base.errors import TierUnavailableError
from kvist.fabric.jobs import ListJob
from kvist.fabric.listings import OPEN_MAX, Listings
from kvist.fabric.messages import Ticket, TierName
from kvist.tiers.faulty import Fail, faulty, scripted
from kvist.tiers.ports import Address

POOL = TierName("pool")


class Counted(DictTier):
    """Counts how often it is gone through."""

    walks = 0

    def entries(self, tenant: object = None) -> object:
        self.walks += 1
        return super().entries(tenant)


@pytest.fixture
def tier() -> Counted:
    made = Counted("pool")
    made.write([write_of(Address(key=key_of(number), tenant=BLUE)) for number in range(7)])
    return made


def job(ticket: int, listing: int, most: int) -> ListJob:
    return ListJob(ticket=Ticket(ticket), tier=POOL, tenant=None, listing=Ticket(listing), most=most)


def test_parts_go_through_the_tier_once_though_what_they_named_is_removed(tier: Counted) -> None:
    listings, seen = Listings(), []
    for ticket in range(1, 5):
        part = listings.part(job(ticket, 1, 3), tier)
        tier.delete([entry.address for entry in part])
        seen.append(len(part))
        if len(part) < 3:
            break
    assert (seen, tier.walks, list(tier.entries())) == ([3, 3, 1], 1, [])


def test_one_that_was_ended_by_itself_by_its_owner_or_for_others_does_not_go_on(tier: Counted) -> None:
    listings = Listings()
    listings.part(job(1, 1, 99), tier)
    listings.part(job(2, 2, 2), tier)
    assert listings.part(job(3, 2, 0), tier) == ()
    assert listings.part(job(4, 4, 0), tier) == ()
    for first in range(10, 11 + OPEN_MAX):
        listings.part(job(first, first, 1), tier)
    for ended in (1, 2, 4, 10):
        with pytest.raises(TierUnavailableError, match="listings at once"):
            listings.part(job(90, ended, 1), tier)
    assert len(listings.part(job(91, 11, 99), tier)) == 6


def test_a_failure_ends_it_and_is_not_taken_for_the_end(tier: Counted) -> None:
    listings, failing = Listings(), faulty(tier, scripted({("entries", 0): Fail(error=TierUnavailableError)}))
    with pytest.raises(TierUnavailableError):
        listings.part(job(1, 1, 3), failing)
    with pytest.raises(TierUnavailableError):
        listings.part(job(2, 1, 3), failing)
    assert len(listings.part(job(3, 3, 3), failing)) == 3
