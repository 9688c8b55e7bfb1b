"""From GGUF metadata to what planning reads."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.layers import AttentionLayer, LatentLayer, ModelLayers
from kvist.geometry.published import model_layers, model_layers_from_gguf
from tiny_families import own_fields

SIZES = {
    "block_count": 6,
    "context_length": 512,
    "embedding_length": 48,
    "feed_forward_length": 80,
    "vocab_size": 300,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
MOE = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 20}
HEAD = {"attention.key_length": 16, "attention.value_length": 16}
LATENT = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 24,
    "attention.q_lora_rank": 20,
    "attention.key_length": 32,
    "attention.value_length": 24,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 2,
    "expert_shared_count": 2,
}


def read(architecture: str, *names: str, **own: Any) -> ModelLayers:
    sizes = {f"{architecture}.{key}": value for key, value in (SIZES | own).items()}
    return model_layers_from_gguf({"general.architecture": architecture} | sizes, tensor_names=names)


CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("llama", {}, ("output.weight",)),
    "qwen2": ("qwen2", {}, ("output.weight", "blk.0.attn_q.bias")),
    "gemma": ("gemma", HEAD, ()),
    "gemma2": ("gemma2", HEAD | {"attention.sliding_window": 64}, ()),
    "gemma3_text": ("gemma3", HEAD | {"attention.sliding_window": 64}, ()),
    "phi3": ("phi3", {"rope.scaling.original_context_length": 64}, ("output.weight", "rope_factors_long.weight")),
    "mixtral": ("llama", {"expert_count": 6, "expert_used_count": 2}, ("output.weight",)),
    "qwen2_moe": (
        "qwen2moe",
        MOE | {"expert_shared_feed_forward_length": 28},
        ("output.weight", "blk.0.attn_q.bias"),
    ),
    "qwen3_moe": ("qwen3moe", MOE | HEAD, ("output.weight",)),
    "gpt_oss": (
        "gpt-oss",
        MOE | HEAD | {"attention.sliding_window": 128, "expert_feed_forward_length": 80},
        ("output.weight", "blk.0.attn_q.bias"),
    ),
}


@pytest.mark.parametrize("variant", CASES)
def test_a_gguf_says_what_the_models_own_configuration_says(variant: str) -> None:
    architecture, own, names = CASES[variant]
    found, expected = read(architecture, *names, **own), model_layers(own_fields(variant))
    assert found.layers == expected.layers
    assert found.parameters == expected.parameters
    assert (found.positions_max, found.intermediate_size) == (expected.positions_max, expected.intermediate_size)


@pytest.mark.parametrize(
    "heads",
    [
        LATENT,  # as they are compressed, and apart as they are before
        {key: value for key, value in LATENT.items() if not key.endswith("_mla")}
        | {"attention.head_count_kv": 4, "attention.key_length": 24, "attention.value_length": 12},
    ],
)
def test_latent_heads_are_read_as_both_generations_of_files_tell_them(heads: dict[str, Any]) -> None:
    model = read("deepseek2", "output.weight", **(MOE | heads))
    assert model.layers == (LatentLayer(latent=24, rope=8),) * 6
    assert model.parameters == model_layers(own_fields("deepseek_v3")).parameters


def test_queries_without_a_rank_are_not_compressed() -> None:
    heads = {key: value for key, value in LATENT.items() if key != "attention.q_lora_rank"}
    found = read("deepseek2", "output.weight", **(MOE | heads))
    assert found.parameters == model_layers(own_fields("deepseek_v2")).parameters


def test_tensors_tell_what_the_metadata_leaves_out() -> None:
    tied, apart = read("llama").parameters, read("llama", "output.weight").parameters
    assert 2 * tied.embedding == apart.embedding
    biased = read("llama", "blk.0.attn_q.bias").parameters
    assert biased.total > tied.total


def test_a_vocabulary_may_be_told_by_its_tokens_alone() -> None:
    sizes = {f"llama.{key}": value for key, value in SIZES.items() if key != "vocab_size"}
    metadata = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"] * 77} | sizes
    model = model_layers_from_gguf(metadata, tensor_names=[])
    assert model.vocab_size == 77
    assert model.layers[0] == AttentionLayer(kv_heads=2, head_dim_k=12, head_dim_v=12)


@pytest.mark.parametrize(
    ("architecture", "own", "complaint"),
    [
        ("gpt2", {}, "general.architecture 'gpt2' is not supported; supported are llama, .*deepseek2"),
        ("llama", {"feed_forward_length": 0}, "llama.feed_forward_length is 0; it must be an integer from 1"),
        ("qwen3moe", MOE, "lacks qwen3moe.attention.key_length, which qwen3moe needs"),
        ("qwen3moe", HEAD | {"expert_count": 6}, "lacks qwen3moe.expert_used_count, which qwen3_moe needs"),
        ("gpt-oss", HEAD | MOE, "lacks gpt-oss.attention.sliding_window"),
        ("deepseek2", MOE | LATENT | {"attention.key_length_mla": 8}, "key_length_mla is 8; it must be more than"),
        ("deepseek2", MOE | {"rope.dimension_count": 8}, "lacks deepseek2.attention.kv_lora_rank"),
    ],
)
def test_what_is_missing_or_wrong_is_named_as_the_file_does(
    architecture: str, own: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(architecture, **own)
