"""What a plan takes from where, what it says of it, and what planning costs."""

import gc
import time

from fakes.fabric import Rig, chain_of
from kvist.fabric.jobs import FindJob

CHAIN = chain_of("a", 8)


def test_a_windowed_group_loads_what_its_window_needs() -> None:
    rig = Rig(payloads=(1024, 512), windows=(None, 40))
    rig.fill(CHAIN, groups=(0, 1))
    ticket = rig.ask(CHAIN)
    wants = rig.plan(ticket).wants
    assert [want.index for want in wants if want.group == 0] == list(range(8))
    assert [want.index for want in wants if want.group == 1] == [5, 6, 7]
    assert [want.index for want in wants] == sorted(want.index for want in wants)
    rig.fabric.drop(ticket)
    rig.close()


def test_only_what_no_tier_of_the_host_has_is_asked_of_the_pool() -> None:
    rig = Rig()
    rig.fill(CHAIN[:5])
    ticket = rig.ask(CHAIN)
    (job,) = [job for job in rig.movers.waiting if isinstance(job, FindJob)]
    assert list(job.groups[0][1]) == CHAIN[5:]
    assert not rig.fabric.is_answered(ticket)
    deadline_s = rig.fabric.next_deadline_s()
    assert deadline_s == 0.02
    rig.movers.begin(job)
    rig.clock.advance(deadline_s)
    assert rig.fabric.is_answered(ticket), "a question holds a request up"
    assert rig.plan(ticket).tokens == 5 * 16
    rig.fabric.drop(ticket)
    rig.movers.do(job)
    rig.close()


def test_a_hit_of_256_blocks_costs_little_and_a_plan_of_8192_too() -> None:
    rig = Rig(staging_records=512, tier_records=9000)
    chain = chain_of("long", 8192)
    for first in range(0, len(chain), 128):
        assert len(rig.store(chain[first : first + 128], first=first)) == 128
        rig.movers.do_all()
    gc.collect()
    gc.freeze()  # of what other tests have left, a collection would be counted here
    spent: list[float] = []
    for _ in range(9):
        begun = time.thread_time()
        ticket = rig.ask(chain[:256])
        rig.fabric.load(ticket, rig.plan(ticket))
        asked = time.thread_time() - begun
        rig.movers.do_all()
        begun = time.thread_time()
        pieces = rig.fabric.landed(ticket)
        rig.fabric.taken(ticket, pieces)
        rig.fabric.state(ticket)
        rig.fabric.drop(ticket)
        assert len(pieces) == 256
        spent.append(asked + time.thread_time() - begun)
    assert min(spent) < 0.006, f"{min(spent) * 1000:.2f} ms; about 1.8 is usual"
    spent.clear()
    ticket = rig.ask(chain)
    for _ in range(9):
        begun = time.thread_time()
        assert len(rig.plan(ticket).wants) == 8192
        spent.append(time.thread_time() - begun)
    gc.unfreeze()
    assert min(spent) < 0.009, f"{min(spent) * 1000:.2f} ms; about 3 is usual"
    rig.fabric.drop(ticket)
    rig.close()


def test_a_decision_tells_its_options_and_where_each_token_would_come_from() -> None:
    rig = Rig(payloads=(3584,), limits={"dram": 4 * 4096, "disk": 64 * 4096})
    rig.fill(CHAIN)  # dram has room for the last four of them
    ticket = rig.ask(CHAIN)
    plan = rig.plan(ticket, [[True, True]])
    decision = plan.decision
    assert decision.chosen in decision.options
    assert [option.tokens for option in decision.options] == sorted(option.tokens for option in decision.options)
    assert sum(source.tokens for source in decision.chosen.sources) == decision.chosen.tokens == plan.tokens == 8 * 16
    by_tier = {source.tier: source for source in decision.chosen.sources}
    assert by_tier["G1"].tokens == 2 * 16
    assert (by_tier["disk"].tokens, by_tier["disk"].bytes) == (2 * 16, 2 * 4096)
    assert (by_tier["dram"].tokens, by_tier["dram"].bytes) == (4 * 16, 4 * 4096)
    assert len(plan.wants) == 6
    assert decision.options[0].load_s == 0.0
    assert decision.chosen.total_s <= decision.options[0].total_s
    assert plan.deadline_s > rig.clock.now_s()
    rig.fabric.drop(ticket)
    rig.close()
