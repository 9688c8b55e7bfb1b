"""The plan: what a model needs on given accelerators, what fits, and what is missing where it does not.

Knows no table and no flags; those are readers of the plan. Every figure has its unit in its name.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvist.base.units import Bytes, Tokens
from kvist.geometry.groups import DTYPE_BYTES
from kvist.planner.capacity import Capacity, capacity
from kvist.planner.deployment import Deployment
from kvist.planner.memory import MemoryUse, kv_bytes_left, model_bytes, reserve_bytes, weights_bytes_per_rank
from kvist.planner.sharding import rank_layers
from kvist.planner.useful import bytes_fixed, bytes_per_token, bytes_per_token_beyond_windows
from kvist.planner.workspace import fused_workspace, kvist_workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What follows from a deployment. "Per rank" is on the one accelerator that has most.

    Attributes:
        kv_bytes_per_token: of one token in all layers of the whole model, windows disregarded, each byte once.
        kv_bytes_per_token_beyond_windows: by which a long sequence grows, each byte once.
        kv_bytes_fixed_per_request: of full windows and states, each byte once.
        kv_bytes_per_token_per_rank: of one token on a rank; heads that are repeated count where they are.
        kv_replication: how often the KV of a token is kept, over all ranks.
        kv_bytes_per_request: of a request of the deployment's length, over all ranks, blocks and padding included.
        kv_bytes_per_request_per_rank: the same on a rank.
        kv_bytes_total: of as many as the deployment is to take at once, over all ranks.
        weights_bytes: of the whole model, each byte once.
        weights_bytes_per_rank, workspace_bytes_per_rank, reserve_bytes_per_rank: estimates, unless they were given.
        kv_bytes_left_per_rank: for KV; below 0 where all else already takes more.
        kv_bytes_needed_per_rank: least for KV with which the deployment fits.
        blocks: of each pool: one that all groups share (vLLM), or one per group (Kvist).
        block_tokens: tokens per block of each group.
        block_bytes_per_rank: bytes of one block of each pool.
        tokens_capacity: what the engine would call the tokens of its KV memory.
        concurrency_printed: what vLLM would print as its maximum concurrency; None for other rules.
        concurrent_requests: of the deployment's length that fit together.
        longest_request_tokens: longest request that fits alone, of those that the model has positions for.
        fits: whether as many requests of the deployment's length fit together as it is to take.
        missing_bytes_per_rank: by which memory for KV is too small; 0 where it fits.
    """

    kv_bytes_per_token: Bytes
    kv_bytes_per_token_beyond_windows: Bytes
    kv_bytes_fixed_per_request: Bytes
    kv_bytes_per_token_per_rank: Bytes
    kv_replication: float
    kv_bytes_per_request: Bytes
    kv_bytes_per_request_per_rank: Bytes
    kv_bytes_total: Bytes
    weights_bytes: Bytes
    weights_bytes_per_rank: Bytes
    workspace_bytes_per_rank: Bytes
    reserve_bytes_per_rank: Bytes
    kv_bytes_left_per_rank: Bytes
    kv_bytes_needed_per_rank: Bytes
    blocks: tuple[int, ...]
    block_tokens: tuple[int, ...]
    block_bytes_per_rank: tuple[Bytes, ...]
    tokens_capacity: Tokens
    concurrency_printed: float | None
    concurrent_requests: int
    longest_request_tokens: Tokens
    fits: bool
    missing_bytes_per_rank: Bytes


def plan(deployment: Deployment) -> Plan:
    """Answers a deployment. Too little memory is an answer, not an error.

    Raises:
        ConfigError: the model cannot be spread or served so, whatever the memory.
    """
    model, form = deployment.model, deployment.form
    use = memory_use(deployment)
    left = kv_left(deployment, use)
    held = capacity(deployment, max(0, left))
    per_rank, replication = _per_rank(deployment)
    fits = held.requests >= deployment.concurrency
    return Plan(
        kv_bytes_per_token=bytes_per_token(model.layers, form),
        kv_bytes_per_token_beyond_windows=bytes_per_token_beyond_windows(model.layers, form),
        kv_bytes_fixed_per_request=bytes_fixed(model.layers, form),
        kv_bytes_per_token_per_rank=per_rank,
        kv_replication=replication,
        kv_bytes_per_request=held.request_bytes_everywhere,
        kv_bytes_per_request_per_rank=held.request_bytes,
        kv_bytes_total=Bytes(deployment.concurrency * held.request_bytes_everywhere),
        weights_bytes=deployment.weights_bytes or model_bytes(model),
        weights_bytes_per_rank=use.weights,
        workspace_bytes_per_rank=use.workspace,
        reserve_bytes_per_rank=use.reserve,
        kv_bytes_left_per_rank=left,
        kv_bytes_needed_per_rank=held.bytes_needed,
        blocks=held.blocks,
        block_tokens=held.block_tokens,
        block_bytes_per_rank=held.block_bytes,
        tokens_capacity=held.tokens,
        concurrency_printed=held.concurrency_printed,
        concurrent_requests=held.requests,
        longest_request_tokens=held.longest_request_tokens,
        fits=fits,
        missing_bytes_per_rank=_missing(held, left, fits=fits),
    )


def memory_use(deployment: Deployment) -> MemoryUse:
    """What one accelerator's memory holds beside KV."""
    model, parallel, sequences = deployment.model, deployment.parallel, deployment.concurrency
    if deployment.rules == "vllm" or deployment.machine.host_link_bytes_per_s is not None:
        workspace = fused_workspace(model, parallel, step_tokens=deployment.step_tokens, sequences=sequences)
    else:
        workspace = kvist_workspace(
            model,
            step_tokens=deployment.step_tokens,
            sequences=sequences,
            context_tokens=deployment.context_tokens,
            dtype_bytes=DTYPE_BYTES[model.dtype],
        )
    return MemoryUse(
        weights=weights_bytes_per_rank(model, parallel, deployment.weights_bytes),
        workspace=workspace,
        reserve=reserve_bytes(deployment.machine),
    )


def kv_left(deployment: Deployment, use: MemoryUse) -> Bytes:
    """Bytes for KV on each accelerator: what was asked for, or what utilisation leaves."""
    if deployment.kv_bytes is not None:
        return deployment.kv_bytes
    return kv_bytes_left(deployment.machine, use, utilisation=deployment.utilisation, rules=deployment.rules)


def _missing(held: Capacity, left: Bytes, *, fits: bool) -> Bytes:
    return Bytes(0 if fits else held.bytes_needed - left)


def _per_rank(deployment: Deployment) -> tuple[Bytes, float]:
    """Bytes of one token on the rank that has most of it, and how often its bytes are kept over all ranks.

    With context parallelism a rank keeps every so many-th token; its share of each is counted.
    """
    parallel, form = deployment.parallel, deployment.form
    stages = [
        bytes_per_token(rank_layers(deployment.model, parallel, stage), form) for stage in range(parallel.pipeline)
    ]
    whole = bytes_per_token(deployment.model.layers, form)
    everywhere = Fraction(sum(stages) * parallel.tensor, parallel.context)
    return Bytes(-(-max(stages) // parallel.context)), float(everywhere / whole) if whole else 1.0
