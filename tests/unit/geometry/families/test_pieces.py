"""Families whose layers are of several kinds."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.layers import AttentionLayer, PlainLayer, RecurrentLayer, StateTensor
from kvist.geometry.published import model_layers
from tiny_families import own_fields

MAMBA = RecurrentLayer(
    tensors=(StateTensor(name="conv", shape=(40 + 2 * 2 * 6, 3)), StateTensor(name="ssm", shape=(4, 10, 6)))
)
FULL = AttentionLayer(kv_heads=2, head_dim_k=16, head_dim_v=16)


def nemotron(pattern: object, **changes: Any) -> Any:
    fields = {key: value for key, value in own_fields("nemotron_h").items() if key != "layers_block_type"}
    return model_layers(fields | {"hybrid_override_pattern": pattern} | changes)


def test_a_pattern_and_a_list_of_names_say_the_same() -> None:
    told = model_layers(own_fields("nemotron_h"))
    assert told.layers == (MAMBA, PlainLayer(), MAMBA, FULL, PlainLayer(), PlainLayer())
    assert nemotron("M-M*E-") == told


def test_only_fields_of_kinds_that_are_there_are_needed() -> None:
    needless = ("n_routed_experts", "moe_intermediate_size", "mamba_num_heads", "intermediate_size")
    fields = {key: value for key, value in own_fields("nemotron_h").items() if key not in needless}
    fields |= {"layers_block_type": ["attention"] * 6}
    assert model_layers(fields).layers == (FULL,) * 6


def test_a_head_has_had_two_names_and_has_a_default() -> None:
    fields = {key: value for key, value in own_fields("nemotron_h").items() if key != "head_dim"}
    assert model_layers(fields).head_dim == 128
    assert model_layers(fields | {"attention_head_dim": 20}).head_dim == 20
    with pytest.raises(ModelError, match="attention_head_dim is 0"):
        model_layers(fields | {"attention_head_dim": 0})


@pytest.mark.parametrize(
    ("pattern", "changes", "complaint"),
    [
        ("", {}, "hybrid_override_pattern is ''; it must be 1 to 4096 layers, each one of M, "),
        ("M-X*E-", {}, "hybrid_override_pattern is 'M-X"),
        ("M" * 10_000, {}, "hybrid_override_pattern is 'MMM"),
        (4, {}, "hybrid_override_pattern is 4; it must be a string"),
        ("M*", {}, "num_hidden_layers is 6; it must be 2, as hybrid_override_pattern tells of so many layers"),
        ("M-M*E-", {"n_groups": 9}, "n_groups is 9; it must be an integer from 1 to 4"),
        ("M-M*E-", {"moe_latent_size": -1}, "moe_latent_size is -1"),
    ],
)
def test_a_pattern_that_is_none_is_refused(pattern: object, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        nemotron(pattern, **changes)


def lfm2(variant: str = "lfm2", **changes: Any) -> Any:
    return model_layers(dict(own_fields(variant)) | changes)


def test_short_convolutions_stand_where_there_is_no_attention() -> None:
    conv = RecurrentLayer(tensors=(StateTensor(name="conv", shape=(48, 2)),))
    full = AttentionLayer(kv_heads=2, head_dim_k=12, head_dim_v=12)
    assert lfm2().layers == (conv, full, conv, conv, full, conv)
    assert lfm2("lfm2_moe").layers == (conv, conv, full) * 2
    assert lfm2(layer_types=["conv"] * 5 + ["full_attention"]).layers == (conv,) * 5 + (full,)
    assert lfm2(full_attn_idxs=None).layers == (full,) * 6


def test_its_older_words_go_before_the_common_ones() -> None:
    assert lfm2(block_ff_dim=96, block_auto_adjust_ff_dim=False).intermediate_size == 96
    apart = lfm2(tie_embedding=False, tie_word_embeddings=True).parameters.embedding
    assert apart == 2 * lfm2().parameters.embedding


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"full_attn_idxs": ["1"]}, "full_attn_idxs is a list of 1; it must be a list of layers"),
        ({"layer_types": ["conv", "mamba"] * 3}, "layer_types is a list of 6"),
        ({"conv_L_cache": 1}, "conv_L_cache is 1"),
        ({"block_multiple_of": 0}, "block_multiple_of is 0"),
        ({"block_ffn_dim_multiplier": float("nan")}, "block_ffn_dim_multiplier is nan"),
        ({"tie_embedding": 1}, "tie_embedding is 1; it must be true or false"),
    ],
)
def test_what_makes_no_convolution_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        lfm2(**changes)
