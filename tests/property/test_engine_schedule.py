"""The engine under random traffic, over a backend that reads every context back.

What each request must get and what the books must say is checked after every step by `fakes.trial`; here is what
happens to the engine, and what is true of whole histories.
"""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from depth import examples
from fakes.below import DictTiers, Manners
from fakes.dice import Dice
from fakes.fabric_below import FabricTiers
from fakes.shape import Shape, request_of
from fakes.trial import EngineTrial
from kvist.base.errors import CapacityError
from kvist.base.units import Tokens
from kvist.blocks.window import Retention
from kvist.engine.backend import BackendError
from kvist.engine.messages import Admitted
from kvist.engine.request import Request

WINDOWS: list[tuple[int | None, ...]] = [(None,), (3,), (None, 1), (None, 5), (None, 4, 9), (2, 7), (None, 16)]
"""Full attention alone, windows alone, both; windows of less than a block, of no whole number, longer than a step."""

STREAMS = [tuple((place * place * 7 + start) % 3 for place in range(64)) for start in range(2)]
"""What prompts begin with, so that they share prefixes of all lengths."""


Seeds = st.integers(0, 2**64 - 1)


def shape_of(dice: Dice, *, overcommit: float) -> Shape:
    """A small engine, whose pools hold one long request or a little more than that."""
    sequences = dice.number(1, 4)
    lean = Shape(
        windows=dice.pick(WINDOWS),
        block_tokens=dice.number(1, 5),
        step_tokens=dice.number(sequences, 14),
        sequences_max=sequences,
        overcommit=overcommit,
        retention=Retention(checkpoint_tokens=Tokens(dice.pick([8, 15, 1000])), slack_tokens=Tokens(dice.pick([0, 5]))),
    )
    longest, spare = dice.number(10, 30), dice.pick([0, 1, 3, 8] if overcommit == 1 else [0, 1])
    return replace(lean, blocks=tuple(most + spare for most in lean.rules.peak(longest, lean.step_tokens)))


def requests_of(dice: Dice, first: int, longest: int) -> list[Request]:
    """Requests that arrive together, for one prompt or a little less of it, the first one named `first`."""
    shared = dice.pick(STREAMS)[: dice.number(1, dice.pick([4, longest - 3]))]
    prompt = shared + dice.pick([(), (0,), (1,), (2, 0)])
    room = longest - len(prompt) + 1
    output, cut, tenant = dice.pick([1, dice.number(1, room), room]), dice.pick([0, 0, 1, 2]), dice.pick("ab")
    return [
        request_of(
            f"{first + index}",
            prompt[: max(1, len(prompt) - cut * index)],
            output=output,
            tenant=tenant,
            seed=index,
            stops=dice.pick([(0,), (), (), ()]),
        )
        for index in range(dice.pick([1, 1, 2, 4]))
    ]


class EngineMachine(RuleBasedStateMachine):
    """Traffic: requests, copies, aborts, steps and faults. Ends by draining and auditing the whole history."""

    overcommit: ClassVar[float] = 1.0
    faulty: ClassVar[bool] = False
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(seed=Seeds)
    def start(self, seed: int) -> None:
        self.trial = self.make(shape_of(Dice(seed), overcommit=self.overcommit), seed)

    def make(self, shape: Shape, seed: int) -> EngineTrial:
        return EngineTrial(shape)

    @rule(seed=Seeds)
    def submit(self, seed: int) -> None:
        longest = self.trial.shape.longest
        requests = requests_of(Dice(seed), len(self.trial.requests), min(30, longest))
        if Dice(seed).pick(range(10)) == 0:
            self.trial.submit(replace(requests[0], output_tokens_max=Tokens(longest + 2)))
            assert self.trial.ended(requests[0].id)
        else:
            self.trial.submit(*requests)

    @precondition(lambda self: self.trial.core.has_work)
    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if self.trial.core.has_work:
                self.trial.step()

    @precondition(lambda self: self.trial.requests)
    @rule(seed=Seeds)
    def abort(self, seed: int) -> None:
        live = [name for name in self.trial.requests if not self.trial.ended(name)]
        self.trial.abort(Dice(seed).pick(live or list(self.trial.requests)))

    @precondition(lambda self: self.faulty and self.trial.core.has_work)
    @rule(seed=Seeds)
    def fail(self, seed: int) -> None:
        """One step fails; or from now on larger batches never fit, until another number is drawn."""
        memory = self.trial.backend.batch_tokens_max = Dice(seed).pick([None, None, None, 9, 5, 3])
        if memory is None:
            self.trial.step(Dice(seed).pick([CapacityError("no room"), BackendError("broken")]))

    def teardown(self) -> None:
        if not hasattr(self, "trial"):
            return
        self.trial.drain()
        self.trial.check_ended()
        statistics = self.trial.core.statistics()
        events = [event for events in self.trial.events.values() for event in events]
        self.seen.update({"histories": 1, "requests": len(self.trial.requests)})
        self.seen["hits"] += sum(isinstance(event, Admitted) and event.tokens_cached > 0 for event in events)
        for name in (
            "steps",
            "preemptions",
            "refusals",
            "aborts",
            "failures",
            "finished",
            "evictions",
            "out_of_memory",
            "loads",
            "loads_failed",
            "stores_dropped",
        ):
            self.seen[name] += getattr(statistics, name)


class OvercommittedMachine(EngineMachine):
    overcommit = 4.0
    seen: ClassVar[Counter[str]] = Counter()


class FaultyMachine(OvercommittedMachine):
    faulty = True
    seen: ClassVar[Counter[str]] = Counter()


class TieredMachine(EngineMachine):
    """What G1 evicts is stored below and comes back, more or less; now and then another engine goes on."""

    seen: ClassVar[Counter[str]] = Counter()

    def make(self, shape: Shape, seed: int) -> EngineTrial:
        dice = Dice(seed + 1)
        manners = Manners(
            answer_s=dice.pick([0, 0, 3]),
            land_s=dice.pick([0, 2, 5]),
            store_s=dice.pick([0, 4]),
            patience_s=dice.pick([1, 4, 20]),
            rooms=dice.pick([1, 3, 1000]),
            losses=dice.pick([0, 0, 2, 5]),
            refusals=dice.pick([0, 0, 3]),
        )
        return EngineTrial(shape, tiers=DictTiers(shape.windows, shape.block_tokens, seed, manners))

    @rule()
    def another(self) -> None:
        """The engine comes to its end, and one with nothing but the same tiers below takes its place."""
        self.teardown()
        self.trial = EngineTrial(self.trial.shape, tiers=self.trial.tiers, before=self.trial)

    @precondition(lambda self: self.faulty)
    @rule(seed=Seeds)
    def fail_copy(self, seed: int) -> None:
        self.trial.backend.copy_fault = Dice(seed).pick([CapacityError("no room"), BackendError("broken")])

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "trial"):
            self.seen.update(self.trial.tiers.events)
            self.trial.tiers.events.clear()


class FabricMachine(TieredMachine):
    """The same with the fabric itself below, over tiers that fail, lie and forget."""

    overcommit = 2.0
    seen: ClassVar[Counter[str]] = Counter()

    def make(self, shape: Shape, seed: int) -> EngineTrial:
        one_in = Dice(seed + 2).pick([None, 8, 4])
        return EngineTrial(shape, tiers=FabricTiers(shape, seed, one_in=one_in))


class OvercommittedTieredMachine(TieredMachine):
    overcommit = 4.0
    faulty = True
    seen: ClassVar[Counter[str]] = Counter()


def long_history(machine: EngineMachine, seed: int) -> None:
    """Sixty operations of a machine, each as likely as its weight here says, where Hypothesis prefers the simple."""
    dice = Dice(seed)
    machine.start(seed)
    for _ in range(60):
        is_tiered = isinstance(machine, TieredMachine)
        operation = dice.pick(["submit"] * 7 + ["step"] * 10 + ["abort"] + ["fail"] * 2 * machine.faulty)
        if is_tiered and dice.number(0, 9) == 0:
            machine.another()
        elif is_tiered and machine.faulty and dice.number(0, 9) == 0:
            machine.fail_copy(dice.number(0, 2**32))
        elif operation == "submit" or (operation == "abort" and machine.trial.requests):
            getattr(machine, operation)(dice.number(0, 2**32))
        elif machine.trial.core.has_work:
            machine.fail(dice.number(0, 2**32)) if operation == "fail" else machine.step(dice.number(1, 4))
    machine.teardown()


def run(machine: type[EngineMachine], *, short: int, long: int) -> Counter[str]:
    """Runs random histories; returns what happened in them."""
    machine.seen.clear()
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(short), stateful_step_count=30))
    for seed in range(examples(long)):
        long_history(machine(), seed)
    return machine.seen


def expect(seen: Counter[str], *names: str) -> None:
    """What hardly ever happened was not tested."""
    assert not [name for name in names if seen[name] < 20], seen


def test_with_room_for_all_promises_everybody_is_served_and_nobody_preempted() -> None:
    seen = run(EngineMachine, short=12, long=30)
    expect(seen, "finished", "aborts", "refusals", "hits", "evictions")
    assert not seen["preemptions"]
    assert not seen["failures"]


def test_with_more_promised_than_there_is_everybody_is_served_in_the_end() -> None:
    seen = run(OvercommittedMachine, short=12, long=30)
    expect(seen, "finished", "aborts", "preemptions", "hits")
    assert not seen["failures"]


def test_with_memory_and_backend_failing_the_rest_is_served_and_nothing_is_lost() -> None:
    seen = run(FaultyMachine, short=12, long=30)
    expect(seen, "finished", "failures", "preemptions", "out_of_memory", "hits")


def test_with_tiers_below_everybody_is_served_the_same_and_nobody_preempted() -> None:
    seen = run(TieredMachine, short=12, long=30)
    expect(seen, "finished", "aborts", "hits", "evictions", "loads", "loads_failed", "lost", "late", "busy", "refused")
    expect(seen, "stores_dropped")
    assert not seen["preemptions"]
    assert not seen["failures"]


def test_with_tiers_memory_and_backend_failing_the_rest_is_served_and_nothing_is_lost() -> None:
    seen = run(OvercommittedTieredMachine, short=12, long=30)
    expect(seen, "finished", "failures", "preemptions", "out_of_memory", "hits", "loads", "loads_failed")


def test_with_the_fabric_below_everybody_is_served_the_same_whatever_its_tiers_do() -> None:
    seen = run(FabricMachine, short=4, long=16)
    expect(seen, "finished", "hits", "evictions", "loads", "loads_failed", "loaded", "quarantined", "stored")
    assert not seen["failures"]
