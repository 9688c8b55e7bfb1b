"""Which architecture a configuration names."""

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.architectures import SUPPORTED, find_architecture
from kvist.geometry.fields import Fields


def of(**values: object) -> Fields:
    return Fields(values=values, source="config.json")


@pytest.mark.parametrize("known", SUPPORTED, ids=lambda known: known.name)
def test_an_architecture_is_found_by_its_type_alone_and_by_both_its_names(known) -> None:
    assert find_architecture(of(model_type=known.model_type)) is known
    assert find_architecture(of(model_type=known.model_type, architectures=[known.name])) is known
    assert find_architecture(of(model_type=known.model_type, architectures=None)) is known


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "mixtral"},
        {"model_type": ""},
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]},
        {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
        {"architectures": ["GPT2LMHeadModel"]},
        {"architectures": ["x" * 10_000]},
    ],
)
def test_any_other_is_refused_with_all_that_are_supported(values: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="is not supported; supported are") as error:
        find_architecture(of(**values))
    assert all(known.name in str(error.value) and known.model_type in str(error.value) for known in SUPPORTED)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "lacks model_type"),
        ({"architectures": ["LlamaForCausalLM"]}, "lacks model_type"),
        ({"model_type": None}, "model_type is null"),
        ({"model_type": ["llama"]}, "model_type is a list of 1"),
        ({"model_type": "llama", "architectures": []}, "architectures is a list of 0"),
        ({"model_type": "llama", "architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'"),
        ({"model_type": "llama", "architectures": [1]}, "architectures is a list of 1"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM", "LlamaModel"]}, "architectures is a list of 2"),
        ({"model_type": "llama", "architectures": ["MistralForCausalLM"]}, "names MistralForCausalLM, but model_type"),
    ],
)
def test_a_name_that_is_none_is_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        find_architecture(of(**values))
