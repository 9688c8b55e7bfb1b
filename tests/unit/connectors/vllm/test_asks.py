from dataclasses import replace

import pytest

from fakes.fabric_life import Takes, well
from fakes.vllm_side import SideRig, request
from kvist.blocks.keys import Namespace
from kvist.connectors.vllm.asks import Claim
from kvist.fabric.jobs import FindJob
from kvist.fabric.messages import TierBooks


def pool(rig: SideRig) -> TierBooks:
    return rig.life.rig.books("pool")


def questions_of(seconds: float) -> Takes:
    """A pool that answers after so long."""
    return lambda job, dice, now_s: seconds if isinstance(job, FindJob) else well(job, dice, now_s)


def test_what_is_not_known_yet_is_asked_again_and_bounded() -> None:
    rig = SideRig(names=("pool",), takes=questions_of(1e9))
    made = request("one", "a", 64)
    rig.side.arrived(made)
    assert rig.side.matched(made, 0) == (None, False)
    assert rig.side._asks.is_waiting
    rig.life.pass_time(0.3)
    assert rig.side.matched(made, 0) == (0, False)
    assert not rig.side._asks.is_waiting


def test_a_claim_stands_until_something_may_have_changed() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    two = request("two", "a", 80)
    assert rig.claim(two) == 64
    queried = pool(rig).queried
    first = rig.side._asks._asked["two"].claim
    assert rig.side.matched(two, 0) == (64, True)
    assert rig.side._asks._asked["two"].claim is first
    assert rig.side.matched(two, 32) == (32, True)
    second = rig.side._asks._asked["two"].claim
    rig.life.pass_time(0.04)
    assert rig.side.matched(two, 32) == (32, True)
    assert rig.side._asks._asked["two"].claim is second
    rig.life.pass_time(0.04)
    assert rig.side.matched(two, 32) == (32, True)
    assert rig.side._asks._asked["two"].claim is not second
    assert pool(rig).queried == queried, "a request is counted once"


def test_a_load_has_as_much_time_as_when_it_was_planned() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    rig.claim(request("two", "a", 80))
    claim = rig.side._asks._asked["two"].claim
    assert isinstance(claim, Claim)
    patience_s = claim.plan.deadline_s - claim.planned_s
    assert claim.plan_from(claim.planned_s + 7).deadline_s == pytest.approx(claim.planned_s + 7 + patience_s)


def test_a_longer_request_is_asked_about_anew() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 128))
    two = request("two", "a", 80)
    assert rig.claim(two) == 64
    ticket = rig.side._asks.tickets["two"]
    assert rig.claim(replace(two, tokens=144, hashes=request("two", "a", 144).hashes)) == 128
    assert rig.side._asks.tickets["two"] != ticket
    rig.side.audit()


def test_only_so_many_are_asked_about_before_it_is_their_turn() -> None:
    rig = SideRig()
    for number in range(40):
        rig.side.arrived(request(f"{number}", f"{number}", 64))
    assert len(rig.side._asks.tickets) == 32
    last = request("39", "39", 64)
    rig.side.matched(last, 0)
    assert "39" in rig.side._asks.tickets
    rig.side.audit()


def test_a_request_that_begins_or_goes_is_no_longer_asked_about() -> None:
    rig = SideRig()
    one, two = request("one", "a", 64), request("two", "b", 64)
    for each in (one, two):
        rig.side.arrived(each)
    rig.side.allocated(one, rig.tables(1, 64), 0)
    rig.side.finished(two, ((),))
    assert rig.side._asks.tickets == {}
    rig.side.audit()


def test_a_reset_undoes_what_was_claimed() -> None:
    rig = SideRig()
    rig.store(request("one", "a", 64))
    two = request("two", "a", 65)
    assert rig.claim(two) == 64
    rig.side.reset(Namespace(b"new".ljust(32)))
    assert rig.claim(two) == 0
    rig.side.audit()
