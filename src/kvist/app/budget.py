"""Where one engine's memory goes, and the bounds that follow for requests.

Takes measurements as numbers; the arithmetic is the planner's.
"""

from dataclasses import dataclass

from kvist.app.config import ServeConfig
from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes, Tokens, format_bytes
from kvist.engine.messages import EngineLimits
from kvist.geometry.groups import ModelGeometry
from kvist.planner.budget import KvLimits, KvPlan, kv_budget_from_fraction
from kvist.server.settings import MemoryCard

_KV_BYTES_ON_CPU = Bytes(2 * 2**30)
"""The pool of a machine that people also work on, when nothing is said; a GPU is there for the engine alone."""

_KV_FRACTION_ON_GPU = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Where the memory goes, as measured at start.

    Attributes:
        weights: bytes of all parameters.
        workspace: most bytes that one full step took beyond weights and KV.
        kv: bytes of the KV tensors as they lie in memory.
        plan: how the KV pool is divided and what fits into it.
        limits: the bounds that requests are held to.
        kv_bytes_per_token: of one token in all layers.
        block_tokens: tokens per block.
    """

    weights: Bytes
    workspace: Bytes
    kv: Bytes
    plan: KvPlan
    limits: EngineLimits
    kv_bytes_per_token: Bytes
    block_tokens: int


def kv_limits(geometry: ModelGeometry, config: ServeConfig) -> KvLimits:
    """What the KV pool is meant to serve.

    Raises:
        ConfigError: longer sequences were asked for than the model has positions for, or it has too few for any.
    """
    if geometry.positions_max < 2:
        raise ConfigError(
            f"a prompt and its answer take at least 2 positions, and the model has {geometry.positions_max}"
        )
    longest = config.model_tokens_max or geometry.positions_max
    if longest > geometry.positions_max:
        raise ConfigError(f"--model-tokens-max {longest} exceeds the model's {geometry.positions_max} positions")
    return KvLimits(
        dtype=config.dtype,
        block_tokens=config.block_tokens,
        step_tokens=config.step_tokens,
        sequences_max=config.sequences_max,
        model_tokens_max=Tokens(longest),
        window_checkpoint_tokens=Tokens(config.window_checkpoint_tokens),
    )


def kv_bytes(config: ServeConfig, free: Bytes, workspace: Bytes) -> Bytes:
    """Size of the KV pool.

    Args:
        config: what was asked for.
        free: bytes that may still be taken now that the weights are loaded.
        workspace: bytes of them that a step needs.

    Raises:
        CapacityError: more was asked for than there is.
    """
    wanted = _kv_bytes_said(config)
    if wanted is None:
        return kv_budget_from_fraction(free, workspace, config.kv_memory_fraction or _KV_FRACTION_ON_GPU)
    if wanted > free - workspace:
        raise CapacityError(
            f"{format_bytes(wanted)} of KV memory do not fit: {format_bytes(free)} are free and a step takes"
            f" {format_bytes(workspace)} of them; give a smaller --kv-memory, or --kv-memory-fraction 0.8"
        )
    return wanted


def _kv_bytes_said(config: ServeConfig) -> Bytes | None:
    """Size of the KV pool where it does not depend on what is free."""
    if config.kv_memory is None and (config.kv_memory_fraction is not None or config.device == "cuda"):
        return None
    return Bytes(config.kv_memory or _KV_BYTES_ON_CPU)


def kv_bytes_asked(config: ServeConfig) -> Bytes | None:
    """Size of a KV pool in the host's memory; None where it is elsewhere, or depends on what is free."""
    return _kv_bytes_said(config) if config.device == "cpu" else None


def check_asked(config: ServeConfig, plan: KvPlan) -> None:
    """Refuses lengths that were asked for and that the KV pool cannot hold; those left open become what it holds.

    Raises:
        CapacityError: naming the flag, its value, and what the pool holds.
    """
    for flag, asked in (
        ("--model-tokens-max", config.model_tokens_max),
        ("--prompt-tokens-max", config.prompt_tokens_max and config.prompt_tokens_max + 1),
        ("--output-tokens-max", config.output_tokens_max and config.output_tokens_max + 1),
    ):
        if asked is not None and asked > plan.longest_request_tokens:
            raise CapacityError(
                f"{flag} asks for sequences of {asked} tokens, and {format_bytes(plan.bytes_budget)} of KV memory hold"
                f" one of {plan.longest_request_tokens}; lower it or give more --kv-memory"
            )


def engine_limits(geometry: ModelGeometry, config: ServeConfig, longest_request: Tokens) -> EngineLimits:
    """The bounds that requests are held to; those left open are as wide as the model allows.

    Args:
        geometry: of the model.
        config: what was asked for.
        longest_request: what the KV pool can hold for one sequence alone.
    """
    longest = config.model_tokens_max or geometry.positions_max
    return EngineLimits(
        model_tokens_max=Tokens(longest),
        prompt_tokens_max=Tokens(config.prompt_tokens_max or longest - 1),
        output_tokens_max=Tokens(config.output_tokens_max or longest - 1),
        longest_request_tokens=longest_request,
        sequences_max=config.sequences_max,
        waiting_max=config.waiting_max,
        vocab_size=geometry.vocab_size,
    )


def memory_card(budget: Budget, config: ServeConfig) -> MemoryCard:
    """What the server's metrics say of it."""
    return MemoryCard(
        weights_bytes=budget.weights,
        workspace_bytes=budget.workspace,
        dtype=config.dtype,
        block_tokens=budget.block_tokens,
        step_tokens=config.step_tokens,
        sequences_max=config.sequences_max,
        model_tokens_max=budget.limits.model_tokens_max,
        window_checkpoint_tokens=Tokens(config.window_checkpoint_tokens),
    )
