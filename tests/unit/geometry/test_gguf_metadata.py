"""From GGUF metadata to a model's geometry.

The two whole examples are the metadata of real files, tokens cut short, beside the config.json that transformers
writes of the same files.
"""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.config import geometry_from_config
from kvist.geometry.gguf_metadata import geometry_from_gguf
from kvist.geometry.groups import ModelGeometry

SMOLLM2 = {
    "GGUF.version": 3,
    "general.architecture": "llama",
    "general.name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.freq_base": 100000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "general.file_type": 3,
    "llama.vocab_size": 49152,
    "llama.rope.dimension_count": 64,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>"],
}
SMOLLM2_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "head_dim": 64,
    "hidden_size": 576,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "vocab_size": 49152,
}

GEMMA3 = {
    "general.architecture": "gemma3",
    "general.name": "Gemma 3 270m",
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 640,
    "gemma3.block_count": 18,
    "gemma3.feed_forward_length": 2048,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.value_length": 256,
    "gemma3.rope.freq_base": 1000000.0,
    "gemma3.attention.sliding_window": 512,
    "gemma3.attention.head_count_kv": 1,
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>"],
    "general.file_type": 15,
}
GEMMA3_CONFIG = {
    "_sliding_window_pattern": 6,
    "architectures": ["Gemma3ForCausalLM"],
    "dtype": "bfloat16",
    "head_dim": 256,
    "hidden_size": 640,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_parameters": {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "use_bidirectional_attention": False,
    "vocab_size": 3,
}


def small(architecture: str, **suffixes: Any) -> dict[str, Any]:
    """Metadata of a small model; a double underscore stands for a dot."""
    sizes = {"block_count": 4, "embedding_length": 64, "context_length": 512, "vocab_size": 300}
    heads = {"attention__head_count": 4, "attention__head_count_kv": 2, "rope__freq_base": 10_000.0}
    values = sizes | heads | suffixes
    return {"general.architecture": architecture} | {
        f"{architecture}.{suffix.replace('__', '.')}": value for suffix, value in values.items()
    }


def read(metadata: dict[str, Any], *tensor_names: str) -> ModelGeometry:
    return geometry_from_gguf(metadata, tensor_names=tensor_names)


@pytest.mark.parametrize(("metadata", "config"), [(SMOLLM2, SMOLLM2_CONFIG), (GEMMA3, GEMMA3_CONFIG)])
def test_a_model_has_one_geometry_whichever_way_it_comes(metadata: dict, config: dict) -> None:
    assert read(metadata) == geometry_from_config(config)


@pytest.mark.parametrize(
    ("metadata", "config"),
    [
        (
            small("qwen2"),
            {"model_type": "qwen2", "num_key_value_heads": 2},
        ),
        (
            small("qwen3", attention__key_length=32, attention__value_length=32),
            {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 32},
        ),
        (
            small("gemma2", attention__key_length=32, attention__sliding_window=24),
            {"model_type": "gemma2", "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 24},
        ),
        (
            small("phi3", rope__dimension_count=12, attention__sliding_window=24),
            {"model_type": "phi3", "num_key_value_heads": 2, "partial_rotary_factor": 0.75, "sliding_window": 24},
        ),
        (
            small("phi3", rope__dimension_count=16, attention__sliding_window=0),
            {"model_type": "phi3", "num_key_value_heads": 2},
        ),
        (
            small("smollm3", rope__freq_base=5e6),
            {"model_type": "smollm3", "num_key_value_heads": 2, "rope_theta": 5e6},
        ),
        (
            small("llama", rope__scaling__type="linear", rope__scaling__factor=4.0),
            {"model_type": "llama", "num_key_value_heads": 2, "rope_scaling": {"type": "linear", "factor": 4}},
        ),
        (
            small(
                "llama",
                rope__scaling__type="yarn",
                rope__scaling__factor=4.0,
                rope__scaling__original_context_length=128,
            ),
            {
                "model_type": "llama",
                "num_key_value_heads": 2,
                "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            },
        ),
        (
            small(
                "gemma3",
                attention__key_length=16,
                attention__sliding_window=24,
                rope__scaling__type="linear",
                rope__scaling__factor=8.0,
                rope__freq_base_swa=5_000.0,
                attention__sliding_window_pattern=2,
            ),
            {
                "model_type": "gemma3_text",
                "num_key_value_heads": 2,
                "head_dim": 16,
                "sliding_window": 24,
                "sliding_window_pattern": 2,
                "rope_theta": 10_000.0,
                "rope_local_base_freq": 5_000.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
    ],
    ids=lambda each: each.get("general.architecture", "") or each["model_type"],
)
def test_each_family_says_the_same_in_both_languages(metadata: dict, config: dict) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    said = sizes | {"max_position_embeddings": 512, "dtype": "bfloat16"} | config
    assert read(metadata) == geometry_from_config(said)


def test_any_rotated_count_survives_its_fraction() -> None:
    for rotated in range(1, 97):
        metadata = small("phi3", embedding_length=4 * 97, rope__dimension_count=rotated)
        assert dict(read(metadata).rope)["rotary_dims"] == str(rotated)


def test_numbers_may_be_given_for_each_layer_if_they_are_equal() -> None:
    assert read(small("llama", attention__head_count_kv=[2, 2, 2, 2])) == read(small("llama"))
    for wrong in ([2, 2, 2, 4], [2, 2, 2], []):
        with pytest.raises(ModelError, match=r"llama\.attention\.head_count_kv is a list"):
            read(small("llama", attention__head_count_kv=wrong))


def test_sliding_layers_may_be_listed() -> None:
    listed = small(
        "gemma3",
        attention__key_length=16,
        attention__sliding_window=24,
        attention__sliding_window_pattern=[True, False, False, True],
    )
    assert [(group.layers, group.window) for group in read(listed).groups] == [((1, 2), None), ((0, 3), 24)]


def test_what_a_file_leaves_unsaid_is_filled_in() -> None:
    metadata = small("llama")
    for key in ("llama.vocab_size", "llama.rope.freq_base", "llama.attention.head_count_kv"):
        del metadata[key]
    geometry = read(metadata | {"tokenizer.ggml.tokens": ["a"] * 77})
    assert (geometry.vocab_size, geometry.groups[0].kv_heads) == (77, 4)
    assert dict(geometry.rope)["rope_theta"] == "10000.0"


@pytest.mark.parametrize(("kind", "dtype"), [(0, "float32"), (1, "float16"), (15, "bfloat16"), ("x", "bfloat16")])
def test_a_quantised_file_is_kept_in_bfloat16(kind: object, dtype: str) -> None:
    assert read(small("llama") | {"general.file_type": kind}).dtype == dtype


def test_a_mistral_is_believed_by_its_name_as_transformers_does() -> None:
    assert read(small("llama") | {"general.name": "mistral"}).architecture == "MistralForCausalLM"
    assert read(small("llama") | {"general.name": "Mistral 7B"}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize("tensor", ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"])
def test_positions_scaled_by_a_tensor_are_refused(tensor: str) -> None:
    with pytest.raises(ModelError, match=tensor):
        read(SMOLLM2, "token_embd.weight", tensor)


@pytest.mark.parametrize(
    "key",
    ["block_count", "embedding_length", "context_length", "attention.head_count", "vocab_size"],
)
def test_a_missing_key_is_named(key: str) -> None:
    metadata = small("llama")
    del metadata[f"llama.{key}"]
    with pytest.raises(ModelError, match=f"^GGUF metadata: lacks llama.{key}, which LlamaForCausalLM needs"):
        read(metadata)


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, "lacks general.architecture"),
        ({"general.architecture": 4}, "general.architecture is 4"),
        (
            {"general.architecture": "mamba"},
            "general.architecture 'mamba' is not supported; supported are llama, qwen2",
        ),
        ([], "GGUF metadata: holds a list of 0"),
        (small("llama", block_count=0), "llama.block_count is 0"),
        (small("llama", attention__head_count=-1), "llama.attention.head_count is -1"),
        (small("llama", attention__head_count="4"), "llama.attention.head_count is '4'"),
        (
            small("llama", attention__head_count_kv=3),
            "head_count 4 is not a multiple of llama.attention.head_count_kv 3",
        ),
        (small("llama", vocab_size=0), "llama.vocab_size is 0"),
        (small("llama", rope__freq_base=float("nan")), "llama.rope.freq_base is nan"),
        (small("llama", expert_count=8), "llama.expert_count is 8"),
        (small("llama", attention__sliding_window=8), "llama.attention.sliding_window is 8"),
        (
            small("llama", attention__key_length=16, rope__dimension_count=32),
            "key_length 16, .*dimension_count 32 differ",
        ),
        (small("qwen2", attention__key_length=16, attention__value_length=8), "value_length 8 differ"),
        (small("qwen3"), "lacks qwen3.attention.key_length"),
        (small("gemma2", attention__key_length=16), "lacks gemma2.attention.sliding_window"),
        (
            small("gemma2", attention__key_length=16, attention__sliding_window=0),
            "gemma2.attention.sliding_window is 0",
        ),
        (small("llama", rope__scaling__type="longrope"), "llama.rope.scaling.type is 'longrope'"),
        (small("llama", rope__scaling__type="linear", rope__scaling__factor=-2.0), "rope.scaling.factor is -2.0"),
        (
            small("llama", rope__scaling__factor=2.0, rope__scaling__attn_factor=1.5),
            "llama.rope.scaling.attn_factor is 1.5, which cannot be honoured",
        ),
        (small("llama", rope__freq_base_swa=1e4), "llama.rope.freq_base_swa is 10000.0"),
        (small("phi3"), "phi3.rope.dimension_count is null"),
        (
            small("phi3", rope__dimension_count=17),
            "phi3.rope.dimension_count is 17; it must be an integer from 1 to 16",
        ),
        (small("phi3", rope__dimension_count=16, embedding_length=10**5000), "phi3.embedding_length is an integer of"),
        (
            small("phi3", rope__dimension_count=16, rope__scaling__original_context_length=64),
            "phi3.rope.scaling.original_context_length is 64",
        ),
    ],
)
def test_a_key_that_means_nothing_is_refused_by_its_name(metadata: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(metadata)


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.sliding_window"])
def test_gemma_three_tells_what_runtimes_would_guess_differently(key: str) -> None:
    with pytest.raises(ModelError, match=f"lacks gemma3.{key}, which gemma3 needs"):
        read({name: value for name, value in GEMMA3.items() if name != f"gemma3.{key}"})
