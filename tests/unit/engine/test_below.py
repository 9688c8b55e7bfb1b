"""What the engine has when nothing is below it; the promises of tiers are in tests/contract."""

import pytest

from kvist.engine.below import Below, NoTiers
from kvist.fabric.messages import Room, Ticket
from kvist.tiers.regions import Buffer, RegionId

BUFFER = Buffer(region=RegionId("somewhere"), offset=0, length=8)


def test_by_default_there_is_nothing_below_and_no_time_passes() -> None:
    below = Below()
    assert isinstance(below.tiers, NoTiers)
    assert below.time_s() == below.time_s() == 0.0
    with pytest.raises(AssertionError, match="is in no memory known here"):
        below.view(BUFFER)


def test_each_engine_has_tiers_of_its_own() -> None:
    one, other = Below().tiers, Below().tiers
    one.on_change = lambda: None
    assert other.on_change is None


def test_rooms_that_were_never_given_are_not_taken() -> None:
    room = Room(ticket=Ticket(1), buffer=BUFFER)
    with pytest.raises(AssertionError, match="were not given here"):
        NoTiers().store([room])
    with pytest.raises(AssertionError, match="was not given here"):
        NoTiers().withdraw(room)
