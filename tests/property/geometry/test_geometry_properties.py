"""Any file gives a geometry or one `ModelError`; a valid one gives what transformers makes of it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassError
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig

from kvist.base.errors import ModelError
from kvist.geometry.architectures import SUPPORTED
from kvist.geometry.config import geometry_from_config
from kvist.geometry.gguf_metadata import geometry_from_gguf
from kvist.geometry.groups import ModelGeometry
from tiny_models import tiny_configs

ROPE_KEYS = (
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "short_factor",
    "long_factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "beta_fast",
    "truncate",
    "full_attention",
    "sliding_attention",
)
OTHER_KEYS = ("rope_scaling", "rope_theta", "rope_local_base_freq", "sliding_window_pattern", "no_rope_layers")

numbers = st.integers(-2, 9) | st.integers() | st.floats() | st.sampled_from([2**31, 10**400, 10**5000])
scalars = st.none() | st.booleans() | numbers | st.text(max_size=5)
words = st.sampled_from(
    ["linear", "yarn", "longrope", "dynamic", "llama3", "su", "full_attention", "sliding_attention"]
)
lists = st.lists(scalars | words, max_size=6)
anything = scalars | words | lists | st.dictionaries(st.sampled_from(ROPE_KEYS), scalars | words | lists, max_size=5)

FILES = {name: json.loads(config.to_json_string(use_diff=False)) for name, config in tiny_configs().items()}


def attempt(read: Callable[[], ModelGeometry]) -> ModelGeometry | ModelError:
    """What reading gives, or the one error it may raise."""
    try:
        return read()
    except ModelError as error:
        return error


def check_outcome(outcome: ModelGeometry | ModelError, source: str) -> None:
    """Checks an error for its words, or a geometry for what must hold of any."""
    if isinstance(outcome, ModelError):
        assert str(outcome).startswith(source)
        assert len(str(outcome)) < 600
    else:
        check_whole(outcome)


def check_whole(geometry: ModelGeometry) -> None:
    """Checks what must hold of any geometry."""
    covered = sorted(layer for group in geometry.groups for layer in group.layers)
    assert covered == list(range(geometry.layers))
    assert len({group.window for group in geometry.groups}) == len(geometry.groups)
    assert all(group.window is not None for group in geometry.groups[1:])
    assert all(group.window is None or 1 <= group.window < geometry.positions_max for group in geometry.groups)
    assert all(list(group.layers) == sorted(group.layers) for group in geometry.groups)
    assert list(geometry.rope) == sorted(geometry.rope)
    assert geometry.bytes_per_token("bfloat16") > 0


@settings(deadline=None)
@given(name=st.sampled_from(sorted(FILES)), data=st.data())
def test_a_file_with_anything_in_it_gives_a_geometry_or_one_error(name: str, data: st.DataObject) -> None:
    keys = sorted({*FILES[name], *OTHER_KEYS})
    changes = data.draw(st.dictionaries(st.sampled_from(keys), anything, min_size=1, max_size=3))
    gone = data.draw(st.sets(st.sampled_from(keys), max_size=2))
    config = {key: value for key, value in (FILES[name] | changes).items() if key not in gone}
    check_outcome(attempt(lambda: geometry_from_config(config)), "config.json: ")


GGUF_SUFFIXES = (
    "block_count",
    "context_length",
    "embedding_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "expert_count",
)


@settings(deadline=None)
@given(
    architecture=st.sampled_from(["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3"]),
    changes=st.dictionaries(st.sampled_from(GGUF_SUFFIXES), anything, max_size=4),
    tokens=anything,
)
def test_metadata_with_anything_in_it_gives_a_geometry_or_one_error(
    architecture: str, changes: dict[str, Any], tokens: object
) -> None:
    sizes = {"block_count": 6, "context_length": 512, "embedding_length": 64, "attention.head_count": 4}
    rest = {"attention.key_length": 16, "rope.freq_base": 1e4, "rope.dimension_count": 16, "vocab_size": 300}
    window = {"attention.sliding_window": 24} if architecture in ("gemma2", "gemma3", "phi3") else {}
    metadata = {f"{architecture}.{suffix}": value for suffix, value in (sizes | rest | window | changes).items()}
    metadata |= {"general.architecture": architecture, "tokenizer.ggml.tokens": tokens}
    check_outcome(attempt(lambda: geometry_from_gguf(metadata, tensor_names=[])), "GGUF metadata: ")


layer_types = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=4, max_size=4)
VALID = {
    "num_hidden_layers": st.just(4),
    "hidden_size": st.sampled_from([64, 96]),
    "vocab_size": st.just(300),
    "num_attention_heads": st.sampled_from([4, 8]),
    "max_position_embeddings": st.sampled_from([64, 512]),
    "pad_token_id": st.just(0),
}
OPTIONAL = {
    "num_key_value_heads": st.sampled_from([1, 2, 4]) | st.none(),
    "head_dim": st.sampled_from([8, 16, 32]) | st.none(),
    "sliding_window": st.integers(1, 40) | st.none(),
    "use_sliding_window": st.booleans(),
    "max_window_layers": st.integers(0, 5),
    "sliding_window_pattern": st.integers(1, 5),
    "layer_types": layer_types | st.none(),
    "no_rope_layer_interval": st.integers(1, 5),
    "no_rope_layers": st.lists(st.sampled_from([0, 1]), min_size=4, max_size=4) | st.none(),
}


def transformers_windows(config: Any) -> list[int | None]:
    """The window of each layer, by the rules that the attention modules of transformers follow."""
    if config.model_type == "llama":
        return [None] * 4
    if config.model_type in ("mistral", "phi3"):
        return [config.sliding_window] * 4
    return [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]


@settings(deadline=None)
@given(architecture=st.sampled_from(SUPPORTED), data=st.data())
def test_a_valid_file_gives_what_transformers_makes_of_it(architecture: Any, data: st.DataObject) -> None:
    file = data.draw(st.fixed_dictionaries(VALID, optional=OPTIONAL))
    if architecture.model_type in ("llama", "mistral", "phi3"):
        file.pop("layer_types", None)  # they do not read it
    try:
        config = AutoConfig.for_model(architecture.model_type, **json.loads(json.dumps(file)))
        heads = config.num_attention_heads / config.num_key_value_heads
        head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        windows = transformers_windows(config)
    except (StrictDataclassError, TypeError):
        with pytest.raises(ModelError):
            geometry_from_config({"model_type": architecture.model_type} | file)
        return
    assume(heads == int(heads) and head_dim is not None)
    geometry = attempt(lambda: geometry_from_config({"model_type": architecture.model_type} | file))
    if isinstance(geometry, ModelError):
        # transformers would notice only once it runs: a sliding layer without a window, or one not told of it.
        assert "there is no window for it" in str(geometry) or "sliding_window is null" in str(geometry)
        return
    found = {layer: group for group in geometry.groups for layer in group.layers}
    assert [found[layer].window for layer in range(4)] == [
        None if window is None or window >= geometry.positions_max else window for window in windows
    ]
    assert {(group.kv_heads, group.head_dim_k) for group in geometry.groups} == {(config.num_key_value_heads, head_dim)}
