"""Threads that hang, or are told nonsense, keep nobody else from working; what all carriers do is in the contract."""

import threading
from collections.abc import Sequence

from fakes.clock import HandClock
from fakes.fabric import BLUE, NAMESPACE, Unlent
from fakes.tiers import DictTier
from kvist.base.ids import BlockHash, GroupId
from kvist.fabric.carry import Reach
from kvist.fabric.jobs import FindJob, Report
from kvist.fabric.messages import Ticket, TierName
from kvist.fabric.movers import Movers
from kvist.tiers.ports import Address
from kvist.tiers.regions import Regions


class Hanging(Unlent):
    """A tier that answers no question before it is released."""

    def __init__(self, name: str) -> None:
        super().__init__(DictTier(name))
        self.asked = threading.Event()
        self.release = threading.Event()
        self.find = self._find

    def _find(self, addresses: Sequence[Address]) -> list[bool]:
        self.asked.set()
        assert self.release.wait(30)
        return [True] * len(addresses)


def question(ticket: int, tier: str) -> FindJob:
    return FindJob(
        ticket=Ticket(ticket),
        tier=TierName(tier),
        tenant=BLUE,
        namespace=NAMESPACE,
        groups=((GroupId(0), [BlockHash(bytes(32))]),),
    )


def test_a_hung_tier_hangs_only_its_own_threads_and_is_left_behind_at_the_end() -> None:
    hung, well = Hanging("hung"), DictTier("well")
    tiers = {TierName("hung"): hung, TierName("well"): well}
    movers = Movers(Reach(tiers=tiers, regions=Regions(), clock=HandClock()))
    reported: dict[Ticket, threading.Event] = {Ticket(number): threading.Event() for number in (1, 2)}
    movers.start(lambda report: reported[report.ticket].set())
    assert movers.submit(question(1, "hung"))
    assert hung.asked.wait(30)
    assert movers.submit(question(2, "well"))
    assert reported[Ticket(2)].wait(30)
    assert not movers.close(0.0)
    assert not reported[Ticket(1)].is_set()
    hung.release.set()
    assert reported[Ticket(1)].wait(30), "a job is without a report"
    assert movers.close(30)


def test_control_that_raises_costs_no_thread() -> None:
    movers = Movers(Reach(tiers={TierName("well"): DictTier("well")}, regions=Regions(), clock=HandClock()))
    second = threading.Event()

    def report(report: Report) -> None:
        if report.ticket == 1:
            raise ValueError("control has a bug")
        second.set()

    movers.start(report)
    assert movers.submit(question(1, "well"))
    assert movers.submit(question(2, "well"))
    assert second.wait(30)
    assert movers.close(30)


def test_threads_are_daemons_and_named_after_their_lane() -> None:
    movers = Movers(Reach(tiers={TierName("odd"): DictTier("odd")}, regions=Regions(), clock=HandClock()))
    movers.start(lambda report: None)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("kvist-odd")]
    assert sorted(thread.name for thread in threads) == [
        "kvist-odd-ask-0",
        "kvist-odd-change-0",
        "kvist-odd-list-0",
        "kvist-odd-read-0",
        "kvist-odd-read-1",
    ]
    assert all(thread.daemon for thread in threads)
    assert movers.close(30)
