"""Rooms that were given out in a namespace that is over: nothing is stored from them."""

from fakes.fabric import BLUE, Rig, chain_of
from kvist.base.ids import GroupId
from kvist.fabric.messages import Offer, Room

CHAIN = chain_of("a", 8)


def test_a_room_of_before_is_dropped_and_counted_when_it_is_stored_or_withdrawn() -> None:
    rig = Rig()
    old = [rig.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=each, index=0)) for each in CHAIN[:3]]
    rig.renew()
    new = rig.fabric.offer(Offer(tenant=BLUE, group=GroupId(0), hash=CHAIN[0], index=0))
    assert isinstance(new, Room), "the same tokens are another block now"
    rig.write(new, CHAIN[0])
    rig.fabric.store([*old[:2], new])
    rig.fabric.withdraw(old[2])
    rig.movers.do_all()
    assert rig.fabric.statistics().stores_dropped == 3
    assert [rig.books(name).stored for name in ("dram", "disk", "pool")] == [1, 1, 1]
    assert rig.fabric.statistics().staging_bytes_used == 0
    ticket = rig.ask(CHAIN[:1])
    rig.fabric.load(ticket, rig.plan(ticket))
    rig.movers.do_all()
    assert len(rig.take(ticket, CHAIN)) == 1
    rig.fabric.drop(ticket)
    rig.fabric.audit()
    rig.close()
