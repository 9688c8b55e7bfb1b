"""Families with experts: how wide a token's way is, what it leaves idle, and how far its layers see."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.families.mixtures import Experts, mixture
from kvist.geometry.layers import AttentionLayer
from kvist.geometry.published import model_layers
from tiny_families import own_fields


def test_a_mixture_leaves_idle_what_a_token_does_not_choose() -> None:
    part = mixture(10, 4, Experts(count=6, chosen=2), shared=3)
    assert part.weights.experts == 6 * 3 * 10 * 4
    assert part.weights.idle == 4 * 3 * 10 * 4
    assert part.weights.total == 6 * 120 + 60 + 3 * 10 * 3
    assert part.width == 2 * 4 + 3


@pytest.mark.parametrize(
    ("variant", "widest"),
    [
        ("mixtral", 160),
        ("qwen2_moe", 68),
        ("qwen2_moe, in part", 80),
        ("qwen3_moe", 40),
        ("gpt_oss", 160),
        ("llama4_text", 160),
        ("llama4_text, told", 16_384),
    ],
)
def test_the_widest_part_is_what_one_token_passes(variant: str, widest: int) -> None:
    assert model_layers(own_fields(variant)).intermediate_size == widest


def chunks(**changes: Any) -> tuple[int | None, ...]:
    layers = model_layers(dict(own_fields("llama4_text")) | changes).layers
    assert all(isinstance(layer, AttentionLayer) and layer.window is None for layer in layers)
    return tuple(layer.chunk for layer in layers if isinstance(layer, AttentionLayer))


def test_llama_four_reads_its_own_piece_where_keys_are_rotated() -> None:
    assert chunks() == (128, 128, 128, None, 128, 128)
    assert chunks(no_rope_layers=[]) == chunks(no_rope_layers=None) == chunks()
    assert chunks(no_rope_layers=[1, 0] * 3) == (128, None) * 3
    assert chunks(layer_types=["full_attention"] * 5 + ["chunked_attention"]) == (None,) * 5 + (128,)
    assert chunks(attention_chunk_size=None) == chunks(attention_chunk_size=512) == (None,) * 6


def windows(variant: str, **changes: Any) -> tuple[int | None, ...]:
    layers = model_layers(dict(own_fields(variant)) | changes).layers
    return tuple(layer.window for layer in layers if isinstance(layer, AttentionLayer))


def test_mixtures_slide_as_their_families_do() -> None:
    assert windows("gpt_oss") == (128, None) * 3
    assert windows("gpt_oss", sliding_window=64, layer_types=["full_attention"] * 5 + ["sliding_attention"]) == (
        *(None,) * 5,
        64,
    )
    assert windows("mixtral", sliding_window=64) == (64,) * 6
    assert windows("qwen3_moe", sliding_window=64) == (None,) * 6
    assert windows("qwen3_moe", sliding_window=64, use_sliding_window=True) == (64,) * 6
    assert windows("qwen2_moe", sliding_window=64, use_sliding_window=True, max_window_layers=3) == (
        *(64, None, 64),
        *(None,) * 3,
    )


@pytest.mark.parametrize(
    ("variant", "changes", "complaint"),
    [
        ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok is 7; it must be an integer from 1 to 6"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts is 0"),
        ("gpt_oss", {"num_local_experts": 2**40}, "num_local_experts is 1099511627776"),
        ("qwen2_moe", {"mlp_only_layers": [1, "2"]}, "mlp_only_layers is a list of 2; it must be a list of layers"),
        ("qwen2_moe", {"mlp_only_layers": 3}, "mlp_only_layers is 3; it must be a list"),
        ("qwen2_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("qwen2_moe", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size is null"),
        ("llama4_text", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step is 0"),
        ("llama4_text", {"moe_layers": [True]}, "moe_layers is a list of 1"),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers is a list of 2"),
        ("llama4_text", {"layer_types": ["sliding_attention"] * 6}, "layer_types is a list of 6"),
        (
            "llama4_text",
            {"layer_types": ["chunked_attention"] * 6, "attention_chunk_size": None},
            "attention_chunk_size is null; it must be an integer, as layer_types asks",
        ),
    ],
)
def test_what_makes_no_mixture_is_refused(variant: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        model_layers(dict(own_fields(variant)) | changes)


@pytest.mark.parametrize("field", ["num_experts_per_tok", "num_experts", "moe_intermediate_size"])
def test_a_missing_number_of_experts_is_named(field: str) -> None:
    with pytest.raises(ModelError, match=f"lacks {field}, which qwen3_moe needs"):
        model_layers({key: value for key, value in own_fields("qwen3_moe").items() if key != field})
