"""What is asked of a server, planned in full before the first request is sent; pure.

The same settings and seed give the same plan. Prompts are token ids from the middle of the vocabulary, where
ordinary words live and special tokens do not.

Sharing is exact. For `serve`, request i with a prompt of L tokens begins with the first
floor(shared_prefix_ratio * L) tokens of one sequence common to the whole run, and differs from it and from every
other request in the very next token. So two prompts agree in exactly as many leading tokens as the
shorter of their two shared parts. For `ttft`, the prompts of different pairs differ in their first token,
and the two prompts of a pair agree in the prefix and in nothing after it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from kvist.base.errors import ConfigError
from kvist.lab.draw import Span, fractions, integers, words

PLANNED_TOKENS_MAX = 20_000_000
"""Prompt tokens one plan may hold; more would fill the memory of a small machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWorkload:
    """A run of independent requests.

    Attributes:
        requests: how many are sent.
        prompt_tokens: lengths of the prompts, each drawn evenly from this range.
        output_tokens: lengths of the answers asked for, drawn likewise.
        shared_prefix_ratio: the part of each prompt that all prompts have in common, within [0, 1].
        token_ids: ids that prompts are made of; at least two for each request.
        seed: what all draws follow from.
        rate_per_s: mean of the Poisson process at which requests arrive; None for a closed loop.
    """

    requests: int
    prompt_tokens: Span
    output_tokens: Span
    shared_prefix_ratio: float
    token_ids: Span
    seed: int
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of a plan.

    Attributes:
        index: its place in the plan, from 0.
        prompt: token ids.
        tokens_shared: leading tokens that come from the run's common sequence.
        output_tokens: answer length to ask for.
        arrival_s: when it is sent, in seconds after the run began; None in a closed loop.
    """

    index: int
    prompt: tuple[int, ...]
    tokens_shared: int
    output_tokens: int
    arrival_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPair:
    """Two prompts with one prefix: the first to arrive is cold, the second may be warm.

    Attributes:
        prefix_tokens: leading tokens the two have in common.
        cold: token ids; `warm` likewise.
    """

    prefix_tokens: int
    cold: tuple[int, ...]
    warm: tuple[int, ...]


def plan_serve(workload: ServeWorkload) -> tuple[PlannedRequest, ...]:
    """Every request of a run, in the order in which they are sent.

    Raises:
        ConfigError: the plan would be too large, or there are too few token ids to keep prompts apart.
    """
    _check(workload)
    lengths = integers(workload.seed, "prompt tokens", workload.requests, workload.prompt_tokens)
    outputs = integers(workload.seed, "output tokens", workload.requests, workload.output_tokens)
    arrivals = _arrivals_s(workload)
    common = integers(workload.seed, "common prefix", max(lengths), workload.token_ids)
    plan = []
    for index, (length, output) in enumerate(zip(lengths, outputs, strict=True)):
        shared = shared_tokens(workload.shared_prefix_ratio, length)
        own = _own_part(workload, index, length - shared, common[shared] if shared < length else None)
        plan.append(
            PlannedRequest(
                index=index,
                prompt=common[:shared] + own,
                tokens_shared=shared,
                output_tokens=output,
                arrival_s=arrivals[index] if arrivals else None,
            )
        )
    return tuple(plan)


def shared_tokens(ratio: float, length: int) -> int:
    """Leading tokens of a prompt that the whole run has in common: floor(ratio * length), exact in decimals.

    >>> shared_tokens(0.29, 100), shared_tokens(0.5, 17), shared_tokens(1.0, 5)
    (29, 8, 5)
    """
    return math.floor(Fraction(str(ratio)) * length)


def tokens_reusable(plan: tuple[PlannedRequest, ...]) -> int:
    """Prompt tokens that a cache without limits could serve, if each request found all earlier ones in it.

    More hits than this mean that the server had seen the prompts before the run.
    """
    longest_before = accumulate((request.tokens_shared for request in plan), max, initial=0)
    return sum(min(request.tokens_shared, longest) for request, longest in zip(plan, longest_before, strict=False))


def prompt_pair(seed: int, index: int, prefix_tokens: int, suffix_tokens: int, token_ids: Span) -> PromptPair:
    """The index-th pair of prompts of a TTFT run; pairs of one run share not even the first token.

    Raises:
        ConfigError: there are fewer than two token ids, so that nothing can be told apart.
    """
    if token_ids.size < 2:
        raise ConfigError(f"token ids {token_ids.low}:{token_ids.high} hold one id; two prompts need at least two")
    start = words(seed, "first token", 1)[0]
    first = token_ids.low + (start + index) % token_ids.size
    prefix = (first, *integers(seed, f"prefix {index}", prefix_tokens - 1, token_ids))
    cold = integers(seed, f"suffix {index}", suffix_tokens, token_ids)
    other = token_ids.low + (cold[0] - token_ids.low + 1) % token_ids.size
    warm = (other, *integers(seed, f"warm suffix {index}", suffix_tokens - 1, token_ids))
    return PromptPair(prefix_tokens=prefix_tokens, cold=prefix + cold, warm=prefix + warm)


def _check(workload: ServeWorkload) -> None:
    tokens = workload.requests * workload.prompt_tokens.high
    if tokens > PLANNED_TOKENS_MAX:
        raise ConfigError(
            f"{workload.requests:,} requests of up to {workload.prompt_tokens.high:,} prompt tokens are {tokens:,}"
            f" tokens; one run plans at most {PLANNED_TOKENS_MAX:,}: ask for fewer or shorter requests"
        )
    if workload.prompt_tokens.low < 1 or workload.output_tokens.low < 1 or workload.requests < 1:
        raise ConfigError("a run needs at least one request, one prompt token and one output token")
    if not 0 <= workload.shared_prefix_ratio <= 1:
        raise ConfigError(f"shared prefix ratio {workload.shared_prefix_ratio} is not within 0 and 1")
    ids = workload.token_ids
    if workload.shared_prefix_ratio < 1 and ids.size < 2 * workload.requests:
        raise ConfigError(
            f"token ids {ids.low}:{ids.high} are {ids.size:,}, but {workload.requests:,} requests need"
            f" {2 * workload.requests:,} to differ right after what they share; widen the range or send fewer"
        )


def _own_part(workload: ServeWorkload, index: int, length: int, common_next: int | None) -> tuple[int, ...]:
    """The part of a prompt that is its own; its first token is neither the common sequence's nor another request's."""
    if length == 0:
        return ()
    ids = workload.token_ids
    start = words(workload.seed, "own first token", 1)[0]
    first = ids.low + (start + 2 * index) % ids.size  # two candidates per request, none of them another's
    if first == common_next:
        first = ids.low + (start + 2 * index + 1) % ids.size
    return (first, *integers(workload.seed, f"own part {index}", length - 1, ids))


def _arrivals_s(workload: ServeWorkload) -> tuple[float, ...]:
    """Arrival times of a Poisson process, the first request at 0; empty for a closed loop."""
    if workload.rate_per_s is None:
        return ()
    rate = workload.rate_per_s
    gaps = [-math.log(part) / rate for part in fractions(workload.seed, "arrivals", workload.requests - 1)]
    return tuple(accumulate(gaps, initial=0.0))
