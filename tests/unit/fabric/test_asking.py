"""How long a pool has to answer follows from how long it usually takes, within bounds."""

import pytest

from fakes.fabric import Rig, chain_of
from kvist.base.errors import TierUnavailableError
from kvist.base.ids import GroupId
from kvist.fabric.jobs import FindJob
from kvist.fabric.messages import TierName
from kvist.tiers.faulty import Fail, Fault, Wait, faulty
from kvist.tiers.ports import Tier, Verb

CHAIN = chain_of("a", 6)


def slow(seconds: float) -> Rig:
    """A pool that takes so long to answer."""
    rig: list[Rig] = []

    def wrap(tier: Tier) -> Tier:
        def plan(verb: Verb, number: int) -> Fault | None:
            return Wait(wait=lambda: rig[0].clock.advance(seconds)) if verb == "find" else None

        return faulty(tier, plan)

    rig.append(Rig(names=("pool",), wrap=wrap))
    return rig[0]


def patience_s(rig: Rig) -> float:
    """Asks, and says how long the pool has; then it answers."""
    ticket = rig.ask(CHAIN)
    deadline_s = rig.fabric.next_deadline_s()
    assert deadline_s is not None
    left_s = deadline_s - rig.clock.now_s()
    rig.movers.do_all()
    rig.fabric.drop(ticket)
    return left_s


@pytest.mark.parametrize(("seconds", "expected"), [(0.0001, 0.02), (0.01, 0.04), (1.0, 0.25)])
def test_a_question_may_take_four_times_as_long_as_usual_within_bounds(seconds: float, expected: float) -> None:
    rig = slow(seconds)
    assert patience_s(rig) == pytest.approx(0.02)
    assert patience_s(rig) == pytest.approx(expected)
    rig.close()


def test_what_the_pool_answers_is_found_and_remembered_block_by_block() -> None:
    rig = Rig(names=("pool",))
    rig.fill(CHAIN[:2])
    rig.fill(CHAIN[4:5])
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    assert rig.plan(ticket).tokens == 2 * 16
    assert (rig.books("pool").queried, rig.books("pool").hit) == (6, 3)
    rig.fabric.drop(ticket)
    rig.close()


def test_each_group_is_asked_about_and_nothing_is_asked_about_nothing() -> None:
    rig = Rig(payloads=(1024, 512), windows=(None, 40))
    assert rig.fabric.is_answered(rig.ask([]))
    assert rig.movers.waiting == []
    rig.fill(CHAIN[:1], groups=(0,))
    rig.fabric.drop(rig.ask([]))
    rig.ask(CHAIN[:3])
    (job,) = rig.movers.waiting
    assert isinstance(job, FindJob)
    assert [list(hashes) for _, hashes in job.groups] == [CHAIN[1:3], CHAIN[:3]]
    rig.close()


def test_a_question_that_nobody_waits_for_any_more_is_taken_back() -> None:
    rig = Rig(names=("pool",))
    rig.fabric.drop(rig.ask(CHAIN))
    assert rig.movers.waiting == []
    rig.fabric.audit()
    rig.close()


def test_a_burst_of_questions_is_no_fault_of_a_tier_that_answers_them_one_by_one() -> None:
    rig = Rig(names=("pool",))
    rig.fill(CHAIN)
    tickets = [rig.ask(CHAIN) for _ in range(30)]
    rig.clock.advance(0.021)  # by now the first is late, and the others have not begun
    for ticket in tickets[1:]:
        assert not rig.fabric.is_answered(ticket), "it has as much longer as there are questions before it"
    rig.movers.do_all()
    assert [rig.plan(ticket).tokens for ticket in tickets[1:]] == [6 * 16] * 29
    assert rig.books("pool").breaker == "closed"
    for ticket in tickets:
        rig.fabric.drop(ticket)
    rig.close()


def test_a_question_that_never_began_is_taken_back_and_blames_nobody() -> None:
    rig = Rig(names=("pool",))
    tickets = [rig.ask(CHAIN) for _ in range(8)]
    rig.clock.advance(0.5)
    assert all(rig.fabric.is_answered(ticket) for ticket in tickets)
    assert rig.movers.waiting == []
    assert rig.books("pool").breaker == "closed"
    rig.close()


def test_what_a_pool_has_lost_is_stored_there_again() -> None:
    rig = Rig(names=("pool",))
    rig.fill(CHAIN)
    assert rig.fabric.has_copy(GroupId(0), CHAIN[0])
    rig.tiers[TierName("pool")].delete([entry.address for entry in rig.tiers[TierName("pool")].entries()])
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    assert rig.plan(ticket).tokens == 0
    assert not rig.fabric.has_copy(GroupId(0), CHAIN[0]), "it was told otherwise"
    rig.fabric.drop(ticket)
    rig.fill(CHAIN)
    again = rig.ask(CHAIN)
    rig.movers.do_all()
    assert rig.plan(again).tokens == 6 * 16
    rig.fabric.drop(again)
    rig.close()


def test_the_pool_is_asked_for_what_a_tier_has_that_cannot_be_read_now() -> None:
    rig = Rig(names=("disk", "pool"), wrap=lambda tier: faulty(tier, broken) if tier.name == "disk" else tier)
    rig.fill(CHAIN)
    for _ in range(3):
        # The load falls back to the pool, and says where its blocks came from in the end.
        ticket = rig.ask(CHAIN)
        rig.fabric.load(ticket, rig.plan(ticket))
        rig.movers.do_all()
        if rig.books("disk").breaker == "open":
            rig.fabric.drop(ticket)
            break
        assert {piece.want.tier for piece in rig.take(ticket, CHAIN)} <= {"pool"}
        rig.fabric.drop(ticket)
    assert rig.books("disk").breaker == "open"
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    plan = rig.plan(ticket)
    assert (plan.tokens, {want.tier for want in plan.wants}) == (6 * 16, {"pool"})
    rig.fabric.drop(ticket)
    rig.close()


def broken(verb: Verb, _: int) -> Fault | None:
    """Nothing can be read."""
    return Fail(error=TierUnavailableError) if verb == "read" else None


def test_a_ticket_of_before_plans_nothing_below_and_waits_for_no_answer() -> None:
    rig = Rig(names=("disk", "pool"))
    rig.fill(CHAIN)
    asked = rig.ask(CHAIN)
    answered = rig.ask(chain_of("b", 4))
    (job,) = rig.movers.waiting
    rig.movers.begin(job)
    assert not rig.fabric.is_answered(answered)
    rig.renew()
    assert rig.fabric.is_answered(answered)
    assert rig.fabric.next_deadline_s() is None
    rig.movers.do(job)
    before = rig.books("pool").queried
    for ticket in (asked, answered):
        plan = rig.plan(ticket, [[True, True, False]])
        assert (plan.tokens, plan.wants) == (32, ())
        assert rig.fabric.foresee(ticket, [[True]]).wants == ()
        rig.fabric.load(ticket, plan)
        assert rig.fabric.state(ticket) == "complete"
        rig.fabric.drop(ticket)
    assert rig.books("pool").queried == before, "nothing was looked for"
    rig.fabric.audit()
    rig.close()
