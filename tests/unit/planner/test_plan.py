"""Plans as a whole: figures agree with each other, and too little memory is an answer."""

from dataclasses import replace

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.geometry.layers import ModelLayers
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.plan import plan
from kvist.planner.sharding import Parallel
from planned_models import (
    DEEPSEEK_V3,
    GEMMA3_270M,
    GIB,
    GPT_OSS_20B,
    LLAMA_8B,
    LLAMA_70B,
    QWEN3_5_27B,
    SMOLLM2,
    machine_of,
)

BF16 = KvFormat(kv=kv_dtype("bfloat16"), ssm="float32")


def deployment(model: ModelLayers, gib: float = 139.8, **more: object) -> Deployment:
    asked: dict[str, object] = {"context_tokens": Tokens(8192), "concurrency": 4} | more
    return Deployment(model=model, machine=machine_of(gib), form=BF16, **asked)  # type: ignore[arg-type]  # tests name the fields


def test_llama_70b_on_two_h200() -> None:
    planned = plan(deployment(LLAMA_70B, context_tokens=Tokens(131_072), parallel=Parallel(tensor=2)))
    assert (planned.kv_bytes_per_token, planned.kv_bytes_per_token_per_rank) == (327_680, 163_840)
    assert (planned.kv_replication, planned.kv_bytes_fixed_per_request) == (1.0, 0)
    assert planned.kv_bytes_per_request == 2 * planned.kv_bytes_per_request_per_rank == 40 * GIB
    assert planned.kv_bytes_total == 160 * GIB
    assert planned.weights_bytes == 2 * planned.weights_bytes_per_rank == pytest.approx(141e9, rel=0.01)
    used = planned.weights_bytes_per_rank + planned.workspace_bytes_per_rank + planned.reserve_bytes_per_rank
    assert planned.kv_bytes_left_per_rank == int(int(139.8 * GIB) * 0.9) - used
    assert planned.blocks == (planned.kv_bytes_left_per_rank // planned.block_bytes_per_rank[0],)
    assert (planned.concurrent_requests, planned.fits) == (2, False)
    assert planned.missing_bytes_per_rank == planned.kv_bytes_needed_per_rank - planned.kv_bytes_left_per_rank
    assert planned.kv_bytes_needed_per_rank == (4 * 8192 + 1) * planned.block_bytes_per_rank[0]


@pytest.mark.parametrize("rules", ["vllm", "kvist"])
@pytest.mark.parametrize("gib", [0.01, 1.0, 10.0])
def test_weights_that_do_not_fit_are_an_answer(rules: str, gib: float) -> None:
    planned = plan(deployment(LLAMA_8B, gib, rules=rules))
    assert planned.kv_bytes_left_per_rank < 0
    assert (set(planned.blocks), planned.concurrent_requests, planned.longest_request_tokens) == ({0}, 0, 0)
    assert not planned.fits
    assert planned.missing_bytes_per_rank > planned.kv_bytes_needed_per_rank


@pytest.mark.parametrize("rules", ["vllm", "kvist"])
def test_just_enough_fits_and_one_byte_less_does_not(rules: str) -> None:
    asked = deployment(GEMMA3_270M, rules=rules, context_tokens=Tokens(32_768))
    needed = plan(asked).kv_bytes_needed_per_rank
    enough, less = (plan(replace(asked, kv_bytes=size)) for size in (needed, Bytes(needed - 1)))
    assert (enough.fits, enough.missing_bytes_per_rank, enough.concurrent_requests) == (True, 0, 4)
    assert (less.fits, less.missing_bytes_per_rank, less.concurrent_requests) == (False, 1, 3)


def test_latents_are_kept_by_every_accelerator_unless_tokens_are_divided() -> None:
    eight, divided = (plan(deployment(DEEPSEEK_V3, parallel=Parallel(tensor=8, context=context))) for context in (1, 8))
    assert (eight.kv_bytes_per_token, eight.kv_bytes_per_token_per_rank, eight.kv_replication) == (70_272, 70_272, 8.0)
    assert (divided.kv_bytes_per_token_per_rank, divided.kv_replication) == (70_272 // 8, 1.0)
    assert divided.kv_bytes_per_request * 8 == eight.kv_bytes_per_request
    assert eight.block_tokens == (64,)


def test_repeated_heads_count_where_they_are() -> None:
    planned = plan(deployment(LLAMA_8B, parallel=Parallel(tensor=16)))
    assert (planned.kv_replication, planned.kv_bytes_per_token_per_rank) == (2.0, 131_072 // 8)


def test_windows_and_states_are_fixed() -> None:
    windows, states = plan(deployment(GPT_OSS_20B)), plan(deployment(QWEN3_5_27B))
    assert windows.kv_bytes_per_token == 2 * windows.kv_bytes_per_token_beyond_windows == 2 * 24_576
    assert windows.kv_bytes_fixed_per_request == 24_576 * 128
    assert states.kv_bytes_per_token == states.kv_bytes_per_token_beyond_windows == 65_536
    assert states.kv_bytes_fixed_per_request == 48 * 3_207_168
    assert set(states.block_tokens) == {784}


def test_known_weights_go_before_counted_ones() -> None:
    planned = plan(deployment(SMOLLM2, weights_bytes=Bytes(100_000_000)))
    assert planned.weights_bytes == planned.weights_bytes_per_rank == 100_000_000


def test_what_can_not_be_spread_is_an_error_whatever_the_memory() -> None:
    with pytest.raises(ConfigError, match="3 does not divide the model's 32 query heads"):
        plan(deployment(LLAMA_8B, parallel=Parallel(tensor=3)))


def test_kvist_on_a_cpu_takes_the_memory_that_scores_need() -> None:
    asked = deployment(SMOLLM2, rules="kvist")
    host = replace(asked, machine=machine_of(139.8, link=None))
    short, long = (plan(replace(host, context_tokens=Tokens(tokens))) for tokens in (1024, 8192))
    assert short.workspace_bytes_per_rank < long.workspace_bytes_per_rank
    assert long.reserve_bytes_per_rank == 0 < plan(asked).reserve_bytes_per_rank
