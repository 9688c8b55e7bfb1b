"""What the engine says back: plain values, so that a server may live in another process.

For each submitted request the events are, in this order: one `Admitted` (a second one after each
preemption is not sent), any number of `TokenDrawn`, and exactly one of `Finished`, `Refused` or `Failed`,
after which the engine knows nothing of the request and holds no block for it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvist.base.ids import RequestId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.fabric.messages import Decision, FabricStatistics, Source

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The request's blocks are reserved and its prefill begins.

    Attributes:
        tokens_cached: prompt tokens whose KV was found and is not computed again.
        prefix_end: why the cached prefix is no longer than that, in words a user understands.
        sources: the cached tokens by where they came from, "G1" or a tier, with the bytes that were loaded.
        decision: what else was possible; None where the tiers below were not asked, because G1 had it all.
    """

    request_id: RequestId
    tokens_cached: Tokens
    prefix_end: str
    sources: tuple[Source, ...] = ()
    decision: Decision | None = None


class TokenDrawn(NamedTuple):
    """One more token of the output.

    Attributes:
        token: the token id; the stop token that ends a request is delivered too.
        logprob: natural logarithm of its probability before temperature and filters; None unless asked for.
        top: the most likely (token, logprob) pairs, best first; empty unless asked for.
    """

    request_id: RequestId
    token: TokenId
    logprob: float | None = None
    top: tuple[tuple[TokenId, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The request ended.

    Attributes:
        reason: "stop" (a stop token, or its output was complete), "length" (its bound), "abort" (nobody wanted more).
        tokens_prompt: length of the prompt; tokens_cached of them came from the cache, the rest was computed.
        tokens_output: tokens delivered.
        preemptions: how often the request lost its blocks and was resumed by recomputing.
    """

    request_id: RequestId
    reason: FinishReason
    tokens_prompt: Tokens
    tokens_cached: Tokens
    tokens_output: Tokens
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The request was not accepted; nothing was computed for it.

    Attributes:
        kind: "invalid" (can never run) or "busy" (too many run and wait).
        message: what was wrong, with the value and the remedy.
        param: the field of the request to blame, when there is one.
    """

    request_id: RequestId
    kind: Literal["invalid", "busy"]
    message: str
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The engine could not carry the request through (out of memory, a fault in the backend)."""

    request_id: RequestId
    message: str


Event = Admitted | TokenDrawn | Finished | Refused | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """The bounds within which a request is accepted, fixed at start.

    Attributes:
        model_tokens_max: prompt plus output of one sequence.
        prompt_tokens_max: prompt of one sequence.
        output_tokens_max: output of one sequence.
        longest_request_tokens: what the KV pool can hold for one sequence alone.
        sequences_max: sequences running at once.
        waiting_max: sequences beyond those that wait at once; more are refused as busy.
        vocab_size: token ids are below this.
    """

    model_tokens_max: Tokens
    prompt_tokens_max: Tokens
    output_tokens_max: Tokens
    longest_request_tokens: Tokens
    sequences_max: int
    waiting_max: int
    vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCounts:
    """Blocks of one KV group by state; the three add up to the pool's size."""

    used: int
    cached: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot of the engine's counters; tokens are counted once each.

    Attributes:
        running: sequences admitted and not ended.
        loading: sequences whose beginning is being loaded from below.
        waiting: sequences submitted, and neither admitted nor loading.
        tokens_prompt_cached: prompt tokens served from the cache since start.
        tokens_by_tier: the same by where they came from, as (name, tokens), by name.
        tokens_prompt_computed: prompt tokens prefilled since start, recomputation after preemption excluded.
        tokens_recomputed: tokens computed again because of preemption.
        tokens_output: tokens drawn since start.
        blocks: by KV group, in the geometry's order.
        evictions: cached blocks given up for new ones.
        evicted_without_copy: how many of these were nowhere else.
        loads: sequences that began with what was loaded for them; loads_failed: that computed it after all.
        stores_dropped: blocks that were to be stored below and were let go of before there was room.
        steps, preemptions, refusals, aborts, finished, failures, out_of_memory: events since start.
        kv_bytes: size of the pool; kv_bytes_per_token: of one token in all layers.
        fabric: the tiers below; None where there are none.
    """

    running: int
    loading: int = 0
    waiting: int
    tokens_prompt_cached: int
    tokens_by_tier: tuple[tuple[str, int], ...] = ()
    tokens_prompt_computed: int
    tokens_recomputed: int
    tokens_output: int
    blocks: tuple[BlockCounts, ...]
    evictions: int
    evicted_without_copy: int = 0
    loads: int = 0
    loads_failed: int = 0
    stores_dropped: int = 0
    steps: int
    preemptions: int
    refusals: int
    aborts: int
    finished: int
    failures: int
    out_of_memory: int
    kv_bytes: Bytes
    kv_bytes_per_token: Bytes
    fabric: FabricStatistics | None = None
