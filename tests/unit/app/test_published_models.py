"""Every published configuration of the catalogue is one that planning reads, with the parameters that it is sold by."""

import pytest

from kvist.app.catalogue import CATALOGUE
from kvist.app.published_models import published, published_models
from kvist.geometry.published import model_layers

# Billions of parameters, from the names and cards of the models; counted to the second decimal where cards do.
BILLIONS = {
    "smollm2-135m": (0.1345, 0.0001),
    "gemma-3-270m": (0.2681, 0.0001),
    "gemma-3-4b": (3.88, 0.01),
    "llama-3.1-8b": (8.03, 0.005),
    "llama-3-70b": (70.6, 0.06),
    "llama-3.1-70b": (70.6, 0.06),
    "llama-3.1-405b": (405.9, 0.1),
    "qwen2.5-7b": (7.62, 0.01),
    "qwen2.5-72b": (72.7, 0.05),
    "qwen3-8b": (8.19, 0.01),
    "qwen3-32b": (32.8, 0.05),
    "gpt-oss-20b": (20.9, 0.05),
    "gpt-oss-120b": (116.8, 0.05),
    "deepseek-v3": (671.0, 0.1),
}


def test_every_model_is_expected_here() -> None:
    assert published_models().keys() == BILLIONS.keys()


@pytest.mark.parametrize("name", BILLIONS)
def test_parameters_are_those_that_the_model_is_known_by(name: str) -> None:
    billions, within = BILLIONS[name]
    layers = model_layers(published_models()[name].config)
    assert layers.parameters.total / 1e9 == pytest.approx(billions, abs=within)
    assert layers.dtype == "bfloat16"


@pytest.mark.parametrize("name", BILLIONS)
def test_every_source_says_where_and_what(name: str) -> None:
    for source in published_models()[name].sources:
        assert "/config" in source.url or "/commit/" in source.url
        assert len(source.read.split()) >= 4


@pytest.mark.parametrize("name", CATALOGUE)
def test_models_that_can_be_fetched_have_the_same_names_here(name: str) -> None:
    """And what their own files say is what is published."""
    model = published(name)
    assert model is not None
    config = model.config
    plain = {key: value for key, value in CATALOGUE[name].facts.items() if key in config}
    assert len(plain) >= 6
    assert plain == {key: config[key] for key in plain}


@pytest.mark.parametrize("name", ["LLAMA-3.1-8B", "SmolLM2"])
def test_capitals_make_no_difference(name: str) -> None:
    assert published(name) == published(name.lower()) is not None


@pytest.mark.parametrize("name", ["", "llama", "llama-3.1-8b ", "../models", "\0"])
def test_there_is_nothing_by_other_names(name: str) -> None:
    assert published(name) is None
