"""Loads whose namespace ends under them: they fail, hand over nothing more, and give back what they can."""

from fakes.fabric import Rig, chain_of
from kvist.fabric.loads import Errand
from kvist.fabric.messages import Ticket

CHAIN = chain_of("a", 8)


def complete(rig: Rig, ticket: Ticket) -> int:
    """Loads and takes all that a plan wants; how many blocks."""
    rig.fabric.load(ticket, rig.plan(ticket))
    taken = 0
    while rig.fabric.state(ticket) == "loading":
        rig.movers.do_all()
        taken += len(rig.take(ticket, CHAIN))
    return taken


def test_a_plan_of_before_is_not_carried_out() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    plan = rig.plan(ticket)
    assert plan.wants
    rig.renew()
    rig.fabric.load(ticket, plan)
    assert rig.movers.waiting == []
    assert rig.fabric.landed(ticket) == []
    assert rig.fabric.state(ticket) == "failed"
    rig.fabric.audit()
    rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()


def test_a_load_that_runs_fails_and_its_staging_stays_until_the_read_returns() -> None:
    rig = Rig(names=("disk",), settings={"piece_records": 2})
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    rig.fabric.load(ticket, rig.plan(ticket))
    first, second, *_ = rig.movers.waiting
    rig.movers.do(first)
    handed = rig.fabric.landed(ticket)
    assert len(handed) == 2
    rig.movers.begin(second)
    rig.fabric.wait(0.0)
    rig.renew()
    assert rig.fabric.wait(0.0), "who waits is told"
    assert rig.fabric.state(ticket) == "loading", "two pieces are still looked at"
    rig.check(handed, CHAIN, era=0)
    rig.fabric.taken(ticket, handed)
    assert rig.fabric.state(ticket) == "failed"
    assert rig.movers.waiting == [second], "what had not begun was taken back"
    assert rig.fabric.statistics().staging_bytes_used > 0
    rig.movers.do(second)
    assert rig.fabric.landed(ticket) == []
    rig.fabric.audit()
    assert rig.fabric.statistics().staging_bytes_used == 0
    books = rig.books("disk")
    assert (books.loaded, books.late, books.load_failures, books.breaker) == (2, 0, 0, "closed")
    rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()


def test_what_has_landed_and_was_not_looked_at_is_given_back_at_once() -> None:
    rig = Rig(names=("disk",))
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    rig.fabric.load(ticket, rig.plan(ticket))
    rig.movers.do_all()
    assert rig.fabric.statistics().staging_bytes_used > 0
    rig.renew()
    assert rig.fabric.statistics().staging_bytes_used == 0
    assert rig.fabric.landed(ticket) == []
    assert rig.fabric.state(ticket) == "failed"
    rig.fabric.drop(ticket)
    rig.close()


def test_a_load_that_was_over_stays_what_it_was() -> None:
    rig = Rig()
    rig.fill(CHAIN)
    ticket = rig.ask(CHAIN)
    complete(rig, ticket)
    rig.renew()
    assert rig.fabric.state(ticket) == "complete"
    rig.fabric.drop(ticket)
    rig.close()


def test_what_an_operator_reads_goes_on() -> None:
    rig = Rig(names=("disk",))
    rig.fill(CHAIN)
    with rig.fabric.inside() as inside:
        (disk,) = inside.desk.tiers
        errand = Errand()
        load = inside.loading.run(errand, list(disk.book.entries()), disk, rig.clock.now_s() + 10)
    rig.renew()
    rig.movers.do_all()
    assert errand.sound == 8
    with rig.fabric.inside() as inside:
        inside.loading.drop(load.ticket)
    rig.fabric.audit()
    rig.close()
