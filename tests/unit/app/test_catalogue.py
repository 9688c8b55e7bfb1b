"""The named models are complete, and pinned to what was published."""

import re

import pytest

from kvist.app.catalogue import CATALOGUE, DEFAULT_MODEL, NamedModel, named
from kvist.base.errors import ModelError

MODELS = pytest.mark.parametrize("model", CATALOGUE.values(), ids=CATALOGUE)


@MODELS
def test_every_model_is_pinned(model: NamedModel) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", model.gguf_sha256)
    pieces = [*model.pieces, *([model.terms.text] if model.terms else [])]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", piece.requirement) for piece in pieces)
    assert all(piece.size > 0 for piece in pieces)
    assert model.gguf_bytes == sum(piece.size for piece in model.pieces)
    assert {"num_hidden_layers", "rms_norm_eps", "max_position_embeddings"} <= model.facts.keys()


def test_the_names_are_those_that_users_know() -> None:
    assert list(CATALOGUE) == ["smollm2", "gemma3-270m"]
    assert DEFAULT_MODEL == "smollm2"
    assert named("gemma3-270m").served_name == "gemma-3-270m"
    assert named("smollm2").served_name == "SmolLM2-135M-Instruct"
    assert all(name == model.name for name, model in CATALOGUE.items())


def test_only_gemma_has_terms_to_accept() -> None:
    assert named("smollm2").terms is None
    terms = named("gemma3-270m").terms
    assert terms is not None
    assert terms.url.startswith("https://")


@pytest.mark.parametrize("name", ["", "SmolLM2", "../smollm2", "x" * 10_000])
def test_another_name_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ModelError, match="smollm2, gemma3-270m"):
        named(name)
