"""From a parsed config.json to a model's geometry."""

import math
from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import KvGroup, ModelGeometry

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}

SMOLLM2 = {
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


def llama(**fields: Any) -> dict[str, Any]:
    return {"model_type": "llama"} | SIZES | fields


def read(model_type: str, **fields: Any) -> ModelGeometry:
    return geometry_from_config(SIZES | {"model_type": model_type} | fields)


def test_a_real_model_is_read_whole() -> None:
    assert geometry_from_config(SMOLLM2) == ModelGeometry(
        architecture="LlamaForCausalLM",
        layers=30,
        query_heads=9,
        hidden_size=576,
        vocab_size=49152,
        positions_max=8192,
        groups=(KvGroup(layers=tuple(range(30)), kv_heads=3, head_dim_k=64, head_dim_v=64),),
        rope=(("rope_theta", "100000.0"), ("rope_type", "default"), ("rotary_dims", "64")),
        dtype="bfloat16",
    )


def test_layers_are_grouped_by_window_full_attention_first() -> None:
    groups = read("gemma3_text", num_hidden_layers=7, sliding_window=128).groups
    assert [(group.layers, group.window) for group in groups] == [((5,), None), ((0, 1, 2, 3, 4, 6), 128)]
    groups = read("mistral", num_key_value_heads=2, sliding_window=128).groups
    assert [(group.layers, group.window) for group in groups] == [((0, 1, 2, 3), 128)]


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert read("mistral", num_key_value_heads=2, sliding_window=512).groups[0].window is None
    assert read("mistral", num_key_value_heads=2, sliding_window=511).groups[0].window == 511


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, (4, 16)),
        ("llama", {"num_key_value_heads": None, "head_dim": None}, (4, 16)),
        ("llama", {"num_key_value_heads": 2, "head_dim": 80}, (2, 80)),
        ("mistral", {"num_attention_heads": 16}, (8, 4)),
        ("mistral", {"num_key_value_heads": 1, "num_attention_heads": 3, "head_dim": 10}, (1, 10)),
        ("qwen2", {"num_attention_heads": 32}, (32, 2)),
        ("qwen3", {"num_key_value_heads": None}, (4, 128)),
        ("gemma2", {}, (4, 256)),
        ("gemma3_text", {"num_key_value_heads": 1}, (1, 256)),
        ("phi3", {}, (4, 16)),
        ("smollm3", {"num_key_value_heads": 1}, (1, 16)),
    ],
)
def test_heads_left_unsaid_are_those_of_the_family(model_type: str, fields: dict, expected: tuple[int, int]) -> None:
    group = read(model_type, **fields).groups[0]
    assert (group.kv_heads, group.head_dim_k) == (group.kv_heads, group.head_dim_v) == expected


@pytest.mark.parametrize("field", [*SIZES, "model_type"])
def test_a_missing_field_is_one_error_that_names_it(field: str) -> None:
    config = llama()
    del config[field]
    with pytest.raises(ModelError, match=f"^config.json: lacks {field}, which"):
        geometry_from_config(config)


def test_several_missing_fields_are_one_error() -> None:
    with pytest.raises(ModelError, match="lacks hidden_size, vocab_size, which LlamaForCausalLM needs"):
        geometry_from_config({key: value for key, value in llama().items() if key not in ("hidden_size", "vocab_size")})


@pytest.mark.parametrize("field", [*SIZES, "num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [0, -4, 2**40, "4", 4.0, math.nan, math.inf, True, [4], {}])
def test_a_size_that_is_none_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"^config.json: {field} is .*; it must be an integer from 1"):
        geometry_from_config(llama(**{field: value}))


@pytest.mark.parametrize("value", [None, [], "config", 3, [("model_type", "llama")]])
def test_a_file_that_holds_no_fields_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"holds .*; it must hold a mapping"):
        geometry_from_config(value)


@pytest.mark.parametrize(
    ("model_type", "fields", "complaint"),
    [
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ("llama", {"num_key_value_heads": 8}, "num_attention_heads 4 is not a multiple of num_key_value_heads 8"),
        ("mistral", {}, "num_attention_heads 4 is not a multiple of num_key_value_heads 8"),
        ("llama", {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ("llama", {"hidden_size": 66, "head_dim": 16}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ("gemma2", {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ("phi3", {"hidden_size": 66}, "hidden_size 66 is not a multiple of num_attention_heads 4"),
        ("qwen2", {"head_dim": None, "num_key_value_heads": 2}, "head_dim is null"),
        ("gemma2", {"num_key_value_heads": None}, "num_key_value_heads is null"),
        ("mistral", {"num_key_value_heads": None}, "num_key_value_heads is null"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("gemma3_text", {"use_bidirectional_attention": "yes"}, "use_bidirectional_attention is 'yes'"),
        ("gemma2", {"attn_logit_softcapping": math.nan}, "attn_logit_softcapping is nan"),
        ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping is 0"),
        ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ("llama", {"per_layer_config": {"0": {"num_key_value_heads": 1}}}, "per_layer_config is a dict of 1"),
        ("llama", {"dtype": "int8"}, "dtype is 'int8'; it must be one of bfloat16, float16, float32"),
        ("llama", {"torch_dtype": 16}, "torch_dtype is 16"),
        ("llama", {"num_hidden_layers": 100_000}, "num_hidden_layers is 100000"),
    ],
)
def test_what_does_not_fit_together_is_refused(model_type: str, fields: dict, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(model_type, **fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "float32"),
        ({"dtype": None, "torch_dtype": None}, "float32"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
    ],
)
def test_the_dtype_has_two_names_and_a_default(fields: dict, expected: str) -> None:
    assert geometry_from_config(llama(**fields)).dtype == expected


def test_fields_that_nothing_reads_change_nothing() -> None:
    assert geometry_from_config(llama(quantization_config={"x": 1}, eos_token_id=[1, 2])) == geometry_from_config(
        llama()
    )
