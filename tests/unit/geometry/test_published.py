"""From a published configuration to what every layer keeps, held against transformers and against published figures."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.config import geometry_from_config
from kvist.geometry.layers import AttentionLayer, ModelLayers, storing
from kvist.geometry.published import FAMILIES, WRAPPINGS, model_layers, model_layers_from_gguf
from tiny_families import VARIANTS, as_file, counted_parameters, model_on_meta, own_fields, tiny_config
from tiny_models import tiny_configs

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
}
LLAMA_8B = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
LLAMA_70B = LLAMA | {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
LLAMA_405B = LLAMA | {
    "hidden_size": 16_384,
    "intermediate_size": 53_248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 129_280,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 163_840,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 201_088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "num_experts_per_tok": 4,
    "max_position_embeddings": 131_072,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
}
GPT_OSS_20B = GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32}
GPT_OSS_120B = GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128}
GEMMA_3_4B: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_are_those_of_the_model_that_transformers_builds(variant: str) -> None:
    config = tiny_config(variant)
    expected = counted_parameters(model_on_meta(config))
    assert model_layers(as_file(config)).parameters.total == expected
    assert model_layers(own_fields(variant)).parameters.total == expected


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_file_says_the_same_with_all_fields_and_with_those_its_author_wrote(variant: str) -> None:
    whole, own = model_layers(as_file(tiny_config(variant))), model_layers(own_fields(variant))
    assert whole.layers == own.layers
    assert len(own.layers) == 6
    assert (whole.head_dim, whole.query_heads, whole.intermediate_size) == (
        own.head_dim,
        own.query_heads,
        own.intermediate_size,
    )


def test_every_family_has_a_tiny_variant() -> None:
    covered = {model_type for model_type, _ in VARIANTS.values()} | {"kimi_k2"}  # transformers calls that deepseek_v3
    assert covered == set(FAMILIES)


@pytest.mark.parametrize("name", tiny_configs())
def test_the_engine_and_the_planner_read_one_geometry(name: str) -> None:
    file = as_file(tiny_configs()[name])
    engine, planned = geometry_from_config(file), model_layers(file)
    own = {layer: group for group in engine.groups for layer in group.layers}
    assert planned.layers == tuple(
        AttentionLayer(
            kv_heads=own[layer].kv_heads,
            head_dim_k=own[layer].head_dim_k,
            head_dim_v=own[layer].head_dim_v,
            window=own[layer].window,
        )
        for layer in range(engine.layers)
    )
    assert planned.dtype == engine.dtype
    assert (planned.hidden_size, planned.query_heads, planned.vocab_size) == (
        engine.hidden_size,
        engine.query_heads,
        engine.vocab_size,
    )
    # Stretched positions bound what the engine takes, as a rotated key depends on the sequence's length beyond.
    bound = 80 if name == "phi3-longrope" else planned.positions_max
    assert engine.positions_max == bound


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (LLAMA_405B, 405_853_388_800),
        (GPT_OSS_20B, 20_914_757_184),
        (GPT_OSS_120B, 116_829_156_672),
    ],
)
def test_parameters_are_those_that_the_published_files_hold(config: dict[str, Any], total: int) -> None:
    assert model_layers(config).parameters.total == total


@pytest.mark.parametrize(
    ("config", "total_billions", "active_billions"),
    [
        (DEEPSEEK_V3, (670.5, 671.5), (36.5, 37.5)),
        (GPT_OSS_20B, (20.905, 20.915), (3.605, 3.615)),
        (GPT_OSS_120B, (116.825, 116.835), (5.125, 5.135)),
    ],
)
def test_published_figures_hold_within_their_rounding(
    config: dict[str, Any], total_billions: tuple[float, float], active_billions: tuple[float, float]
) -> None:
    parameters = model_layers(config).parameters
    assert total_billions[0] <= parameters.total / 1e9 <= total_billions[1]
    assert active_billions[0] <= parameters.active / 1e9 <= active_billions[1]


@pytest.mark.parametrize(("config", "gibibytes"), [(GPT_OSS_20B, 12.8), (GPT_OSS_120B, 60.8)])
def test_quantised_weights_take_what_the_published_checkpoints_do(config: dict[str, Any], gibibytes: float) -> None:
    model = model_layers(config)
    assert model.dtype == "bfloat16"  # the file does not say it
    assert model.weight_bits is not None
    outside = model.parameters.total - model.parameters.embedding
    assert (outside * model.weight_bits / 8 + model.parameters.embedding * 2) / 2**30 == pytest.approx(
        gibibytes, abs=0.15
    )


def test_scales_and_what_is_left_alone_count_among_the_bits() -> None:
    bits = model_layers(DEEPSEEK_V3).weight_bits
    assert bits is not None
    assert bits == 8.0 + 32 / 128**2
    assert model_layers(LLAMA_8B).weight_bits is None


def test_a_quantisation_is_not_read_where_the_weights_bytes_are_known() -> None:
    unknown = LLAMA_8B | {"quantization_config": {"quant_method": "of tomorrow"}}
    assert model_layers(unknown, weights_known=True) == model_layers(LLAMA_8B)
    with pytest.raises(ModelError, match="'of tomorrow' is not known; known are fp8"):
        model_layers(unknown)


def test_a_language_model_inside_another_is_read_with_what_published_files_leave_out() -> None:
    model = model_layers(GEMMA_3_4B)
    windows = [layer.window for layer in model.layers if isinstance(layer, AttentionLayer)]
    assert (windows.count(None), windows.count(1024), len(storing(model.layers))) == (5, 29, 34)
    assert model.layers[0] == AttentionLayer(kv_heads=4, head_dim_k=256, head_dim_v=256, window=1024)
    assert (model.positions_max, model.vocab_size, model.query_heads) == (131_072, 262_208, 8)
    assert (model.model_type, model.dtype) == ("gemma3_text", "bfloat16")
    assert model.parameters.embedding == 262_208 * 2560  # tied, which it does not say either


@pytest.mark.parametrize("outer", [True, False])
def test_the_outer_configuration_says_whether_embeddings_are_tied(outer: bool) -> None:
    nested = {"model_type": "mistral3", "tie_word_embeddings": outer}
    text = LLAMA_8B | {"model_type": "mistral", "tie_word_embeddings": not outer}
    embedding = model_layers(nested | {"text_config": text}).parameters.embedding
    assert embedding == 128_256 * 4096 * (1 if outer else 2)


def test_a_looked_up_embedding_is_not_active_and_a_tied_one_is() -> None:
    apart, tied = model_layers(LLAMA_8B).parameters, model_layers(LLAMA_8B | {"tie_word_embeddings": True}).parameters
    assert apart.total - apart.active == 128_256 * 4096
    assert tied.total == tied.active == apart.active


def gguf(**changes: Any) -> ModelLayers:
    metadata = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a"] * 300} | {
        "llama.block_count": 4,
        "llama.context_length": 512,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
    }
    names = ["output.weight", "rope_freqs.weight"]
    return model_layers_from_gguf(metadata | changes, tensor_names=names)


def test_a_gguf_is_read_though_tensors_scale_its_positions() -> None:
    model = gguf()
    assert model.layers == (AttentionLayer(kv_heads=2, head_dim_k=16, head_dim_v=16),) * 4
    as_config = model_layers(
        LLAMA
        | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
        | {"vocab_size": 300, "num_key_value_heads": 2}
    )
    assert model.parameters == as_config.parameters
    assert model.weight_bits is None


@pytest.mark.parametrize("value", [None, [], "config", 3, [("model_type", "llama")]])
def test_a_file_that_holds_no_fields_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"holds .*; it must hold a mapping"):
        model_layers(value)


@pytest.mark.parametrize("model_type", ["gpt2", "", "x" * 10_000, "falcon_h1", "deepseek_v32"])
def test_an_unknown_family_is_refused_with_all_that_are_known(model_type: str) -> None:
    with pytest.raises(ModelError, match="is not known to the planner; known are") as error:
        model_layers(LLAMA_8B | {"model_type": model_type})
    assert all(known in str(error.value) for known in (*FAMILIES, *WRAPPINGS))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({}, "lacks model_type"),
        ({"model_type": 3}, "model_type is 3; it must be a string"),
        ({"model_type": "gemma3"}, "lacks text_config, which gemma3 needs"),
        ({"model_type": "gemma3", "text_config": 4}, "text_config is 4; it must be a mapping"),
        ({"model_type": "gemma3", "text_config": {}}, "lacks text_config.num_hidden_layers, text_config.hidden_size"),
        ({"model_type": "gemma3", "text_config": {"model_type": "siglip"}}, "text_config.model_type 'siglip' is not"),
        (LLAMA_8B | {"num_attention_heads": 0}, "num_attention_heads is 0; it must be an integer from 1"),
        (LLAMA_8B | {"hidden_size": -4096}, "hidden_size is -4096; it must be an integer from 1"),
        (LLAMA_8B | {"intermediate_size": None}, "intermediate_size is null; it must be an integer from 1"),
        (LLAMA_8B | {"num_key_value_heads": 7}, "num_attention_heads 32 is not a multiple of num_key_value_heads 7"),
        (LLAMA_8B | {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; it must be true or false"),
        (LLAMA_8B | {"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        (LLAMA_8B | {"quantization_config": 4}, "quantization_config is 4; it must be a mapping"),
        (LLAMA_8B | {"dtype": "int4"}, "dtype is 'int4'"),
    ],
)
def test_bad_input_is_one_error_that_names_the_field(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        model_layers(config)


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings"])
@pytest.mark.parametrize("variant", ["llama", "mixtral", "deepseek_v3", "jamba", "lfm2", "gemma3n_text"])
def test_a_missing_field_is_named(variant: str, field: str) -> None:
    config = {key: value for key, value in own_fields(variant).items() if key != field}
    with pytest.raises(ModelError, match=f"^config.json: lacks {field}, which {variant} needs"):
        model_layers(config)
