"""How much to load and how much to recompute, how long to wait for it, and when to try a tier that looks too slow.

Knows predicted seconds. Total time as a function of how much is loaded is concave between the ends of what each tier
has, so callers offer those ends and nothing between.

Laws:
    * Unless it explores, a choice has the least predicted total; on a tie nothing is loaded.
    * Exploring never takes more than was saved up for it: over any time, the seconds by which all explored choices
      together may be later than the cheapest ones are at most `Exploration.saved_s_max + Exploration.share * time`.
    * Waiting is bounded by what loading would save, so a tier that hangs costs at most that much, and `FLOOR_S`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

FLOOR_S = 0.05
"""Least time that a load is given: what a busy machine may take for anything."""

_NOISE_FACTOR = 4.0
"""How far a load may be behind its prediction and count as noise."""

_STAKE_SHARE = 0.25
"""How much of what loading would save it may always take."""

_LONG_S = 10.0
"""How long a load is waited for that need not be worth it."""

_TRIAL_FACTOR = 2.0
"""How far a tier that is tried may be behind the best that is hoped of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """One way to begin a sequence.

    Attributes:
        tokens: of the prefix that would not be computed.
        load_s, prefill_s: predicted seconds of loading, and of computing the rest.
        hopeful_load_s: of loading, if the tiers were as good as they may be (`LoadModel.hopeful_s`).
        unlearned_for_s: seconds since the tier that was timed longest ago was; 0 for a prospect that loads nothing.
    """

    tokens: int
    load_s: float
    prefill_s: float
    hopeful_load_s: float = 0.0
    unlearned_for_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tokens", "load_s", "prefill_s", "hopeful_load_s", "unlearned_for_s"):
            value = getattr(self, name)
            assert value >= 0, f"{name} is {value}"  # NaN compares false and ends here too

    @property
    def total_s(self) -> float:
        """Until the first token."""
        return self.load_s + self.prefill_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """Seconds that may be spent on trying tiers that look too slow; they are saved up while time passes.

    Attributes:
        share: of time that is saved up.
        saved_s_max: most that is.
        interval_s: a tier that was timed less long ago is known well enough.
        saved_s, counted_at_s: what there was, and when; the caller's clock.
    """

    share: float = 0.01
    saved_s_max: float = 5.0
    interval_s: float = 10.0
    saved_s: float = 0.0
    counted_at_s: float | None = None

    def counted(self, now_s: float) -> "Exploration":
        """With what was saved up until now; the first call only starts the count."""
        passed_s = 0.0 if self.counted_at_s is None else max(0.0, now_s - self.counted_at_s)
        saved_s = min(self.saved_s_max, self.saved_s + self.share * passed_s)
        return replace(self, saved_s=saved_s, counted_at_s=now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is best.

    Attributes:
        index: of the prospect taken.
        patience_s: how long to wait for its load; what has not landed then is recomputed. 0 when it loads nothing.
        reason: in words a user understands, figures included.
        explored: taken to learn about a tier although another prospect looks cheaper.
        exploration: what is left for exploring.
    """

    index: int
    patience_s: float
    reason: str
    explored: bool
    exploration: Exploration


def patience_s(prospect: Prospect, recompute: Prospect) -> float:
    """How long it is worth waiting for a load.

    Waiting longer than the load would save is worse than not having loaded, so that (and a floor, because nothing is
    timed to the millisecond) is the most: then a load that never comes costs no more than computing did anyway. The
    least is what noise may do to a load that is fine, and some part of what is at stake: giving up a load that would
    save seconds because it is some milliseconds late throws the seconds away.

    Args:
        prospect: what is loaded.
        recompute: what is done when it does not come.
    """
    if prospect.load_s == 0:
        return 0.0
    saved_s = max(0.0, recompute.prefill_s - prospect.prefill_s)
    generous_s = max(FLOOR_S, _NOISE_FACTOR * prospect.load_s, _STAKE_SHARE * saved_s)
    return min(generous_s, saved_s + FLOOR_S)


def choose(prospects: Sequence[Prospect], exploration: Exploration, *, now_s: float) -> Choice:
    """Takes the prospect with the least total, or now and then one that would be better if a tier had recovered.

    Args:
        prospects: the first is to load nothing, and what is done when a load does not come.
        exploration: as the last choice left it.
        now_s: by the caller's clock, which does not go back.
    """
    recompute = prospects[0]
    assert recompute.load_s == 0, f"the first prospect loads for {recompute.load_s} s"
    exploration = exploration.counted(now_s)
    best = min(range(len(prospects)), key=lambda index: (prospects[index].total_s, prospects[index].load_s))
    tried = _to_explore(prospects, prospects[best], exploration)
    if tried is not None:
        chosen = prospects[tried]
        wait_s = _trial_s(chosen)
        spent_s = wait_s + recompute.prefill_s - prospects[best].total_s
        return Choice(
            index=tried,
            patience_s=wait_s,
            reason=_why_explored(chosen, prospects[best]),
            explored=True,
            exploration=replace(exploration, saved_s=exploration.saved_s - spent_s),
        )
    chosen = prospects[best]
    return Choice(
        index=best,
        patience_s=patience_s(chosen, recompute),
        reason=_why(prospects, best),
        explored=False,
        exploration=exploration,
    )


def choose_longest(prospects: Sequence[Prospect], exploration: Exploration, *, now_s: float) -> Choice:
    """Takes whatever saves most computing, cheap or not: for tests and measurements, and for models that cannot wait.

    Args:
        prospects: see `choose`.
        exploration: nothing of it is spent, because everything is tried anyway.
        now_s: by the caller's clock.
    """
    recompute = prospects[0]
    longest = max(range(len(prospects)), key=lambda index: (prospects[index].tokens, -prospects[index].load_s))
    chosen = prospects[longest]
    return Choice(
        index=longest,
        patience_s=max(_LONG_S, patience_s(chosen, recompute)) if chosen.load_s else 0.0,
        reason=f"everything is loaded, as configured: {_why(prospects, longest)}",
        explored=False,
        exploration=exploration.counted(now_s),
    )


def _to_explore(prospects: Sequence[Prospect], best: Prospect, exploration: Exploration) -> int | None:
    """The prospect that could be the best if tiers are better than was learned, and whose trial can be afforded."""
    recompute = prospects[0]
    worth = [
        index
        for index, each in enumerate(prospects)
        if each.load_s > 0
        and each.total_s > best.total_s
        and each.hopeful_load_s + each.prefill_s < best.total_s
        and each.unlearned_for_s >= exploration.interval_s
        and _trial_s(each) + recompute.prefill_s - best.total_s <= exploration.saved_s
    ]
    return min(worth, key=lambda index: prospects[index].hopeful_load_s + prospects[index].prefill_s, default=None)


def _trial_s(prospect: Prospect) -> float:
    """How long to wait for a tier that is tried: it is tried in case it is good again, and if it is not, no longer."""
    return FLOOR_S + _TRIAL_FACTOR * prospect.hopeful_load_s


def _why(prospects: Sequence[Prospect], best: int) -> str:
    chosen, recompute = prospects[best], prospects[0]
    others = [each for index, each in enumerate(prospects) if index != best]
    if not others:
        return "nothing to load was found below the engine's own memory"
    if chosen.load_s == 0:
        least = min(others, key=lambda each: each.total_s)
        return (
            f"computing the rest takes {_shown(chosen.prefill_s)}; the best load takes {_shown(least.load_s)} "
            f"and leaves {_shown(least.prefill_s)} to compute"
        )
    return (
        f"loading takes {_shown(chosen.load_s)} and leaves {_shown(chosen.prefill_s)} to compute; without it, "
        f"computing takes {_shown(recompute.prefill_s)}"
    )


def _why_explored(chosen: Prospect, best: Prospect) -> str:
    since = "yet" if math.isinf(chosen.unlearned_for_s) else f"for {_shown(chosen.unlearned_for_s)}"
    return (
        f"tried to see whether a tier has become faster: it was not timed {since}, would take "
        f"{_shown(chosen.hopeful_load_s)} at its best, is predicted to take {_shown(chosen.load_s)}, "
        f"and the cheapest way {_shown(best.total_s)}"
    )


def _shown(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
