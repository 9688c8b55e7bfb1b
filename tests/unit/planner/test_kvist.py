"""Kvist's own rules, asked for models that are not loaded."""

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.geometry.groups import KvGroup
from kvist.geometry.layers import AttentionLayer, KvLayer, LatentLayer, PlainLayer, RecurrentLayer, SharedLayer
from kvist.planner.budget import KvLimits
from kvist.planner.kv_dtype import kv_dtype
from kvist.planner.kvist import bytes_for_requests, kvist_dtype, kvist_groups, plan_or_none, requests_together
from planned_models import FULL, GEMMA3_270M, SMOLLM2, model_of

LIMITS = KvLimits(
    dtype="bfloat16",
    block_tokens=16,
    step_tokens=512,
    sequences_max=8,
    model_tokens_max=Tokens(32_768),
    window_checkpoint_tokens=Tokens(4096),
)
GROUPS = kvist_groups(GEMMA3_270M)


def test_layers_become_groups_that_see_furthest_first() -> None:
    full = KvGroup(layers=(5, 11, 17), kv_heads=1, head_dim_k=256, head_dim_v=256)
    others = tuple(index for index in range(18) if index % 6 != 5)
    assert kvist_groups(GEMMA3_270M) == (
        full,
        KvGroup(layers=others, kv_heads=1, head_dim_k=256, head_dim_v=256, window=Tokens(512)),
    )
    assert [len(group.layers) for group in kvist_groups(SMOLLM2)] == [30]


@pytest.mark.parametrize(
    "layer",
    [
        LatentLayer(latent=8, rope=2),
        RecurrentLayer(tensors=()),
        SharedLayer(source=0),
        PlainLayer(),
        AttentionLayer(kv_heads=1, head_dim_k=8, head_dim_v=8, chunk=Tokens(4)),
    ],
)
def test_what_the_engine_does_not_serve_is_not_planned_for_it(layer: KvLayer) -> None:
    with pytest.raises(
        ConfigError, match=r"does not serve layers such as layer 1 of any: .* plan by the rules of vLLM"
    ):
        kvist_groups(model_of(FULL, layer))


def test_kv_dtypes_are_the_engines_own() -> None:
    assert [kvist_dtype(kv_dtype(name)) for name in ("bfloat16", "float32")] == ["bfloat16", "float32"]
    with pytest.raises(ConfigError, match="keeps no KV in fp8; use one of bfloat16, float16, float32"):
        kvist_dtype(kv_dtype("fp8"))


def test_too_few_bytes_are_no_plan() -> None:
    plan = plan_or_none(GROUPS, 294_911, LIMITS)
    assert plan is None
    assert requests_together(GROUPS, plan, LIMITS) == 0
    assert plan_or_none(GROUPS, 294_912, LIMITS) is not None


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_bytes_for_some_requests_are_the_least(count: int) -> None:
    enough = bytes_for_requests(GROUPS, count, LIMITS)
    assert requests_together(GROUPS, plan_or_none(GROUPS, enough, LIMITS), LIMITS) == count
    assert requests_together(GROUPS, plan_or_none(GROUPS, enough - 1, LIMITS), LIMITS) == count - 1
    assert enough >= count * LIMITS.request_bytes(GROUPS, 32_768)
    if count == 1:
        assert enough == LIMITS.request_bytes(GROUPS, 32_768)
