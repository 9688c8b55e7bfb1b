"""Deployments that cannot be are refused at once."""

import math
from dataclasses import replace

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.geometry.layers import LatentLayer
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.sharding import Parallel
from planned_models import FULL, machine_of, model_of

BF16 = KvFormat(kv=kv_dtype("bfloat16"))
DEPLOYMENT = Deployment(
    model=model_of(FULL, positions_max=4096), machine=machine_of(1), form=BF16, context_tokens=Tokens(4096)
)


@pytest.mark.parametrize("value", [0, -1, 2**41, 1.5, True, "8"])
@pytest.mark.parametrize(
    "name", ["context_tokens", "concurrency", "step_tokens", "block_tokens", "weights_bytes", "kv_bytes"]
)
def test_counts_are_whole_and_positive(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be a whole number, at least 1"):
        replace(DEPLOYMENT, **{name: value})


@pytest.mark.parametrize("name", ["context_tokens", "concurrency", "step_tokens"])
def test_counts_that_nothing_stands_in_for_must_be_there(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is None"):
        replace(DEPLOYMENT, **{name: None})


@pytest.mark.parametrize("value", [0, -0.5, 1.01, math.nan, math.inf])
def test_a_utilisation_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match=f"memory utilisation {value} is not above 0 and at most 1"):
        replace(DEPLOYMENT, utilisation=value)


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match="a context of 4097 tokens is longer than the model's 4096 positions"):
        replace(DEPLOYMENT, context_tokens=4097)


def test_what_vllm_does_not_take_is_refused_for_vllm_only() -> None:
    with pytest.raises(ConfigError, match="blocks of 24 tokens are not a multiple of vLLM's 16"):
        replace(DEPLOYMENT, block_tokens=24)
    assert replace(DEPLOYMENT, block_tokens=24, rules="kvist").block_tokens_asked == 24
    with pytest.raises(ConfigError, match="vLLM keeps no KV in kivi2_g32; take the model's own bfloat16, or fp8"):
        replace(DEPLOYMENT, form=KvFormat(kv=kv_dtype("kivi2_g32")))
    wide = replace(DEPLOYMENT.model, dtype="float32")
    assert replace(DEPLOYMENT, model=wide, form=KvFormat(kv=kv_dtype("float32"))).model is wide


def test_other_rules_are_not_known() -> None:
    with pytest.raises(ConfigError, match="rules of 'sglang' are not known; they are those of vllm or kvist"):
        replace(DEPLOYMENT, rules="sglang")


def test_blocks_that_were_not_asked_for_are_the_engines_own() -> None:
    latents = replace(DEPLOYMENT, model=model_of(LatentLayer(latent=8, rope=2)))
    assert [latents.block_tokens_asked, replace(latents, rules="kvist").block_tokens_asked] == [64, 16]
    assert [DEPLOYMENT.block_tokens_asked, replace(DEPLOYMENT, block_tokens=32).block_tokens_asked] == [16, 32]


def test_steps_in_flight_follow_from_stages_and_waiting() -> None:
    assert DEPLOYMENT.steps_in_flight == 2
    assert replace(DEPLOYMENT, asynchronous=False).steps_in_flight == 1
    assert replace(DEPLOYMENT, parallel=Parallel(pipeline=4)).steps_in_flight == 4
