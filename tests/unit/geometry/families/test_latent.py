"""Families with multi-head latent attention."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.layers import LatentLayer
from kvist.geometry.published import model_layers
from tiny_families import own_fields


def read(variant: str = "deepseek_v3", **changes: Any) -> Any:
    return model_layers(dict(own_fields(variant)) | changes)


def test_every_layer_keeps_one_vector_and_one_rotated_key() -> None:
    for variant in ("deepseek_v2", "deepseek_v3"):
        assert read(variant).layers == (LatentLayer(latent=24, rope=8),) * 6


def test_a_head_is_what_is_compared_rotated_or_not() -> None:
    assert (read().head_dim, read().query_heads) == (24, 4)


def test_kimi_is_built_as_its_model_is() -> None:
    kimi, deepseek = read(model_type="kimi_k2"), read()
    assert (kimi.layers, kimi.parameters) == (deepseek.layers, deepseek.parameters)


def test_experts_may_lie_in_each_nth_layer_from_some_layer_on() -> None:
    all_dense, half = read(first_k_dense_replace=6), read(first_k_dense_replace=0, moe_layer_freq=2)
    all_sparse = read(first_k_dense_replace=0)
    assert 2 * half.parameters.total == all_dense.parameters.total + all_sparse.parameters.total
    assert all_dense.parameters.total - all_dense.parameters.active == 300 * 48  # only the embedding is looked up


@pytest.mark.parametrize(
    "field",
    ["kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "first_k_dense_replace"],
)
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=f"lacks {field}, which deepseek_v3 needs"):
        model_layers({key: value for key, value in own_fields("deepseek_v3").items() if key != field})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ({"qk_rope_head_dim": -8}, "qk_rope_head_dim is -8"),
        ({"num_attention_heads": 10**9}, "num_attention_heads is 1000000000"),
        ({"n_shared_experts": -1}, "n_shared_experts is -1"),
        ({"moe_layer_freq": 0}, "moe_layer_freq is 0"),
        ({"n_routed_experts": 1}, "num_experts_per_tok is 2; it must be an integer from 1 to 1"),
    ],
)
def test_a_size_that_is_none_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(**changes)
