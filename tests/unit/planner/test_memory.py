"""Weights, reserve and what is left, against sums by hand and published figures."""

import math
from dataclasses import replace

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.geometry.layers import LatentLayer, ModelLayers, Parameters
from kvist.planner.memory import (
    CONTEXT_BYTES,
    Machine,
    MemoryUse,
    kv_bytes_left,
    model_bytes,
    reserve_bytes,
    weights_bytes_per_rank,
)
from kvist.planner.sharding import Parallel
from planned_models import FULL, GEMMA3_270M, GIB, LLAMA_8B, SMOLLM2, machine_of, model_of

ONE = Parallel()


def test_all_weights_are_two_bytes_each_in_half_precision() -> None:
    # As loaded: tensors of 269,030,016 and 536,196,352 bytes.
    assert model_bytes(SMOLLM2) == weights_bytes_per_rank(SMOLLM2, ONE) == 269_030_016
    assert model_bytes(GEMMA3_270M) == 536_196_352


def test_weights_of_a_published_start() -> None:
    # vllm#10517: "Loading model weights took 14.9888 GB", which counts GiB, of Llama-3.1-8B.
    assert weights_bytes_per_rank(LLAMA_8B, ONE) / GIB == pytest.approx(14.9888, rel=0.005)


def test_quantised_weights_leave_the_embeddings() -> None:
    model = replace(model_of(FULL, FULL), weight_bits=4.5)
    assert model_bytes(model) == 80_800 * 4.5 / 8 + 2 * 19_200


def test_tensor_parallelism_repeats_the_projections_of_repeated_heads() -> None:
    model = model_of(FULL, FULL)  # 2 KV heads, 64 wide, 16 numbers per head
    whole = weights_bytes_per_rank(model, ONE)
    assert whole == 200_000
    assert weights_bytes_per_rank(model, Parallel(tensor=2)) == whole // 2
    assert weights_bytes_per_rank(model, Parallel(tensor=4)) == whole // 4 + 2 * 2 * (64 * 16) // 2
    latent = model_of(LatentLayer(latent=8, rope=2))
    assert weights_bytes_per_rank(latent, Parallel(tensor=4)) == whole // 4 + 2 * (64 * 10) * 3 // 4


def test_the_stage_that_has_most_counts() -> None:
    table, untied = 64 * 300, model_of(FULL, FULL, FULL, FULL)
    body = untied.parameters.total - table
    # Tied embeddings: both ends have the table.
    assert weights_bytes_per_rank(untied, Parallel(pipeline=2)) == body + 2 * table
    two = Parameters(total=body + 2 * table, active=1, embedding=2 * table)
    assert weights_bytes_per_rank(replace(untied, parameters=two), Parallel(pipeline=2)) == body + 2 * table
    assert weights_bytes_per_rank(replace(untied, parameters=two), ONE) == 2 * (body + 2 * table)


def test_known_bytes_are_divided_in_proportion() -> None:
    model: ModelLayers = model_of(FULL, FULL)
    assert weights_bytes_per_rank(model, ONE, 123_457) == 123_457
    assert weights_bytes_per_rank(model, Parallel(tensor=2), 123_457) == 123_457 // 2


def test_only_an_accelerators_own_memory_is_reserved() -> None:
    assert reserve_bytes(machine_of(80)) == CONTEXT_BYTES == pytest.approx(0.35 * GIB, rel=0.06)
    assert reserve_bytes(machine_of(80, link=None)) == 0


def test_what_is_left_for_kv() -> None:
    use = MemoryUse(weights=Bytes(90), workspace=Bytes(8), reserve=Bytes(2))
    machine = replace(machine_of(1), bytes_total=Bytes(180))
    assert use.total == 100
    assert kv_bytes_left(machine, use, utilisation=0.8, rules="kvist") == 64
    assert kv_bytes_left(machine, use, utilisation=0.8, rules="vllm") == 44
    # The decimal that was written, not the binary number nearest to it.
    hundred = replace(machine, bytes_total=Bytes(200))
    assert kv_bytes_left(hundred, use, utilisation=0.29, rules="kvist") == 29
    small = replace(machine, bytes_total=Bytes(60))
    assert kv_bytes_left(small, use, utilisation=0.5, rules="kvist") == -40
    assert kv_bytes_left(small, use, utilisation=0.5, rules="vllm") == -70


def test_a_published_start_adds_up() -> None:
    # vllm#10517: 23.58 GiB, 0.9, weights 14.9888, peak 17.06, other 0.35; 3.81 GiB are left.
    use = MemoryUse(
        weights=Bytes(int(14.9888 * GIB)), workspace=Bytes(int(2.0712 * GIB)), reserve=Bytes(int(0.35 * GIB))
    )
    left = kv_bytes_left(machine_of(23.58), use, utilisation=0.9, rules="vllm")
    assert left / GIB == pytest.approx(3.81, abs=0.01)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**22])
@pytest.mark.parametrize("name", ["bytes_total", "bytes_per_s", "flops_bf16", "flops_fp8", "host_link_bytes_per_s"])
def test_a_machine_of_nothing_is_refused(name: str, value: float) -> None:
    figures = {"bytes_total": 1, "bytes_per_s": 1.0, "flops_bf16": 1.0} | {name: value}
    with pytest.raises(ConfigError, match=f"machine 'x': {name} is {value}; it must be above 0"):
        Machine(name="x", **figures)  # type: ignore[arg-type]  # what a file may hold
