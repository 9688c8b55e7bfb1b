"""Geometry says what transformers does: the attention of real tiny models is watched and compared.

Every layer's keys, values and mask are caught on their way into the attention, so nothing here relies on what a
configuration class or a module calls things.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, PretrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import ModelGeometry
from tiny_models import LLAMA3, TINY_POSITIONS, TINY_VOCAB, YARN, tiny_configs, tiny_model

TOKENS = 48  # longer than each tiny window


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one layer's attention was given: keys and values [heads, tokens, head size], and who sees whom."""

    keys: torch.Tensor
    values: torch.Tensor
    visible: torch.Tensor


def watch(module, query, key, value, attention_mask, *, seen, **_):
    """Takes notes; what it gives back is no attention, but later layers' shapes and masks do not mind."""
    seen[module.layer_idx] = Seen(keys=key[0], values=value[0], visible=attention_mask[0, 0] == 0)
    return query.transpose(1, 2), None


AttentionInterface.register("watched", watch)
AttentionMaskInterface.register("watched", ALL_MASK_ATTENTION_FUNCTIONS["eager"])


def run(config: PretrainedConfig, tokens: int = TOKENS) -> list[Seen]:
    """What each layer of a fresh model sees of the same first tokens of one endless text."""
    model = tiny_model(config)
    model.set_attn_implementation("watched")
    text = torch.arange(tokens).mul(37).add(11).remainder(TINY_VOCAB)[None]
    seen: dict[int, Seen] = {}
    with torch.inference_mode():
        model(input_ids=text, use_cache=False, seen=seen)
    return [seen[layer] for layer in range(len(seen))]


def build(raw: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration that transformers makes of a file's content."""
    return AutoConfig.for_model(**json.loads(json.dumps(raw)))


def check_same(geometry: ModelGeometry, layers: list[Seen]) -> None:
    """Compares shapes and masks, layer by layer."""
    assert sorted(layer for group in geometry.groups for layer in group.layers) == list(range(len(layers)))
    position = torch.arange(len(layers[0].visible))
    behind = position[:, None] - position[None, :]
    for group in geometry.groups:
        window = len(position) if group.window is None else group.window
        for layer in group.layers:
            seen = layers[layer]
            assert (seen.keys.shape[0], seen.keys.shape[2]) == (group.kv_heads, group.head_dim_k)
            assert (seen.values.shape[0], seen.values.shape[2]) == (group.kv_heads, group.head_dim_v)
            assert torch.equal(seen.visible, (behind >= 0) & (behind < window))


def raw(model_type: str, **fields: Any) -> dict[str, Any]:
    """The content of a configuration file with as little in it as Kvist accepts."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": TINY_VOCAB}
    spare = {"max_position_embeddings": TINY_POSITIONS, "intermediate_size": 64, "pad_token_id": 0}
    return {"model_type": model_type} | sizes | spare | fields


LONG = {"short_factor": [1.0 + i / 9 for i in range(8)], "long_factor": [2.0 + i / 9 for i in range(8)]}

FILES = {
    "llama-bare": raw("llama"),
    "llama-nulls": raw("llama", head_dim=None, num_key_value_heads=None, rope_scaling=None),
    "llama-own-sliding-window": raw("llama", sliding_window=8),
    "llama-original-length-outside": raw("llama", rope_scaling=LLAMA3, original_max_position_embeddings=32),
    "llama-yarn-factor-null": raw("llama", rope_scaling=YARN | {"factor": None}),
    "llama-yarn-tuned": raw("llama", rope_scaling=YARN | {"beta_fast": 8.0, "truncate": False, "mscale": 0.7}),
    "llama-longrope": raw("llama", rope_scaling={"type": "longrope", **LONG, "factor": 4.0}),
    "mistral-bare": raw("mistral", num_attention_heads=8),
    "mistral-window-longer-than-positions": raw("mistral", num_key_value_heads=2, sliding_window=600),
    "mistral-window-one": raw("mistral", num_key_value_heads=2, sliding_window=1),
    "qwen2-bare": raw("qwen2", num_attention_heads=32),
    "qwen2-window-unused": raw("qwen2", num_key_value_heads=2, sliding_window=8, max_window_layers=1),
    "qwen2-window-past-the-end": raw(
        "qwen2", num_key_value_heads=2, use_sliding_window=True, sliding_window=8, max_window_layers=4
    ),
    "qwen2-own-head-size": raw("qwen2", num_key_value_heads=2, head_dim=32),
    "qwen3-bare": raw("qwen3", num_key_value_heads=None),
    "gemma2-bare": raw("gemma2"),
    "gemma3-bare": raw("gemma3_text", num_hidden_layers=7),
    "gemma3-first-releases": raw(
        "gemma3_text",
        head_dim=16,
        num_key_value_heads=1,
        sliding_window=16,
        sliding_window_pattern=2,
        rope_theta=70_000.0,
        rope_local_base_freq=900.0,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
    ),
    "gemma3-scaling-by-its-old-name": raw("gemma3_text", rope_scaling={"factor": 8.0, "type": "linear"}),
    "gemma3-all-sliding": raw("gemma3_text", sliding_window=16, layer_types=["sliding_attention"] * 4),
    "gemma3-sets": raw(
        "gemma3_text",
        sliding_window_pattern=2,
        rope_parameters={"full_attention": YARN | {"rope_theta": 5e5}, "sliding_attention": None},
    ),
    "phi3-bare": raw("phi3"),
    "phi3-su": raw(
        "phi3",
        original_max_position_embeddings=80,
        rope_scaling={"type": "su", **LONG, "original_max_position_embeddings": 99},
    ),
    "phi3-yarn": raw("phi3", original_max_position_embeddings=80, rope_scaling={"type": "yarn", **LONG}),
    "phi3-part-in-the-set": raw("phi3", rope_parameters={"partial_rotary_factor": 0.5}, sliding_window=16),
    "smollm3-bare": raw("smollm3"),
    "smollm3-interval": raw(
        "smollm3", no_rope_layer_interval=2, use_sliding_window=True, sliding_window=16, num_key_value_heads=2
    ),
}


@pytest.mark.parametrize("name", tiny_configs())
def test_a_tiny_model_has_the_shapes_and_masks_of_its_geometry(name: str) -> None:
    config = tiny_configs()[name]
    check_same(geometry_from_config(json.loads(config.to_json_string(use_diff=False))), run(config))


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_any_style_gives_the_shapes_and_masks_of_its_model(name: str) -> None:
    check_same(geometry_from_config(FILES[name]), run(build(FILES[name])))


@pytest.mark.parametrize("name", FILES)
def test_a_file_and_what_transformers_writes_of_it_give_one_geometry(name: str) -> None:
    written = json.loads(build(FILES[name]).to_json_string(use_diff=False))
    assert geometry_from_config(FILES[name]) == geometry_from_config(written)


@pytest.mark.parametrize("name", tiny_configs())
def test_a_key_depends_on_nothing_but_its_position_within_the_bound(name: str) -> None:
    config = tiny_configs()[name]
    longest = geometry_from_config(config.to_dict()).positions_max
    short, whole = run(config, 16)[0].keys, run(config, longest)[0].keys
    assert torch.allclose(short, whole[:, :16], atol=1e-5)


@pytest.mark.parametrize("name", ["llama-dynamic", "phi3-longrope"])
def test_the_bound_is_where_keys_begin_to_depend_on_the_length(name: str) -> None:
    config = tiny_configs()[name]
    longest = geometry_from_config(config.to_dict()).positions_max
    short, beyond = run(config, 16)[0].keys, run(config, longest + 1)[0].keys
    assert not torch.allclose(short, beyond[:, :16], atol=1e-3)


@pytest.mark.parametrize("name", ["phi3-su", "phi3-yarn"])
def test_the_old_names_of_longrope_have_the_bound_that_their_models_have(name: str) -> None:
    longest = geometry_from_config(FILES[name]).positions_max
    config = build(FILES[name])
    short, whole, beyond = (run(config, tokens)[0].keys for tokens in (16, longest, longest + 1))
    assert torch.allclose(short, whole[:, :16], atol=1e-5)
    assert not torch.allclose(short, beyond[:, :16], atol=1e-3)


ROTATIONS = {
    "default": {},
    "theta": {"rope_theta": 3_000.0},
    "linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "linear-3": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "llama3-high": {"rope_scaling": LLAMA3 | {"high_freq_factor": 9.0}},
    "llama3-low": {"rope_scaling": LLAMA3 | {"low_freq_factor": 0.25}},
    "llama3-original": {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    "yarn": {"rope_scaling": YARN},
    "yarn-original": {"rope_scaling": YARN | {"original_max_position_embeddings": 32}},
    "yarn-factor-null": {"rope_scaling": YARN | {"factor": None}, "max_position_embeddings": 1024},
    "yarn-beta": {"rope_scaling": YARN | {"beta_fast": 4.0}},
    "yarn-attention": {"rope_scaling": YARN | {"attention_factor": 1.5}},
    "yarn-mscale": {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.2}},
    "yarn-whole": {"rope_scaling": YARN | {"truncate": False}},
    "longrope": {"rope_scaling": {"rope_type": "longrope", **LONG, "factor": 4.0}},
    "longrope-factor": {"rope_scaling": {"rope_type": "longrope", **LONG, "factor": 8.0}},
    "longrope-attention": {"rope_scaling": {"rope_type": "longrope", **LONG, "attention_factor": 1.1}},
    "longrope-short": {"rope_scaling": {"rope_type": "longrope", **LONG, "short_factor": [2.0] * 8, "factor": 4.0}},
    "longrope-original": {
        "rope_scaling": {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 32},
        "max_position_embeddings": 256,
    },
}


def test_models_that_rotate_differently_differ_in_their_rope() -> None:
    files = {name: raw("llama", **fields) for name, fields in ROTATIONS.items()}
    keys = {name: run(build(file))[0].keys for name, file in files.items()}
    ropes = {name: geometry_from_config(file).rope for name, file in files.items()}
    for one in files:
        for other in files:
            same_keys = torch.allclose(keys[one], keys[other], atol=1e-5)
            assert same_keys == (one == other), (one, other)
            assert not same_keys or ropes[one] == ropes[other], (one, other)
            assert same_keys or ropes[one] != ropes[other], (one, other)


def test_the_part_that_rotates_and_the_layers_that_do_not_are_in_the_rope() -> None:
    whole, part = (
        geometry_from_config(FILES["phi3-bare"]).rope,
        geometry_from_config(FILES["phi3-part-in-the-set"]).rope,
    )
    assert dict(whole)["rotary_dims"] == "16"
    assert dict(part)["rotary_dims"] == "8"
    assert dict(geometry_from_config(FILES["smollm3-interval"]).rope)["layers_without_rope"] == "1,3"


def test_layers_said_not_to_rotate_do_not() -> None:
    file = FILES["smollm3-interval"] | {"no_rope_layers": [0, 1, 1, 1]}
    assert dict(geometry_from_config(file).rope)["layers_without_rope"] == "0"
    one, other = (run(build(file | {"rope_theta": theta}))[0].keys for theta in (17.0, 10_000.0))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 3e3}, {"rope_parameters": {"rope_theta": 3e3}}),
        (
            {"rope_theta": 3e3, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 3e3, "factor": 2.0}},
        ),
        ({"rope_scaling": {}, "rope_theta": 3e3}, {"rope_parameters": {"rope_theta": 3e3}, "rope_theta": 7.0}),
        ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 7.0}}, {"rope_parameters": LLAMA3}),
        ({"rope_parameters": LLAMA3 | {"beta_fast": 5.0}}, {"rope_parameters": LLAMA3}),
    ],
)
def test_two_spellings_of_one_rotation_are_one_rope(old: dict[str, Any], new: dict[str, Any]) -> None:
    one, other = raw("llama", **old), raw("llama", **new)
    assert torch.equal(run(build(one))[0].keys, run(build(other))[0].keys)
    assert geometry_from_config(one) == geometry_from_config(other)
