"""What is asked of every engine, and what is read from when its tokens came; pure.

All readings are seconds, so that less is better: of a prompt, of a token, of a token of all requests together. A task's
prompts are random and new in every round, so nothing of them is in a cache before the task itself asks twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.lab.spread import Spread, pairwise_ratios, spread

Kind = Literal["prefill", "warm_ttft", "decode", "together", "whole", "ready", "first_answer"]
"""What a reading is:

prefill, warm_ttft: seconds to the first token of a prompt that is new, or was just asked.
decode: seconds from one token of one answer to its next.
together: seconds a token while all requests of a task have begun and none has ended.
whole: seconds from the first request to the last token of all.
ready, first_answer: seconds from the start of a server until it says it is well, or has answered.
"""

KVIST, TRANSFORMERS = "kvist", "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came for prompts that were asked at once.

    Attributes:
        tokens: of each answer.
        times_s: for each prompt when each piece of its answer came, from when all were asked: nearly always a token.
        cached: for each how many of its tokens were not computed.
    """

    tokens: int
    times_s: tuple[tuple[float, ...], ...]
    cached: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Prompts for one engine, all at once.

    Attributes:
        prompts, tokens: how many, of how many tokens.
        output: tokens of each answer.
        again: tokens of each answer when the same prompts are asked a second time; 0: they are not.
        kinds: what is read.
        is_slow: whether it is done in few rounds only.
    """

    prompts: int
    tokens: int
    output: int
    again: int = 0
    kinds: tuple[Kind, ...]
    is_slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one engine in one round."""

    stage: str
    metric: str
    round: int
    engine: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a ratio should be: peer / Kvist is at least, stretched, this much; or Kvist / peer at most."""

    least: float | None = None
    stretch: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Kvist and one peer in one metric.

    Attributes:
        stage, metric: of both.
        peer: the peer, and `mode` which of its modes was the fastest.
        ours_s, theirs_s: seconds.
        ratio: of the rounds; how many times as fast Kvist is, or where a goal says "at most" its part of their time.
        goal, stretch: what was asked for; None where nothing was.
        is_at_most: whether less is better.
        is_reached: whether the median is within the goal; None without one.
    """

    stage: str
    metric: str
    peer: str
    mode: str
    ours_s: Spread
    theirs_s: Spread
    ratio: Spread
    goal: float | None
    stretch: float | None
    is_at_most: bool
    is_reached: bool | None


def tasks(*, short: int, middle: int, long: int, longer: int, output: int) -> tuple[Task, ...]:
    """All tasks for engines that keep prefixes; a length of 0 leaves its task out."""
    planned = (
        Task(prompts=1, tokens=long, output=1, again=output, kinds=("prefill", "warm_ttft", "decode")),
        Task(prompts=1, tokens=short, output=output, kinds=("decode",)),
        Task(prompts=8, tokens=short, output=output, kinds=("together", "whole")),
        Task(prompts=1, tokens=longer, output=1, again=output, kinds=("decode",), is_slow=True),
        Task(prompts=8, tokens=middle, output=output, kinds=("together", "whole"), is_slow=True),
    )
    return tuple(task for task in planned if task.tokens)


def without_prefixes(task: Task) -> Task | None:
    """The same for an engine that keeps nothing and runs one prompt after the other; None: it has no part in it."""
    if "prefill" in task.kinds:
        return Task(prompts=1, tokens=task.tokens, output=1, kinds=("prefill",), is_slow=True)
    if task.again:
        return Task(prompts=1, tokens=task.tokens, output=task.again, kinds=("decode",), is_slow=True)
    if task.prompts > 1 and not task.is_slow:
        return Task(prompts=task.prompts, tokens=task.tokens, output=task.output, kinds=("whole",), is_slow=True)
    return None


def readings(task: Task, first: Reply, again: Reply | None) -> dict[str, float]:
    """What a task's replies say, by metric."""
    latest = first if again is None else again
    found = {
        "prefill": lambda: first.times_s[0][0],
        "warm_ttft": lambda: latest.times_s[0][0],
        "decode": lambda: inter_token_s(latest),
        "together": lambda: together_s(first),
        "whole": lambda: max(times[-1] for times in first.times_s),
    }
    return {f"{kind} {task.prompts} x {task.tokens}": found[kind]() for kind in task.kinds}


def inter_token_s(reply: Reply) -> float:
    """Mean seconds between the tokens of the first answer."""
    times_s = reply.times_s[0]
    return (times_s[-1] - times_s[0]) / (reply.tokens - 1)


def together_s(reply: Reply) -> float:
    """Seconds per token of all answers together, from when the last has begun to when the first ends.

    Raises:
        ConfigError: there is no such time.
    """
    begun, ended = max(times[0] for times in reply.times_s), min(times[-1] for times in reply.times_s)
    # After the first token the others are spread over the pieces.
    between = sum(
        (reply.tokens - 1) / (len(times) - 1) * sum(begun < time <= ended for time in times)
        for times in reply.times_s
        if len(times) > 1
    )
    if not between:
        raise ConfigError(f"one of {len(reply.times_s)} answers ended before another began; give a longer --output")
    return (ended - begun) / between


def goal_of(metric: str, peer: str) -> Goal:
    """What issue 6 asks of a metric against a peer."""
    kind = metric.partition(" ")[0]
    if peer == TRANSFORMERS:
        return Goal(least={"prefill": 1.1, "decode": 2.0, "whole": 4.0}.get(kind))
    return {
        "prefill": Goal(least=1.0, stretch=1.15),
        "decode": Goal(least=1.3, stretch=2.0),
        "together": Goal(least=1.3, stretch=1.8),
        "warm_ttft": Goal(most=0.7),
        "ready": Goal(most=0.3),
    }.get(kind, Goal())


def summarise(samples: Sequence[Sample]) -> list[Summary]:
    """Every metric against every peer, in its fastest mode; what an engine has no reading of is left out."""
    found = []
    for stage, metric in dict.fromkeys((sample.stage, sample.metric) for sample in samples):
        by_engine: dict[str, dict[int, float]] = {}
        for sample in samples:
            if (sample.stage, sample.metric) == (stage, metric):
                by_engine.setdefault(sample.engine, {})[sample.round] = sample.seconds
        ours = by_engine.pop(KVIST, {})
        for peer in dict.fromkeys(name.partition(" ")[0] for name in by_engine):
            modes = {name: read for name, read in by_engine.items() if name.partition(" ")[0] == peer and ours}
            if modes:
                mode = min(modes, key=lambda name: spread(list(modes[name].values())).median)
                found += _against(stage, metric, mode, (ours, modes[mode]))
    return found


def _against(
    stage: str, metric: str, mode: str, both: tuple[Mapping[int, float], Mapping[int, float]]
) -> list[Summary]:
    """One summary over the rounds that both took part in; none where there is no such round."""
    rounds = sorted(both[0].keys() & both[1].keys())
    if not rounds:
        return []
    ours, theirs = ([each[turn] for turn in rounds] for each in both)
    peer = mode.partition(" ")[0]
    goal = goal_of(metric, peer)
    is_at_most = metric.startswith(("warm_ttft", "ready", "first_answer"))
    ratio = spread(pairwise_ratios(ours, theirs) if is_at_most else pairwise_ratios(theirs, ours))
    wanted = goal.most if is_at_most else goal.least
    reached = None if wanted is None else (ratio.median <= wanted if is_at_most else ratio.median >= wanted)
    return [
        Summary(
            stage=stage,
            metric=metric,
            peer=peer,
            mode=mode,
            ours_s=spread(ours),
            theirs_s=spread(theirs),
            ratio=ratio,
            goal=wanted,
            stretch=goal.stretch,
            is_at_most=is_at_most,
            is_reached=reached,
        )
    ]
