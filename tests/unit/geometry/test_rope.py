"""Rotary parameters as text, and how far they hold."""

import math

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.architectures import SUPPORTED
from kvist.geometry.fields import Fields
from kvist.geometry.rope import Rope, read_rope

BY_TYPE = {known.model_type: known for known in SUPPORTED}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
LONG = {"rope_type": "longrope", "short_factor": [1, 2.5], "long_factor": [3, 4]}


def read(model_type: str, *, windows=(None, None), head_dim=4, **values: object) -> Rope:
    fields = Fields(values={"max_position_embeddings": 128} | values, source="config.json")
    return read_rope(fields, BY_TYPE[model_type], windows, head_dim)


def text(model_type: str, **values: object) -> dict[str, str]:
    return dict(read(model_type, **values).parameters)


def test_defaults_are_filled_in() -> None:
    assert text("llama") == {"rope_theta": "10000.0", "rope_type": "default", "rotary_dims": "4"}
    assert text("smollm3") == {
        "rope_theta": "2000000.0",
        "rope_type": "default",
        "rotary_dims": "4",
    }
    assert text("smollm3", windows=(None,) * 8)["layers_without_rope"] == "3,7"


def test_parameters_are_sorted_and_numbers_are_written_one_way() -> None:
    rope = read("llama", rope_theta=500_000, rope_scaling=LLAMA3)
    assert rope.parameters == (
        ("factor", "8.0"),
        ("high_freq_factor", "4.0"),
        ("low_freq_factor", "1.0"),
        ("original_max_position_embeddings", "128"),
        ("rope_theta", "500000.0"),
        ("rope_type", "llama3"),
        ("rotary_dims", "4"),
    )


def test_gemma_three_has_a_set_for_each_kind_of_layer_it_has() -> None:
    both = text("gemma3_text", windows=(8, None), rope_local_base_freq=5_000, rope_theta=7_000)
    assert both["full_attention.rope_theta"] == "7000.0"
    assert both["sliding_attention.rope_theta"] == "5000.0"
    only = text("gemma3_text", windows=(8, 8))
    assert {name.split(".")[0] for name in only} == {"sliding_attention"}
    scaled = text("gemma3_text", windows=(8, None), rope_scaling={"rope_type": "linear", "factor": 8})
    assert scaled["full_attention.factor"] == "8.0"
    assert scaled["sliding_attention.rope_type"] == "default"


def test_a_set_by_layer_type_prefers_its_own_base() -> None:
    sets = {"full_attention": {"rope_theta": 3_000}, "sliding_attention": None}
    found = text("gemma3_text", windows=(8, None), rope_parameters=sets, rope_theta=7_000)
    assert found["full_attention.rope_theta"] == "3000.0"
    assert found["sliding_attention.rope_theta"] == "10000.0"


@pytest.mark.parametrize(
    ("model_type", "values", "longest"),
    [
        ("llama", {}, 128),
        ("llama", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 16}, 128),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2}}, 128),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, 128),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 16}}, 128),
        ("llama", {"rope_scaling": LONG}, 128),
        ("llama", {"rope_scaling": LONG | {"original_max_position_embeddings": 16}}, 16),
        ("llama", {"rope_scaling": LONG | {"original_max_position_embeddings": 9000}}, 128),
        ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 32}, 32),
        ("phi3", {"rope_scaling": LONG, "max_position_embeddings": 131_072}, 4096),
    ],
)
def test_a_sequence_may_grow_as_long_as_its_keys_stay_put(model_type: str, values: dict, longest: int) -> None:
    assert read(model_type, **values).positions_max == longest


def test_phi_rotates_a_part_of_each_head() -> None:
    assert text("phi3", head_dim=128, partial_rotary_factor=0.75)["rotary_dims"] == "96"
    assert text("phi3", head_dim=7, partial_rotary_factor=0.5)["rotary_dims"] == "3"
    with pytest.raises(ModelError, match=r"partial_rotary_factor is 0\.5; it must be 1 for LlamaForCausalLM"):
        read("llama", partial_rotary_factor=0.5)


@pytest.mark.parametrize("part", [0, -0.5, 1.5, math.nan, None, "0.5", 0.01])
def test_a_part_that_is_none_is_refused(part: object) -> None:
    with pytest.raises(ModelError, match="partial_rotary_factor"):
        read("phi3", rope_parameters={"partial_rotary_factor": part})


@pytest.mark.parametrize("head_dim", [1, 3, 5])
def test_heads_that_do_not_rotate_in_pairs_are_refused(head_dim: int) -> None:
    with pytest.raises(ModelError, match="head_dim must be even"):
        read("llama", head_dim=head_dim)


@pytest.mark.parametrize(
    ("scaling", "complaint"),
    [
        ("linear", "rope_scaling is 'linear'; it must be a mapping"),
        ([1], "rope_scaling is a list of 1"),
        ({"rope_type": "mrope"}, "rope_scaling.rope_type is 'mrope'; it must be one of default, linear"),
        ({"type": "su"}, "rope_scaling.type is 'su'"),
        ({"rope_type": None}, "rope_scaling.rope_type is null"),
        ({"rope_type": ["linear"]}, "rope_scaling.rope_type is a list"),
        ({"type": "linear"}, "lacks rope_scaling.factor, which rope type 'linear' needs"),
        ({"type": "linear", "factor": 0}, "rope_scaling.factor is 0"),
        ({"type": "linear", "factor": math.nan}, "rope_scaling.factor is nan"),
        ({"type": "linear", "factor": None}, "rope_scaling.factor is null"),
        ({"type": "yarn"}, "lacks rope_scaling.factor"),
        ({"type": "yarn", "factor": 2, "beta_fast": -1}, "rope_scaling.beta_fast is -1"),
        ({"type": "yarn", "factor": 2, "truncate": "no"}, "rope_scaling.truncate is 'no'"),
        ({"type": "yarn", "factor": 2, "original_max_position_embeddings": 0}, "original_max_position_embeddings is 0"),
        ({"rope_type": "llama3", "factor": 8}, "lacks rope_scaling.low_freq_factor, rope_scaling.high_freq_factor"),
        (LLAMA3 | {"high_freq_factor": 1}, "rope_scaling.high_freq_factor is 1; it must be a finite number above 1"),
        ({"rope_type": "longrope", "short_factor": [1, 2]}, "lacks rope_scaling.long_factor"),
        (LONG | {"short_factor": [1]}, "rope_scaling.short_factor is a list of 1; it must be a list of 2"),
        (LONG | {"long_factor": [1, math.inf]}, r"rope_scaling.long_factor\[1\] is inf"),
        (LONG | {"attention_factor": "x"}, "rope_scaling.attention_factor is 'x'"),
        ({"rope_theta": 0, "rope_type": "default"}, "rope_scaling.rope_theta is 0"),
        ({"rope_theta": None, "rope_type": "default"}, "rope_scaling.rope_theta is null"),
        ({"full_attention": {"rope_type": "default"}}, "rope_scaling is given by layer type"),
    ],
)
def test_a_scaling_that_means_nothing_is_refused_by_its_name(scaling: object, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read("llama", rope_scaling=scaling)


@pytest.mark.parametrize(
    ("model_type", "values", "complaint"),
    [
        ("llama", {"rope_theta": math.inf}, "rope_theta is inf"),
        ("llama", {"rope_theta": None}, "rope_theta is null"),
        ("llama", {"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ("llama", {"head_dim": 2, "rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' needs more than 2"),
        ("phi3", {"rope_scaling": {"type": "linear", "factor": 2}}, "one of default, longrope for Phi3ForCausalLM"),
        ("phi3", {"rope_scaling": LONG | {"rope_type": "su"}}, "lacks .*original_max_position_embeddings"),
        ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": None}, "embeddings is null"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters is flat"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "rope_parameters.full_attention is 3"),
        ("gemma3_text", {"rope_local_base_freq": -1, "windows": (8, 8)}, "rope_local_base_freq is -1"),
    ],
)
def test_families_refuse_what_they_cannot_rotate(model_type: str, values: dict, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(model_type, **values)
