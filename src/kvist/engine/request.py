"""What is asked of the engine: one prompt, how to continue it, and on whose behalf."""

from dataclasses import dataclass

from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn from the model's distribution.

    The filters apply in this order: temperature, top_k, top_p, min_p. All values are validated by whoever
    builds this; the engine trusts them.

    Attributes:
        temperature: 0 takes the most likely token; larger values flatten the distribution.
        top_k: keep this many most likely tokens; None keeps all.
        top_p: keep the smallest set of most likely tokens whose probability reaches this; in (0, 1].
        min_p: drop tokens less likely than this fraction of the most likely one; in [0, 1].
        seed: the draw of token i depends on (seed, i) and the distribution alone, so that neither batching
            nor preemption changes it.
        logprobs: report this many most likely tokens with each token (0: only the token itself); None: nothing.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to generate.

    Attributes:
        id: unique for the life of the engine.
        tenant: whose blocks it may hit and who may hit its blocks.
        prompt: at least one token id, each within the vocabulary.
        output_tokens_max: at least 1; the request ends with reason "length" there.
        sampling: how tokens are drawn.
        stop_tokens: token ids that end the request with reason "stop".
    """

    id: RequestId
    tenant: TenantId
    prompt: tuple[TokenId, ...]
    output_tokens_max: Tokens
    sampling: Sampling
    stop_tokens: frozenset[TokenId]
