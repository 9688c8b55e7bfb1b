"""How long a pool has to answer follows from how long it usually takes, within bounds."""

import pytest

from fakes.fabric import Rig, chain_of
from kvist.fabric.jobs import FindJob
from kvist.tiers.faulty import Fault, Wait, faulty
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
