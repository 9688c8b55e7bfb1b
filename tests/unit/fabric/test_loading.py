"""Loads whose namespace ends under them: they fail, hand over nothing more, and give back what they can.

And loads of a crowd: what one of them asks of the lock does not grow with how many others wait.
"""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

from fakes.fabric import Rig, chain_of
from kvist.fabric.loading import Loading
from kvist.fabric.loads import Errand
from kvist.fabric.messages import Ticket
from kvist.fabric.reading import Reading

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


def crowd(loads: int) -> tuple[Rig, list[Ticket]]:
    """So many loads that wait for a disk, most of them for staging."""
    rig = Rig(names=("disk",), staging_records=8, settings={"piece_records": 4})
    rig.fill(CHAIN)
    tickets = [rig.ask(CHAIN) for _ in range(loads)]
    for ticket in tickets:
        rig.fabric.load(ticket, rig.plan(ticket))
    return rig, tickets


def calls_in(action: Callable[[], object], *functions: Callable[..., object]) -> list[int]:
    """How often an action calls each of some functions."""
    calls = Counter[object]()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    sys.setprofile(called)
    try:
        action()
    finally:
        sys.setprofile(None)
    return [calls[function.__code__] for function in functions]


def test_a_turn_looks_at_no_load_before_one_of_them_may_be_late() -> None:
    rig, tickets = crowd(40)
    looked = [calls_in(lambda: rig.fabric.landed(tickets[0]), Loading._check) for _ in range(2)]
    assert looked == [[0], [0]]
    rig.clock.advance(100.0)
    assert calls_in(lambda: rig.fabric.landed(tickets[0]), Loading._check) == [40], "then all are given up"
    assert calls_in(lambda: rig.fabric.landed(tickets[0]), Loading._check) == [0]
    assert [rig.fabric.state(ticket) for ticket in tickets] == ["failed"] * 40
    rig.movers.do_all()
    for ticket in tickets:
        rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()


def test_what_one_load_finds_no_room_for_those_behind_it_are_not_asked_about() -> None:
    rig, tickets = crowd(40)
    (sent,) = calls_in(lambda: rig.movers.do(rig.movers.waiting[0]), Reading.send_piece)
    assert sent <= 3, "a piece that there is room for, the end of its queue, and one that there is none for"
    landed = 0
    while landed < 40 * len(CHAIN):
        rig.movers.do_all()
        landed += sum(len(rig.take(ticket, CHAIN)) for ticket in tickets)
    assert [rig.fabric.state(ticket) for ticket in tickets] == ["complete"] * 40
    for ticket in tickets:
        rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()


def test_a_load_that_needs_no_staging_does_not_wait_behind_one_that_does() -> None:
    rig = Rig(names=("dram",), staging_records=2)
    rig.fill(CHAIN)
    with rig.fabric.inside() as inside:
        (dram,) = inside.desk.tiers
        errand = Errand()
        before = inside.loading.run(errand, list(dram.book.entries()), dram, rig.clock.now_s() + 100)
    assert before.wanted, "it takes more staging than there is"
    ticket = rig.ask(CHAIN)
    rig.fabric.load(ticket, rig.plan(ticket))
    places = [order.buffer for job in rig.movers.waiting for order in job.orders]
    assert places.count(None) == 8, "these are looked at where they lie"
    rig.movers.do_all()
    assert len(rig.take(ticket, CHAIN)) == 8
    assert errand.sound == 8
    with rig.fabric.inside() as inside:
        inside.loading.drop(before.ticket)
    rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()
