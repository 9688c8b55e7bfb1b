"""Families some of whose layers keep a state, whose shapes are held against what transformers' models convolve."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.layers import AttentionLayer, RecurrentLayer, StateTensor
from kvist.geometry.published import model_layers
from tiny_families import model_on_meta, own_fields, tiny_config

FULL = AttentionLayer(kv_heads=2, head_dim_k=16, head_dim_v=16)
NET = RecurrentLayer(
    tensors=(
        StateTensor(name="conv", shape=(2 * 2 * 8 + 4 * 12, 2)),
        StateTensor(name="ssm", shape=(4, 12, 8)),
    )
)


def read(variant: str, **changes: Any) -> Any:
    return model_layers(dict(own_fields(variant)) | changes)


@pytest.mark.parametrize("variant", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_delta_nets_stand_between_each_fourth_layer_of_attention(variant: str) -> None:
    assert read(variant).layers == (NET, NET, NET, FULL, NET, NET)
    assert read(variant, full_attention_interval=2).layers == (NET, FULL) * 3
    assert read(variant, layer_types=["full_attention"] * 5 + ["linear_attention"]).layers == (FULL,) * 5 + (NET,)


def test_jamba_attends_where_its_period_says() -> None:
    layers = read("jamba").layers
    assert [isinstance(layer, AttentionLayer) for layer in layers] == [False, True, False] * 2
    assert layers[0] == RecurrentLayer(
        tensors=(StateTensor(name="conv", shape=(96, 3)), StateTensor(name="ssm", shape=(96, 16)))
    )


def test_bamba_attends_where_it_lists() -> None:
    layers = read("bamba").layers
    assert [isinstance(layer, AttentionLayer) for layer in layers] == [False, True, False, False, True, False]
    assert layers[0] == RecurrentLayer(
        tensors=(StateTensor(name="conv", shape=(96 + 2 * 2 * 10, 3)), StateTensor(name="ssm", shape=(8, 12, 10)))
    )


@pytest.mark.parametrize("variant", ["qwen3_next", "qwen3_5_text", "jamba", "bamba", "nemotron_h", "lfm2"])
def test_states_of_convolutions_are_as_wide_as_the_convolutions_of_the_built_model(variant: str) -> None:
    built = [
        (module.in_channels, module.kernel_size[0] - 1)
        for module in model_on_meta(tiny_config(variant)).modules()
        if type(module).__name__ == "Conv1d"
    ]
    recurrent = [layer for layer in read(variant).layers if isinstance(layer, RecurrentLayer)]
    assert [layer.tensors[0].shape for layer in recurrent] == built != []


def test_qwens_published_27b_keeps_what_its_readers_reckon() -> None:
    config = {
        "model_type": "qwen3_5_text",
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
    }
    layers = model_layers(config).layers
    attends = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    assert sum(layer.kv_heads * (layer.head_dim_k + layer.head_dim_v) for layer in attends) == 32 * 2**10  # fp8: bytes
    recurs = next(layer for layer in layers if isinstance(layer, RecurrentLayer))
    conv, ssm = (tensor.shape for tensor in recurs.tensors)
    assert conv[0] * conv[1] * 2 + ssm[0] * ssm[1] * ssm[2] * 4 == 3_207_168  # bf16, and fp32


@pytest.mark.parametrize(
    ("variant", "changes", "complaint"),
    [
        ("qwen3_next", {"linear_num_key_heads": 0}, "linear_num_key_heads is 0"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1; it must be an integer from 2"),
        ("qwen3_next", {"full_attention_interval": 0}, "full_attention_interval is 0"),
        ("qwen3_5_text", {"layer_types": ["linear_attention"] * 5}, "layer_types is a list of 5"),
        ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset is 3; it must be an integer from 0 to 2"),
        ("jamba", {"expert_layer_period": 0}, "expert_layer_period is 0"),
        ("jamba", {"mamba_dt_rank": "much"}, "mamba_dt_rank is 'much'"),
        ("bamba", {"mamba_n_heads": 7}, "is 96, which is not a multiple of mamba_n_heads 7"),
        ("bamba", {"attn_layer_indices": "1"}, "attn_layer_indices is '1'; it must be a list"),
    ],
)
def test_what_makes_no_state_is_refused(variant: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(variant, **changes)


@pytest.mark.parametrize("field", ["linear_num_value_heads", "linear_key_head_dim"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=f"lacks {field}, which qwen3_5_text needs"):
        model_layers({key: value for key, value in own_fields("qwen3_5_text").items() if key != field})
