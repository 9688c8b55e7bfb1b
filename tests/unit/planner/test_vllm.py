"""vLLM's counts of blocks, against sums by hand."""

from dataclasses import fields

import pytest

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Tokens
from kvist.geometry.layers import AttentionLayer, PlainLayer, RecurrentLayer, StateTensor
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.vllm import VllmLimits, VllmPool, block_bytes, blocks_of
from kvist.planner.vllm_groups import VllmGroup, vllm_groups

FORM = KvFormat(kv=kv_dtype("bfloat16"))
FULL = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64)
WINDOW = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64, window=Tokens(128))
CHUNK = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64, chunk=Tokens(128))
STATE = RecurrentLayer(tensors=(StateTensor(name="ssm", shape=(4, 64)),))
LIMITS = VllmLimits(step_tokens=64)


def group(layer: AttentionLayer | RecurrentLayer) -> VllmGroup:
    return vllm_groups([layer], FORM, 16)[0]


@pytest.mark.parametrize(
    ("tokens", "full", "window", "chunk"),
    [(1, 1, 2, 1), (16, 1, 2, 1), (17, 2, 3, 2), (191, 12, 13, 12), (192, 12, 13, 12), (193, 13, 13, 12)],
)
def test_blocks_of_one_request(tokens: int, full: int, window: int, chunk: int) -> None:
    assert [LIMITS.group_blocks(group(layer), tokens) for layer in (FULL, WINDOW, CHUNK)] == [full, window, chunk]


@pytest.mark.parametrize(("window", "blocks"), [(129, 13), (130, 14)])
def test_a_window_counts_the_token_that_reads(window: int, blocks: int) -> None:
    layer = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64, window=Tokens(window))
    assert LIMITS.group_blocks(group(layer), 10_000) == blocks  # 128 or 129 tokens before the 64 of a step


def test_steps_in_flight_keep_what_has_passed() -> None:
    two = VllmLimits(step_tokens=64, steps_in_flight=2)
    assert two.group_blocks(group(WINDOW), 10_000) == -(-(127 + 128) // 16) + 1
    assert two.group_blocks(group(CHUNK), 10_000) == 16


def test_states_do_not_grow() -> None:
    for limits, blocks in (
        (VllmLimits(step_tokens=64, prefix_caching=False), 1),
        (VllmLimits(step_tokens=64), 2),
        (VllmLimits(step_tokens=64, speculative_tokens=2), 4),
    ):
        assert {limits.group_blocks(group(STATE), tokens) for tokens in (1, 10_000)} == {blocks}


def test_context_parallelism_divides_the_tokens() -> None:
    assert VllmLimits(step_tokens=64, context=4).group_blocks(group(FULL), 10_000) == -(-2500 // 16)


@pytest.mark.parametrize("name", [each.name for each in fields(VllmLimits)])
def test_a_limit_that_is_too_low_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1; it must be at least"):
        VllmLimits(**({"step_tokens": 1} | {name: -1}))  # type: ignore[arg-type]  # a boolean would be one too


def test_a_pool_of_two_kinds() -> None:
    groups = vllm_groups([FULL, WINDOW, WINDOW], FORM, 16)
    pool = VllmPool(groups=groups, blocks=131, limits=LIMITS)
    assert pool.usable == 130
    assert LIMITS.request_blocks(groups, 1000) == 63 + 2 * 13
    assert pool.requests(1000) == 1
    assert pool.requests(100) == 130 // (7 + 2 * 8)
    assert pool.longest_request(131_072) == (130 - 26) * 16
    assert pool.longest_request(500) == 500
    assert pool.concurrency(1000) == 131 / 89
    assert pool.printed_tokens(1000) == int(131 / 89 * 1000)
    assert pool.printed_tokens_before_2026() == 131 // 3 * 16


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
def test_a_pool_that_is_too_small_for_any_request(blocks: int) -> None:
    pool = VllmPool(groups=vllm_groups([FULL, WINDOW, WINDOW], FORM, 16), blocks=blocks, limits=LIMITS)
    assert (pool.requests(1), pool.longest_request(100)) == (0, 0)


def test_the_stage_that_takes_most_bounds_the_blocks() -> None:
    groups = vllm_groups([FULL] * 5 + [PlainLayer()], FORM, 16)
    stages = (range(3), range(3, 5), range(5, 6))
    assert [block_bytes(groups, stage) for stage in stages] == [3 * 16_384, 2 * 16_384, 0]
    assert blocks_of(groups, 10 * 3 * 16_384 + 5, stages) == 10
    with pytest.raises(CapacityError, match=r"96\.0 KiB of KV memory do not hold two blocks of 48\.0 KiB"):
        blocks_of(groups, 2 * 3 * 16_384 - 1, stages)
    with pytest.raises(CapacityError, match="do not hold two blocks"):
        blocks_of(groups, -1, stages)


def test_groups_share_their_bytes() -> None:
    groups = vllm_groups([FULL, WINDOW, WINDOW, WINDOW, FULL], FORM, 16)
    assert [len(each.layers) for each in groups] == [2, 2, 1]
    assert block_bytes(groups, range(5)) == 2 * 16_384
