"""The engine's face of the fabric: what may be asked in which order, what is told, and what it costs."""

import threading

import pytest

from fakes.fabric import BLUE, NAMESPACE, RED, Rig, chain_of
from kvist.base.errors import ConfigError, TierUnavailableError
from kvist.base.ids import GroupId
from kvist.base.units import Tokens
from kvist.fabric.jobs import LoadJob, StampJob
from kvist.fabric.messages import Declined, Offer, Query, Room, Ticket, TierName
from kvist.fabric.movers import Movers
from kvist.tiers.faulty import Fail, faulty

CHAIN = chain_of("a", 8)


def complete(rig: Rig, ticket: Ticket) -> int:
    """Loads and takes all that a plan wants; how many blocks."""
    rig.fabric.load(ticket, rig.plan(ticket))
    taken = 0
    while rig.fabric.state(ticket) == "loading":
        rig.movers.do_all()
        taken += len(rig.take(ticket, CHAIN))
    return taken


def test_what_was_stored_comes_back_once_and_as_it_was() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    assert rig.fabric.is_answered(ticket)
    assert complete(rig, ticket) == 8
    assert rig.fabric.state(ticket) == "complete"
    assert rig.fabric.landed(ticket) == []
    rig.fabric.drop(ticket)
    rig.fabric.drop(ticket)
    rig.fabric.audit()
    assert rig.fabric.statistics().staging_bytes_used == 0
    rig.close()


def test_another_tenant_finds_nothing() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN, tenant=RED)
    rig.movers.do_all()
    plan = rig.plan(ticket)
    assert (plan.tokens, plan.wants) == (0, ())
    rig.fabric.drop(ticket)
    rig.close()


def test_the_last_token_is_always_left_to_compute() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    for tokens, expected in ((8 * 16 + 1, 8), (8 * 16, 7), (17, 1), (16, 0), (1, 0), (0, 0)):
        ticket = rig.ask(CHAIN, tokens=tokens)
        assert rig.plan(ticket).tokens == expected * 16, tokens
        rig.fabric.drop(ticket)
    rig.close()


def test_a_query_is_as_it_was_when_it_was_asked() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    growing = list(CHAIN)
    ticket = rig.fabric.begin(Query(tenant=BLUE, chain=growing, tokens=Tokens(8 * 16 + 1)))
    growing.clear()
    assert rig.plan(ticket).tokens == 8 * 16
    rig.fabric.drop(ticket)
    rig.close()


def test_a_plan_counts_once_and_a_load_fails_over_to_the_next_tier() -> None:
    def wrap(tier):
        return faulty(tier, lambda verb, number: Fail(error=TierUnavailableError) if verb == "lend" else None)

    rig = Rig(wrap=wrap)
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    rig.plan(ticket)
    rig.plan(ticket)
    assert complete(rig, ticket) == 8
    assert (rig.books("dram").queried, rig.books("dram").hit) == (8, 8)
    assert (rig.books("dram").loaded, rig.books("dram").load_failures) == (0, 8)
    assert rig.books("disk").loaded == 8
    rig.fabric.drop(ticket)
    rig.close()


def test_a_pool_that_answers_too_late_three_times_is_asked_no_more_until_a_pause_is_over() -> None:
    rig = Rig(names=("pool",))
    for _ in range(3):
        ticket = rig.ask(CHAIN)
        (job,) = rig.movers.waiting
        rig.movers.begin(job)
        rig.clock.advance(0.02)
        assert rig.fabric.is_answered(ticket)
        rig.movers.do(job)
        rig.fabric.drop(ticket)
    assert rig.books("pool").breaker == "open"
    ticket = rig.ask(CHAIN)
    assert rig.movers.waiting == []
    assert rig.fabric.is_answered(ticket)
    rig.fabric.drop(ticket)
    rig.clock.advance(1.0)
    rig.fabric.drop(rig.ask(CHAIN))
    rig.clock.advance(1.0)
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    assert rig.books("pool").breaker == "closed"
    rig.fabric.drop(ticket)
    rig.close()


def test_a_late_load_fails_keeps_its_staging_until_the_read_returns_and_blames_the_tier() -> None:
    rig = Rig(names=("disk",))
    rig.fill(CHAIN)
    for _ in range(3):  # as many as open a breaker
        ticket = rig.ask(CHAIN)
        plan = rig.plan(ticket)
        assert plan.wants
        rig.fabric.load(ticket, plan)
        (job, *_) = [job for job in rig.movers.waiting if isinstance(job, LoadJob)]
        rig.movers.begin(job)
        assert rig.fabric.next_deadline_s() == plan.deadline_s
        rig.clock.advance(plan.deadline_s - rig.clock.now_s())
        assert rig.fabric.state(ticket) == "failed"
        assert rig.fabric.next_deadline_s() is None
        rig.fabric.drop(ticket)
        rig.fabric.audit()
        assert rig.fabric.statistics().staging_bytes_used > 0, "staging under a read was given away"
        rig.movers.do(job)
        assert rig.fabric.statistics().staging_bytes_used == 0
    books = rig.books("disk")
    assert (books.late, books.loaded, books.breaker) == (24, 0, "open")
    ticket = rig.ask(CHAIN)
    assert rig.plan(ticket).tokens == 0, "a tier that is left alone is planned with"
    rig.fabric.drop(ticket)
    rig.close()


@pytest.mark.parametrize("staging_records", [4, 16])
def test_a_load_is_given_up_in_any_state(staging_records: int) -> None:
    for step in range(6):
        rig = Rig(names=("disk", "pool"), staging_records=staging_records, settings={"piece_records": 2})
        rig.fill(CHAIN)
        ticket = rig.ask(CHAIN)
        if step > 0:
            plan = rig.plan(ticket)
        if step > 1:
            rig.fabric.load(ticket, plan)
        if step > 2:
            rig.movers.begin(rig.movers.waiting[0])
        if step > 3:
            rig.movers.do(rig.movers.waiting[0])
        if step > 4:
            rig.fabric.landed(ticket)
        rig.fabric.drop(ticket)
        rig.fabric.audit()
        rig.movers.do_all()
        rig.fabric.audit()
        statistics = rig.fabric.statistics()
        assert (statistics.loads_running, statistics.staging_bytes_used) == (0, 0), step
        rig.close()


def test_offers_are_declined_for_a_reason() -> None:
    rig = Rig(staging_records=4)
    first, second, third = (
        rig.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=block_hash, index=index))
        for index, block_hash in enumerate(CHAIN[:3])
    )
    assert isinstance(first, Room)
    assert third == Declined(reason="busy")
    assert rig.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=CHAIN[0], index=0)) == Declined(reason="stored")
    rig.fabric.withdraw(first)
    assert isinstance(rig.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=CHAIN[0], index=0)), Room)
    assert rig.fabric.close(0.0)
    offer = Offer(tenant=BLUE, group=GroupId(0), hash=CHAIN[7], index=7)
    assert rig.fabric.offer(offer) == Declined(reason="no tier")
    assert second is not None
    rig.regions.close()


def test_copies_are_known() -> None:
    for name in ("dram", "disk", "pool"):
        rig = Rig(names=(name,))
        rig.fill(CHAIN[:1])
        assert rig.fabric.has_copy(GroupId(0), CHAIN[0])
        assert not rig.fabric.has_copy(GroupId(0), CHAIN[1])
        rig.close()


def test_the_engine_is_woken_and_waiters_are_told() -> None:
    rig = Rig()
    woken: list[bool] = []
    rig.fabric.on_change = lambda: woken.append(rig.fabric.statistics().stores_running >= 0)  # the lock is free
    assert not rig.fabric.wait(0.0)
    rig.store(CHAIN[:1])
    rig.movers.do_all()
    assert len(woken) == 4, "one stamp and three tiers"
    assert rig.fabric.wait(0.0)
    assert not rig.fabric.wait(0.0)
    rig.close()


def test_closing_waits_for_what_is_being_stored() -> None:
    rig = Rig(make_movers=Movers)
    rig.store(CHAIN)
    assert rig.fabric.close(30.0)
    assert rig.books("disk").stored == 8
    assert rig.fabric.statistics().staging_bytes_used == 0
    rig.regions.close()


def test_closing_deletes_what_is_owed_so_that_it_does_not_come_back() -> None:
    rig = Rig(make_movers=Movers, names=("disk",))
    rig.store(CHAIN)
    rig.settle()
    with rig.fabric.inside() as inside:
        inside.writing.owe(inside.desk.tiers[0], inside.desk.tiers[0].book.purge())
    assert rig.fabric.close(30.0)
    assert list(rig.tiers["disk"].entries()) == []
    rig.regions.close()


def test_closing_does_not_wait_for_ever() -> None:
    rig = Rig()
    rig.store(CHAIN)
    assert not rig.fabric.close(0.0)
    rig.fabric.audit()
    assert rig.fabric.statistics().staging_bytes_used == 0, "what never began keeps nothing"
    rig.regions.close()


def test_evictions_are_deleted_before_their_places_are_written() -> None:
    rig = Rig(names=("disk",), tier_records=4)
    chain = chain_of("many", 40)
    rig.fill(chain)
    rig.fabric.audit()
    assert rig.books("disk").evicted == 40 - rig.books("disk").resident > 0
    listed = {entry.address.key.hash for entry in rig.tiers["disk"].entries()}
    assert len(listed) == rig.books("disk").resident, "the tier and the books differ"
    assert all(rig.fabric.has_copy(GroupId(0), block_hash) for block_hash in listed)
    rig.close()


def test_a_write_that_broke_may_have_left_something_and_is_deleted() -> None:
    fails = [True]

    def wrap(tier):
        def plan(verb, number):
            return Fail(error=TierUnavailableError, after=True) if verb == "write" and fails[0] else None

        return faulty(tier, plan)

    rig = Rig(names=("disk",), wrap=wrap)
    rig.store(CHAIN)
    rig.movers.do_all()
    assert (rig.books("disk").stored, rig.books("disk").declined) == (0, 8)
    assert list(rig.tiers["disk"].entries()) == [], "what was not acknowledged stays where it may be overwritten"
    fails[0] = False
    rig.fill(CHAIN)
    assert rig.books("disk").stored == 8
    rig.close()


def test_what_is_owed_is_not_deleted_once_it_is_written_again() -> None:
    rig = Rig(names=("disk",), tier_records=4)  # one extent, so that places come back at once
    rig.fill(CHAIN[:1])
    with rig.fabric.inside() as inside:
        inside.writing.owe(inside.desk.tiers[0], inside.desk.tiers[0].book.purge())
        inside.writing.flush(inside.desk.tiers[0])
    for block_hash in CHAIN[:2]:  # the first one again, at the place it had, and another one behind it
        rig.store([block_hash])
        (stamp,) = [job for job in rig.movers.waiting if isinstance(job, StampJob)]
        rig.movers.do(stamp)
    rig.movers.do_all()
    rig.fabric.audit()
    assert {entry.address.key.hash for entry in rig.tiers["disk"].entries()} == set(CHAIN[:2])
    assert rig.books("disk").resident == 2
    rig.close()


def test_a_record_that_lies_in_staging_keeps_no_place_in_its_tier() -> None:
    rig = Rig(names=("disk",))
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    rig.fabric.load(ticket, rig.plan(ticket))
    rig.movers.do_all()
    with rig.fabric.inside() as inside:
        assert len(inside.desk.tiers[0].book.purge()) >= 4, "what was read is still held"
    assert len(rig.take(ticket, CHAIN)) >= 4
    rig.fabric.drop(ticket)
    rig.close()


def test_a_fabric_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="one name: pool, pool"):
        Rig(names=("pool", "pool"))
    with pytest.raises(ConfigError, match="staging"):
        Rig(settings={"staging_bytes": 4096}, payloads=(8192,))


def test_many_threads_may_ask_and_store_at_once() -> None:
    rig = Rig(make_movers=Movers, staging_records=64)
    faults: list[BaseException] = []

    def work(name: str) -> None:
        chain = chain_of(name, 8)
        for _ in range(20):
            try:
                rig.store(chain)
                ticket = rig.ask(chain)
                plan = rig.plan(ticket)
                rig.fabric.load(ticket, plan)
                rig.take(ticket, chain)
                rig.fabric.drop(ticket)
            except AssertionError as error:
                faults.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert rig.fabric.close(30.0)
    rig.fabric.audit()
    assert rig.fabric.statistics().staging_bytes_used == 0
    rig.regions.close()


def test_many_that_expire_at_once_go_a_few_in_each_turn_and_are_never_found() -> None:
    rig = Rig(ttl_s=60.0, tier_records=400, staging_records=128, names=("dram", "disk"))
    chain = chain_of("blue", 300)
    for first in range(0, 300, 20):
        rig.store(chain[first : first + 20], first=first)
        rig.movers.do_all()
    assert rig.books("dram").resident == rig.books("disk").resident == 300
    rig.calendar.time_unix_s += 61.0
    rig.clock.advance(1.0)
    steps, before = 0, 300
    while rig.books("dram").resident or rig.books("disk").resident:
        assert not rig.fabric.has_copy(GroupId(0), chain[-1])
        with rig.fabric.inside():  # a turn
            pass
        now = rig.books("dram").resident
        assert 0 <= before - now <= 64
        before, steps = now, steps + 1
        assert steps < 10, "a turn must not wait for the next second while there is more"
    rig.movers.do_all()
    assert rig.books("dram").expired == rig.books("disk").expired == 300
    assert list(rig.tiers[TierName("disk")].entries()) == []
    rig.fabric.audit()
    rig.close()


def test_what_was_stored_before_is_found_by_nobody_and_what_comes_after_is() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    rig.renew()
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    assert rig.plan(ticket).tokens == 0
    assert not rig.fabric.has_copy(GroupId(0), CHAIN[0])
    rig.fabric.drop(ticket)
    rig.fill(CHAIN[:3])
    assert rig.fabric.has_copy(GroupId(0), CHAIN[0])
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    assert complete(rig, ticket) == 3
    rig.fabric.drop(ticket)
    assert rig.books("dram").resident == 11, "what was there before is the tier's to evict"
    rig.close()


def test_the_same_name_again_is_our_own_mistake() -> None:
    rig = Rig()
    with pytest.raises(AssertionError, match="what it was before"):
        rig.fabric.renew(NAMESPACE)
    rig.close()
