"""What every EvictionOrder, Admission, Placement and Retention promises to the fabric, whichever it is."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.keys import OTHER, TENANT, key
from kvist.base.ids import GroupId
from kvist.fabric.book import Book
from kvist.fabric.claims import BookLimits, Claim, Refused
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.policies import (
    ADMISSIONS,
    EVICTION_ORDERS,
    PLACEMENTS,
    RETENTIONS,
    Admission,
    AdmitEverything,
    Candidate,
    EvictionOrder,
    LongestUnused,
    Placement,
    Retention,
    TimeToLive,
    WriteThrough,
)

TIERS = [TierName(name) for name in ("dram", "disk", "pool", "bucket")]

MakeOrder = Callable[[], EvictionOrder]

ORDERS: list[MakeOrder] = [LongestUnused]
ADMITTING: list[Callable[[], Admission]] = [AdmitEverything]
PLACING: list[Callable[[], Placement]] = [WriteThrough]
RETAINING: list[Callable[[float | None], Retention]] = [lambda ttl_s: TimeToLive(ttl_s=ttl_s)]


def test_every_policy_that_has_a_name_is_held_to_the_contract() -> None:
    assert {type(make()) for make in EVICTION_ORDERS.values()} == {type(make()) for make in ORDERS}
    assert {type(make()) for make in ADMISSIONS.values()} == {type(make()) for make in ADMITTING}
    assert {type(make()) for make in PLACEMENTS.values()} == {type(make()) for make in PLACING}
    assert {type(make(None)) for make in RETENTIONS.values()} == {type(make(None)) for make in RETAINING}


@pytest.mark.parametrize("make", ORDERS)
class TestEvictionOrder:
    @given(steps=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
    def test_it_chooses_among_those_that_have_a_turn(self, make: MakeOrder, steps: list[tuple[int, bool]]) -> None:
        """Against the naive model, a set: what is in it is touched or leaves, what is not enters."""
        order, there = make(), set()
        for number, stays in steps:
            if number not in there:
                order.add(key(number))
                there.add(number)
            elif stays:
                order.touch(key(number))
            else:
                order.remove(key(number))
                there.remove(number)
            if there:
                assert order.choose() in {key(each) for each in there}
                assert order.choose() == order.choose(), "choosing changes nothing"

    def test_each_record_is_given_up_once(self, make: MakeOrder) -> None:
        order, given_up = make(), []
        for number in range(50):
            order.add(key(number))
        for _ in range(50):
            given_up.append(order.choose())
            order.remove(given_up[-1])
        assert sorted(given_up) == sorted(key(number) for number in range(50))

    def test_books_with_it_always_add_up(self, make: MakeOrder) -> None:
        limits = BookLimits(bytes_max=200, extent_bytes=64, alignment=8, tenant_bytes_max={OTHER: 48})
        book, ticket = Book(limits, make), Ticket(1)
        for number in range(60):
            tenant = OTHER if number % 3 else TENANT
            claim = Claim(key=key(number), tenant=tenant, record_bytes=8 << number % 2)
            assert not isinstance(book.reserve(claim, ticket, 0.0), Refused)
            book.audit({ticket})
            book.commit(key(number), ticket, float(number))
            book.touch(key(number // 2))
            book.audit(())
        assert book.statistics().evicted > 0


@pytest.mark.parametrize("make", ADMITTING)
def test_an_admission_answers_for_any_block(make: Callable[[], Admission]) -> None:
    admission = make()
    for index, record_bytes in ((0, 1), (10**9, 2**40)):
        candidate = Candidate(tenant=TENANT, group=GroupId(0), index=index, record_bytes=record_bytes)
        assert admission.admits(candidate) in {True, False}


@pytest.mark.parametrize("make", PLACING)
@given(tiers=st.lists(st.sampled_from(TIERS), unique=True), loaded_from=st.sampled_from(TIERS))
def test_a_placement_names_tiers_in_use_in_their_order(
    make: Callable[[], Placement], tiers: list[TierName], loaded_from: TierName
) -> None:
    for answer in (make().stores(tiers), make().promotes(loaded_from, tiers)):
        assert list(answer) == [tier for tier in tiers if tier in answer]
    assert loaded_from not in make().promotes(loaded_from, tiers)


@pytest.mark.parametrize("make", RETAINING)
@given(ttl_s=st.none() | st.floats(1, 1e9), created=st.floats(0, 1e10))
def test_a_retention_ends_after_the_record_was_written(
    make: Callable[[float | None], Retention], ttl_s: float | None, created: float
) -> None:
    expires = make(ttl_s).expires_unix_s(created)
    assert expires is None or expires > created
