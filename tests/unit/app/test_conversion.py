"""A conversion is kept only if it says what is known of the model."""

import hashlib
import json
from pathlib import Path

import pytest

from kvist.app.conversion import Source, check_facts, convert_into, require_engine
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress
from kvist.base.errors import ModelError


def source_of(gguf: Path, **facts: object) -> Source:
    return Source(gguf=gguf, sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(), name=gguf.name, facts=facts)


def test_a_converted_model_is_in_the_store_with_its_origin(store: ModelStore, tiny_file: Path) -> None:
    source, told = source_of(tiny_file, num_hidden_layers=2), list[Progress]()
    with store.lock(source.sha256), store.workspace(source.sha256, wanted=0) as workspace:
        manifest = convert_into(store, source, workspace, told.append)
    assert store.find(source.sha256) == manifest
    assert (manifest.source_name, manifest.dtype, manifest.terms_accepted) == ("tiny.gguf", "bfloat16", None)
    assert [each.stage for each in told] == ["convert tiny.gguf to bfloat16, once"]


def test_a_conversion_that_contradicts_what_is_known_is_not_kept(store: ModelStore, tiny_file: Path) -> None:
    source = source_of(tiny_file, num_hidden_layers=3)
    with (
        store.lock(source.sha256),
        store.workspace(source.sha256, wanted=0) as workspace,
        pytest.raises(ModelError, match="num_hidden_layers is 2 instead of 3"),
    ):
        convert_into(store, source, workspace, lambda _: None)
    assert store.find(source.sha256) is None


@pytest.mark.parametrize(
    ("name", "known", "wrong"),
    [
        ("a", 1, False),
        ("b.c.d", 2.5, False),
        ("e", [1, 2], False),
        ("a", 2, True),
        ("b.c", 2.5, True),
        ("b.x.d", 1, True),
        ("a.b", 1, True),
        ("absent", 1, True),
    ],
)
def test_facts_reach_into_nested_objects(tmp_path: Path, name: str, known: object, *, wrong: bool) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"a": 1, "b": {"c": {"d": 2.5}}, "e": [1, 2]}))
    if wrong:
        with pytest.raises(ModelError, match=f"{name} is .* instead of"):
            check_facts({name: known}, path)
    else:
        assert check_facts({name: known}, path) is None


def test_what_the_engine_needs_is_installed_here() -> None:
    assert require_engine() is None
