"""The start-up budget, checked against worked examples."""

import math
from dataclasses import replace

import pytest

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Tokens
from kvist.blocks.window import first_block_of_hit
from kvist.geometry.groups import KvGroup, ModelGeometry
from kvist.planner.budget import (
    KvLimits,
    KvPlan,
    blocks_held_peak,
    free_memory,
    kv_budget_from_fraction,
    plan_kv,
)

MIB, GIB = 2**20, 2**30


def group(layers: int, heads: int, head_dim: int, window: int | None = None) -> KvGroup:
    return KvGroup(
        layers=tuple(range(layers)),
        kv_heads=heads,
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        window=None if window is None else Tokens(window),
    )


def model(*groups: KvGroup, positions_max: int = 8192) -> ModelGeometry:
    return ModelGeometry(
        architecture="LlamaForCausalLM",
        layers=sum(len(each.layers) for each in groups),
        query_heads=8,
        hidden_size=64,
        vocab_size=300,
        positions_max=Tokens(positions_max),
        groups=groups,
        rope=(),
        dtype="bfloat16",
    )


SMOLLM2 = model(group(30, 3, 64))
GEMMA3 = model(group(3, 1, 256), group(15, 1, 256, window=512), positions_max=32_768)
LLAMA3_8B = model(group(32, 8, 128), positions_max=131_072)

LIMITS = KvLimits(
    dtype="bfloat16",
    block_tokens=16,
    step_tokens=512,
    sequences_max=8,
    model_tokens_max=Tokens(8192),
    window_checkpoint_tokens=Tokens(4096),
)
GEMMA_LIMITS = replace(LIMITS, model_tokens_max=Tokens(32_768))


def test_a_fraction_is_of_what_is_free() -> None:
    assert kv_budget_from_fraction(180 * 10**9, 100 * 10**9, 0.8) == 64 * 10**9
    assert kv_budget_from_fraction(100, 0, 0.29) == 29
    assert kv_budget_from_fraction(100, 60, 1.0) == 40
    assert kv_budget_from_fraction(2**60 + 1, 0, 1) == 2**60 + 1


@pytest.mark.parametrize("fraction", [0, -0.1, 1.01, math.nan, math.inf, -math.inf])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match=f"KV memory fraction {fraction} is out of range"):
        kv_budget_from_fraction(180, 100, fraction)


@pytest.mark.parametrize(("total", "used"), [(100, 100), (100, 180), (0, 0), (10, 9)])
def test_nothing_left_is_said(total: int, used: int) -> None:
    with pytest.raises(CapacityError, match=f"no memory is left for KV: {used} B of {total} B are used"):
        kv_budget_from_fraction(total, used, 0.5)


@pytest.mark.parametrize(
    ("available", "limit", "used", "free"),
    [
        (8_000, None, None, 8_000),
        (8_000, None, 5, 8_000),
        (8_000, 6_000, 1_000, 5_000),
        (8_000, 6_000, None, 6_000),
        (8_000, 2**63 - 4096, 1_000, 8_000),
        (8_000, 6_000, 7_000, 0),
        (0, 6_000, 1_000, 0),
    ],
)
def test_free_is_the_smaller_of_two(available: int, limit: int | None, used: int | None, free: int) -> None:
    assert free_memory(available, limit, used) == free


@pytest.mark.parametrize(
    ("tokens", "step", "peak"),
    [(1, 512, 1), (16, 512, 1), (17, 512, 2), (500, 512, 32), (32_768, 512, 65), (32_768, 64, 37), (32_768, 1, 33)],
)
def test_a_window_is_held_with_the_step_and_the_block_between(tokens: int, step: int, peak: int) -> None:
    window = group(15, 1, 256, window=512)
    assert blocks_held_peak(window, tokens, step_tokens=step, block_tokens=16) == peak


def test_full_attention_is_held_whole() -> None:
    assert blocks_held_peak(group(3, 1, 256), 32_768, step_tokens=512, block_tokens=16) == 2048
    assert blocks_held_peak(group(3, 1, 256), 32_769, step_tokens=1, block_tokens=16) == 2049


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 5, 16, 33])
@pytest.mark.parametrize("step", [1, 3, 16, 40])
def test_the_peak_is_the_most_that_any_way_through_a_sequence_holds(window: int, step: int, block_tokens: int) -> None:
    most = 0
    for computed in range(200):
        for after in range(computed + 1, min(computed + step, 200) + 1):
            # A table lets go of what is wholly before the window that its last full block needs.
            kept_from = first_block_of_hit(computed // block_tokens * block_tokens, Tokens(window), block_tokens)
            # What the next query reads must be among it.
            assert kept_from * block_tokens <= max(0, computed - window + 1)
            most = max(most, -(-after // block_tokens) - kept_from)
    assert blocks_held_peak(group(1, 1, 8, window), 200, step_tokens=step, block_tokens=block_tokens) == most


def test_a_single_group_gets_everything() -> None:
    plan = plan_kv(SMOLLM2, 2 * GIB, LIMITS)
    assert plan.block_bytes == (23_040 * 16,)
    assert plan.blocks == (5825,)
    assert plan == KvPlan(
        bytes_budget=2 * GIB,
        bytes_used=5825 * 368_640,
        blocks=(5825,),
        block_bytes=(368_640,),
        tokens_capacity=93_200,
        longest_request_tokens=8192,
        requests_at_longest=8,
        fits_model_length=True,
        bytes_for_model_length=512 * 368_640,
    )


@pytest.mark.parametrize(
    ("kv_gib", "tokens_max", "blocks", "longest", "together"),
    [(4.91, 131_072, 2_513, 40_208, 1), (16.0, 131_072, 8_192, 131_072, 1)],
)
def test_published_figures_come_out(kv_gib: float, tokens_max: int, blocks: int, longest: int, together: int) -> None:
    plan = plan_kv(LLAMA3_8B, int(kv_gib * GIB), replace(LIMITS, model_tokens_max=Tokens(tokens_max)))
    assert (plan.blocks, plan.longest_request_tokens, plan.requests_at_longest) == ((blocks,), longest, together)
    assert plan.fits_model_length == (longest == tokens_max)


def test_a_window_group_takes_its_own_share() -> None:
    plan = plan_kv(GEMMA3, 2 * GIB, GEMMA_LIMITS)
    assert plan.block_bytes == (3_072 * 16, 15_360 * 16)
    full, window = plan.blocks
    assert plan.bytes_used == full * 49_152 + window * 245_760 <= 2 * GIB
    # One running request and its nine kept windows, in proportion to the full blocks of one request.
    assert window == max(full * (65 + 9 * 32) // 2048, min(8 * 65, full // 5))
    assert plan.bytes_for_model_length == 2048 * 49_152 + 65 * 245_760
    # Without a group of its own every token would take all 18,432 bytes.
    assert plan.tokens_capacity > 2 * (2 * GIB // 18_432)


def test_little_memory_serves_one_long_request_before_many_short_ones() -> None:
    enough = 2048 * 49_152 + 65 * 245_760
    plan = plan_kv(GEMMA3, enough, GEMMA_LIMITS)
    assert (plan.blocks, plan.longest_request_tokens, plan.fits_model_length) == ((2048, 65), 32_768, True)
    less = plan_kv(GEMMA3, enough - 1, GEMMA_LIMITS)
    assert (less.blocks, less.longest_request_tokens, less.fits_model_length) == ((2047, 65), 32_752, False)
    more = plan_kv(GEMMA3, enough + 245_760, GEMMA_LIMITS)
    assert more.blocks == (2048, 66)


def test_many_short_requests_may_run_where_that_costs_no_more_than_the_prefixes() -> None:
    few_kept = replace(GEMMA_LIMITS, window_checkpoint_tokens=Tokens(2**30))
    full, window = plan_kv(GEMMA3, 2 * GIB, few_kept).blocks
    assert window == max(8 * 65, full * (65 + 32) // 2048)
    full, window = plan_kv(GEMMA3, 512 * MIB, replace(few_kept, sequences_max=1000)).blocks
    assert window == full * 49_152 // 245_760


def test_a_model_that_slides_everywhere_has_requests_of_any_length() -> None:
    mistral = model(group(32, 8, 128, window=4096), positions_max=32_768)
    peak = (4096 + 512) // 16 + 1
    plan = plan_kv(mistral, peak * 16 * 131_072, GEMMA_LIMITS)
    assert (plan.blocks, plan.longest_request_tokens, plan.requests_at_longest) == ((peak,), 32_768, 1)
    less = plan_kv(mistral, peak * 16 * 131_072 - 1, GEMMA_LIMITS)
    assert (less.blocks, less.longest_request_tokens) == ((peak - 1,), (peak - 1) * 16)


def test_what_is_asked_together_is_bounded_by_the_sequences_allowed() -> None:
    assert plan_kv(SMOLLM2, 100 * GIB, LIMITS).requests_at_longest == 8
    assert plan_kv(SMOLLM2, 100 * GIB, replace(LIMITS, sequences_max=64)).requests_at_longest == 64


@pytest.mark.parametrize("kv_bytes", [0, -5, 1, 294_911])
def test_less_than_a_block_of_each_group_is_refused_with_what_it_takes(kv_bytes: int) -> None:
    with pytest.raises(CapacityError, match=r"which takes 288\.0 KiB; one request of 32768 tokens takes 111\.2 MiB"):
        plan_kv(GEMMA3, kv_bytes, GEMMA_LIMITS)
    assert plan_kv(GEMMA3, 294_912, GEMMA_LIMITS).longest_request_tokens == 16


@pytest.mark.parametrize(
    "name", ["block_tokens", "step_tokens", "sequences_max", "model_tokens_max", "window_checkpoint_tokens"]
)
def test_a_limit_below_one_is_refused_by_its_name(name: str) -> None:
    for value in (0, -1):
        with pytest.raises(ConfigError, match=f"{name} is {value}; it must be at least 1"):
            replace(LIMITS, **{name: value})
