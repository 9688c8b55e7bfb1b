"""What bytes hold, by either engine's rules."""

from dataclasses import replace

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.geometry.layers import PlainLayer, RecurrentLayer, SharedLayer, StateTensor
from kvist.planner.capacity import Capacity, capacity, kvist_capacity, vllm_capacity
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.sharding import Parallel
from planned_models import FULL, GEMMA3_270M, LLAMA_8B, SMOLLM2, machine_of, model_of

BF16 = KvFormat(kv=kv_dtype("bfloat16"))
SMOL = Deployment(
    model=SMOLLM2, machine=machine_of(80), form=BF16, context_tokens=Tokens(4096), concurrency=3, step_tokens=1024
)
GEMMA = replace(SMOL, model=GEMMA3_270M, context_tokens=Tokens(32_768))
BLOCK = 23_040 * 16


def test_vllm_keeps_one_block_for_itself() -> None:
    held = vllm_capacity(SMOL, 1000 * BLOCK + 5)
    assert held == Capacity(
        blocks=(1000,),
        block_tokens=(16,),
        block_bytes=(Bytes(BLOCK),),
        tokens=Tokens(int(1000 / 256 * 4096)),
        requests=3,
        longest_request_tokens=Tokens(8192),
        request_bytes=Bytes(256 * BLOCK),
        request_bytes_everywhere=Bytes(256 * BLOCK),
        bytes_needed=Bytes((3 * 256 + 1) * BLOCK),
        concurrency_printed=1000 / 256,
    )
    assert capacity(SMOL, 1000 * BLOCK + 5) == held
    assert vllm_capacity(SMOL, held.bytes_needed).requests == 3
    assert vllm_capacity(SMOL, held.bytes_needed - 1).requests == 2


def test_kvist_divides_among_groups() -> None:
    deployment = replace(GEMMA, rules="kvist")
    held = capacity(deployment, 2 * 2**30)
    assert held == kvist_capacity(deployment, 2 * 2**30)
    assert held.block_bytes == (3072 * 16, 15_360 * 16)
    assert sum(count * size for count, size in zip(held.blocks, held.block_bytes, strict=True)) <= 2 * 2**30
    assert held.tokens == held.blocks[0] * 16
    assert (held.requests, held.longest_request_tokens, held.concurrency_printed) == (
        min(held.blocks[0] // 2048, held.blocks[1] // 97),
        32_768,
        None,
    )
    assert kvist_capacity(deployment, held.bytes_needed).requests == 3
    assert kvist_capacity(deployment, held.bytes_needed - 1).requests == 2


@pytest.mark.parametrize("kv_bytes", [0, 1, 49_151])
@pytest.mark.parametrize("rules", ["vllm", "kvist"])
def test_next_to_nothing_holds_nothing(rules: str, kv_bytes: int) -> None:
    held = capacity(replace(GEMMA, rules=rules), kv_bytes)
    assert (set(held.blocks), held.requests, held.longest_request_tokens, held.tokens) == ({0}, 0, 0, 0)
    assert held.bytes_needed > 0


def test_accelerators_add_up() -> None:
    base = replace(SMOL, model=LLAMA_8B)
    whole = vllm_capacity(base, 10**9)
    for parallel, per_rank in (
        (Parallel(tensor=8), whole.request_bytes // 8),
        (Parallel(tensor=16), whole.request_bytes // 8),
        (Parallel(tensor=16, context=2), whole.request_bytes // 16),
        (Parallel(pipeline=4), whole.request_bytes // 4),
        (Parallel(tensor=2, pipeline=2), whole.request_bytes // 4),
    ):
        held = vllm_capacity(replace(base, parallel=parallel), 10**9)
        assert held.request_bytes == per_rank
        assert held.request_bytes_everywhere == per_rank * parallel.ranks


def test_kvists_engine_is_on_one_accelerator() -> None:
    with pytest.raises(ConfigError, match="computes on one accelerator, and 4 were asked for"):
        kvist_capacity(replace(SMOL, rules="kvist", parallel=Parallel(tensor=1, pipeline=4)), 10**9)


def test_a_model_that_keeps_nothing_is_not_planned() -> None:
    with pytest.raises(ConfigError, match="any keeps no KV, so there is nothing to plan"):
        vllm_capacity(replace(SMOL, model=model_of(PlainLayer())), 10**9)
    with pytest.raises(ConfigError, match="any keeps no KV, so there is nothing to plan"):
        kvist_capacity(replace(SMOL, model=model_of(), rules="kvist"), 10**9)


def test_layers_that_read_another_stages_kv_are_refused() -> None:
    model = model_of(FULL, SharedLayer(source=0))
    assert vllm_capacity(replace(SMOL, model=model), 10**9).requests > 0
    with pytest.raises(ConfigError, match="layer 1 reads the KV of layer 0"):
        vllm_capacity(replace(SMOL, model=model, parallel=Parallel(pipeline=2)), 10**9)


def test_states_bound_how_many_requests_there_are_and_not_how_long() -> None:
    states = model_of(RecurrentLayer(tensors=(StateTensor(name="ssm", shape=(8, 64)),)))
    held = vllm_capacity(replace(SMOL, model=states), 21 * 1024)
    assert (held.blocks, held.requests, held.longest_request_tokens) == ((21,), 10, 131_072)
