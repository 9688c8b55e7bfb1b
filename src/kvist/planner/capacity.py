"""What the bytes left for KV hold, by the rules of whichever engine is planned for.

One function per engine gives the same figures; what differs between the engines is in `kvist.planner.vllm` and
`kvist.planner.kvist`.
"""

import contextlib
from dataclasses import dataclass, replace

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.planner.budget import KvLimits
from kvist.planner.deployment import Deployment
from kvist.planner.kvist import bytes_for_requests, kvist_dtype, kvist_groups, plan_or_none, requests_together
from kvist.planner.sharding import rank_layers, sharded, stage_layers
from kvist.planner.vllm import VllmLimits, VllmPool, block_bytes, blocks_of
from kvist.planner.vllm_groups import vllm_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits.

    Attributes:
        blocks: of each pool: one that all groups share (vLLM), or one per group (Kvist); zeros: nothing fits.
        block_tokens: tokens per block of each group.
        block_bytes: bytes of one block of each pool, on the accelerator where it takes most.
        tokens: what the engine would call the tokens of its KV memory.
        requests: of the deployment's length that fit together.
        longest_request_tokens: longest request that fits alone, of those that the model has positions for; 0: none.
        request_bytes: bytes of one request of the deployment's length, on the accelerator where it takes most.
        request_bytes_everywhere: the same, summed over all accelerators.
        bytes_needed: fewest bytes for KV on each accelerator with which the deployment fits.
        concurrency_printed: what vLLM prints as its maximum concurrency; None for other rules.
    """

    blocks: tuple[int, ...]
    block_tokens: tuple[int, ...]
    block_bytes: tuple[Bytes, ...]
    tokens: Tokens
    requests: int
    longest_request_tokens: Tokens
    request_bytes: Bytes
    request_bytes_everywhere: Bytes
    bytes_needed: Bytes
    concurrency_printed: float | None = None


def capacity(deployment: Deployment, kv_bytes: int) -> Capacity:
    """What so many bytes on each accelerator hold.

    Raises:
        ConfigError: the engine cannot serve the model so, or the model keeps no KV at all.
    """
    return vllm_capacity(deployment, kv_bytes) if deployment.rules == "vllm" else kvist_capacity(deployment, kv_bytes)


def vllm_capacity(deployment: Deployment, kv_bytes: int) -> Capacity:
    """By vLLM's rules."""
    model, parallel = deployment.model, deployment.parallel
    pool = vllm_pool(deployment, 0)
    groups = pool.groups
    stages = stage_layers(len(model.layers), parallel.pipeline)
    for stage in range(parallel.pipeline):
        rank_layers(model, parallel, stage)  # refuses layers that would read another stage's KV
    sizes = [block_bytes(groups, stage) for stage in stages]
    with contextlib.suppress(CapacityError):  # that none fit is an answer
        pool = replace(pool, blocks=blocks_of(groups, kv_bytes, stages))
    per_request = pool.limits.request_blocks(groups, deployment.context_tokens)
    return Capacity(
        blocks=(pool.blocks,),
        block_tokens=tuple(group.block_tokens for group in groups),
        block_bytes=(Bytes(max(sizes)),),
        tokens=pool.printed_tokens(deployment.context_tokens),
        requests=pool.requests(deployment.context_tokens),
        longest_request_tokens=pool.longest_request(model.positions_max),
        request_bytes=Bytes(per_request * max(sizes)),
        request_bytes_everywhere=Bytes(per_request * sum(sizes) * parallel.tensor),
        bytes_needed=Bytes((deployment.concurrency * per_request + 1) * max(sizes)),
        concurrency_printed=pool.concurrency(deployment.context_tokens),
    )


def vllm_pool(deployment: Deployment, blocks: int) -> VllmPool:
    """So many of vLLM's blocks, and the bounds of those who hold them.

    Raises:
        ConfigError: the model cannot be served so, or keeps no KV at all.
    """
    limits = VllmLimits(
        step_tokens=deployment.step_tokens,
        steps_in_flight=deployment.steps_in_flight,
        prefix_caching=deployment.prefix_caching,
        context=deployment.parallel.context,
    )
    layers = sharded(deployment.model, deployment.parallel)
    groups = vllm_groups(layers, deployment.form, deployment.block_tokens_asked)
    if not groups:
        raise ConfigError(f"{deployment.model.model_type} keeps no KV, so there is nothing to plan")
    return VllmPool(groups=groups, blocks=blocks, limits=limits)


def kvist_capacity(deployment: Deployment, kv_bytes: int) -> Capacity:
    """By the rules of Kvist's own engine, which computes on one accelerator."""
    if deployment.parallel.ranks > 1:
        raise ConfigError(
            f"Kvist's own engine computes on one accelerator, and {deployment.parallel.ranks} were asked for; plan by"
            " the rules of vLLM"
        )
    groups = kvist_groups(deployment.model)
    if not groups:
        raise ConfigError(f"{deployment.model.model_type} keeps no KV, so there is nothing to plan")
    limits, longest = (_kvist_limits(deployment, most) for most in (deployment.context_tokens, None))
    plan, longest_plan = (plan_or_none(groups, kv_bytes, bounds) for bounds in (limits, longest))
    request = limits.request_bytes(groups, deployment.context_tokens)
    return Capacity(
        blocks=plan.blocks if plan else (0,) * len(groups),
        block_tokens=(limits.block_tokens,) * len(groups),
        block_bytes=tuple(limits.block_bytes(group) for group in groups),
        tokens=plan.tokens_capacity if plan else Tokens(0),
        requests=requests_together(groups, plan, limits),
        longest_request_tokens=longest_plan.longest_request_tokens if longest_plan else Tokens(0),
        request_bytes=request,
        request_bytes_everywhere=request,
        bytes_needed=bytes_for_requests(groups, deployment.concurrency, limits),
    )


def _kvist_limits(deployment: Deployment, tokens_max: Tokens | None) -> KvLimits:
    return KvLimits(
        dtype=kvist_dtype(deployment.form.kv),
        block_tokens=deployment.block_tokens_asked,
        step_tokens=deployment.step_tokens,
        sequences_max=deployment.concurrency,
        model_tokens_max=tokens_max or deployment.model.positions_max,
        window_checkpoint_tokens=deployment.window_checkpoint_tokens,
    )
