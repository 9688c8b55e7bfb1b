"""`kvist.cost` over virtual time: a tier that becomes slow and fast again, noise and stalls, and what it all costs."""

import math
from dataclasses import dataclass, field

import pytest

from fakes.clock import HandClock
from fakes.dice import Dice
from kvist.base.units import Tokens
from kvist.cost.choice import FLOOR_S, Choice, Exploration, Prospect, choose
from kvist.cost.load import LoadModel, load_model
from kvist.cost.prefill import PrefillModel, Work, prefill_model

TOKENS = 4096
BLOCK_BYTES, BLOCK_TOKENS = 720 * 1024, 16
PIECE_BLOCKS = 16
BLOCKS = TOKENS // BLOCK_TOKENS - 1


@dataclass(slots=True, kw_only=True)
class World:
    """One tier and one engine, as they really are, and what is predicted of them.

    Attributes:
        factor: how many times slower the tier is than its medium usually is.
        noise: timings differ by up to so large a factor.
        stalls: one in so many pieces takes ten seconds; 0: none.
    """

    dice: Dice
    factor: float = 1.0
    noise: float = 1.25
    stalls: int = 0
    clock: HandClock = field(default_factory=HandClock)
    tier: LoadModel = field(default_factory=lambda: load_model("disk"))
    prefill: PrefillModel = field(
        default_factory=lambda: prefill_model(Work(parameters=10**8, attention_width=10**4), step_tokens=Tokens(512))
    )
    exploration: Exploration = field(default_factory=Exploration)
    extra_s: float = 0.0
    """By how much explored requests were later than the cheapest ones were predicted to be."""

    def __post_init__(self) -> None:
        for _ in range(5):
            self.compute(
                0
            )  # what is in the tier was computed once, and so were others; the prior is ten times too slow

    def noisy(self, seconds: float) -> float:
        return seconds * math.exp(math.log(self.noise) * self.dice.number(-1000, 1000) / 1000)

    def piece_s(self) -> float:
        """How long the tier really takes for one piece."""
        if self.stalls and self.dice.number(1, self.stalls) == 1:
            return 10.0
        return self.noisy(self.factor * (200e-6 + PIECE_BLOCKS * BLOCK_BYTES / 1.5e9))

    def compute(self, start: int) -> float:
        """Computes the rest of a prompt step by step, as the engine does, and learns from each."""
        seconds = 0.0
        for begin in range(start, TOKENS, 512):
            end = min(TOKENS, begin + 512)
            step_s = self.noisy(2e-4 * (end - begin) + 2e-8 * (end * end - begin * begin) / 2 + 2e-3)
            self.prefill = self.prefill.learned(begin, end, step_s)
            seconds += step_s
        return seconds

    def prospects(self) -> list[Prospect]:
        jobs = -(-BLOCKS // PIECE_BLOCKS)
        nbytes, loaded = BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_TOKENS
        return [
            Prospect(tokens=0, load_s=0.0, prefill_s=self.prefill.predict_s(0, TOKENS)),
            Prospect(
                tokens=loaded,
                load_s=self.tier.predict_s(nbytes, jobs=jobs),
                prefill_s=self.prefill.predict_s(loaded, TOKENS),
                hopeful_load_s=self.tier.hopeful_s(nbytes, jobs=jobs),
                unlearned_for_s=self.tier.unlearned_for_s(self.clock.now_s()),
            ),
        ]

    def serve(self) -> tuple[Choice, float]:
        """One request, from its choice to its first token; all that was timed is learned, late or not."""
        prospects, begin_s = self.prospects(), self.clock.now_s()
        choice = choose(prospects, self.exploration, now_s=begin_s)
        self.exploration = choice.exploration
        load_s = sum(self.load_piece() for _ in range(0, BLOCKS, PIECE_BLOCKS)) if choice.index else 0.0
        late = load_s > choice.patience_s
        seconds = self.compute(0 if late else prospects[choice.index].tokens)
        total_s = min(load_s, choice.patience_s) + seconds
        if choice.explored:
            self.extra_s += max(0.0, total_s - min(each.total_s for each in prospects))
        self.clock.advance(total_s)
        return choice, total_s

    def load_piece(self) -> float:
        seconds = self.piece_s()
        self.tier = self.tier.learned(PIECE_BLOCKS * BLOCK_BYTES, seconds, now_s=self.clock.now_s())
        return seconds


def computed(world: World) -> float:
    """What a request takes that loads nothing, without noise."""
    return sum(2e-4 * 512 + 2e-8 * ((a + 512) ** 2 - a * a) / 2 + 2e-3 for a in range(0, TOKENS, 512))


@pytest.mark.parametrize("seed", range(5))
def test_a_tier_that_becomes_slow_is_left_and_found_again(seed: int) -> None:
    world = World(dice=Dice(seed))
    assert all(world.serve()[0].index == 1 for _ in range(50)), "a fast tier is used"

    world.factor = 100.0
    slow = [world.serve() for _ in range(200)]
    loads = [choice for choice, _ in slow if choice.index]
    assert sum(not choice.explored for choice in loads) <= 1, "one load of 16 pieces tells that it is slow"
    trials = sum(choice.explored for choice in loads)
    passed_s = sum(seconds for _, seconds in slow)
    assert world.extra_s <= 0.01 * passed_s + 5.0
    assert trials <= passed_s / world.exploration.interval_s + 1
    assert max(seconds for _, seconds in slow[1:]) <= 2 * computed(world) * world.noise + FLOOR_S

    world.factor, recovered_s = 1.0, world.clock.now_s()
    while world.serve()[0].index == 0:
        assert world.clock.now_s() < recovered_s + 120, "not found again"
    assert all(world.serve()[0].index == 1 for _ in range(50)), "one trial is enough"


@pytest.mark.parametrize("seed", range(3))
def test_stalls_of_ten_seconds_do_not_scare_it_off(seed: int) -> None:
    """One piece in 160, so one load in ten, takes ten seconds: those are recomputed, the others still loaded."""
    world = World(dice=Dice(seed), stalls=160)
    served = [world.serve() for _ in range(300)]
    assert sum(choice.index == 1 for choice, _ in served) >= 290
    assert max(seconds for _, seconds in served) <= 2 * computed(world) * world.noise + FLOOR_S


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_at_any_speed_of_a_tier_it_is_nearly_as_good_as_the_better_of_always_and_never(ratio: float) -> None:
    """`ratio` is KV loaded per second over KV computed per second; the tier begins as unknown."""
    bandwidth = ratio * BLOCKS * BLOCK_BYTES / computed(World(dice=Dice(0)))
    world = World(dice=Dice(7), noise=1.05, factor=1.5e9 / bandwidth)
    for _ in range(30):
        world.serve()
    served = [world.serve()[1] for _ in range(300)]
    load_s = world.factor * (BLOCKS / PIECE_BLOCKS * 200e-6 + BLOCKS * BLOCK_BYTES / 1.5e9)
    always_s = load_s + 2e-4 * 16 + 2e-8 * (TOKENS**2 - (TOKENS - 16) ** 2) / 2 + 2e-3
    never_s = computed(world)
    assert sum(served) / len(served) <= 1.03 * min(always_s, never_s)
