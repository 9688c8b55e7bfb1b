"""What users give as a model is found and proven, or refused with what they could give."""

import json
import shutil
from pathlib import Path

import pytest

from kvist.app.catalogue import named
from kvist.app.locate import ModelFiles, locate, locate_in
from kvist.app.model_store import ModelStore
from kvist.app.progress import Progress
from kvist.base.errors import CapacityError, ModelError
from kvist.engine.backends.tokenizer import load_tokenizer
from tiny_gguf import tiny_gemma3, tiny_llama


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, tiny_file: Path) -> Path:
    """A Hugging Face directory of a tiny model."""
    return locate_in(ModelStore(tmp_path_factory.mktemp("cache")), str(tiny_file)).directory


@pytest.fixture
def directory(converted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(converted, tmp_path / "My-Model")


def test_a_directory_is_taken_as_it_is(directory: Path, store: ModelStore, cache: Path) -> None:
    assert locate_in(store, str(directory)) == ModelFiles(directory=directory, served_name="My-Model")
    assert not cache.exists()


def test_a_relative_path_and_a_link_are_followed(
    directory: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory.parent / "link").symlink_to(directory)
    monkeypatch.chdir(directory.parent)
    for given in ("My-Model", "./My-Model/", "link"):
        assert locate_in(store, given).directory == directory


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "holds no weights"),
        ("tokenizer.json", "has no tokenizer; it needs tokenizer.json"),
    ],
)
def test_a_directory_that_lacks_something_is_refused(
    directory: Path, store: ModelStore, name: str, complaint: str
) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelError, match=complaint):
        locate_in(store, str(directory))


@pytest.mark.parametrize("text", ["", "[]", "{", "\ufffd", "[" * 100_000])
def test_a_damaged_configuration_is_refused(directory: Path, store: ModelStore, text: str) -> None:
    (directory / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json is damaged"):
        locate_in(store, str(directory))


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.9999])
def test_truncated_weights_are_refused_by_name(directory: Path, store: ModelStore, part: float) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: int(weights.stat().st_size * part)])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or cut short"):
        locate_in(store, str(directory))


@pytest.mark.parametrize("files", [["tokenizer.model"], ["vocab.json", "merges.txt"]])
def test_other_kinds_of_tokenizers_are_taken(directory: Path, store: ModelStore, files: list[str]) -> None:
    (directory / "tokenizer.json").unlink()
    for name in files:
        (directory / name).write_text("x")
    assert locate_in(store, str(directory)).directory == directory


def stages_of(store: ModelStore, given: Path) -> tuple[ModelFiles, list[str]]:
    told: list[Progress] = []
    files = locate_in(store, str(given), progress=told.append)
    return files, list(dict.fromkeys(each.stage for each in told))


def test_a_gguf_is_converted_once(store: ModelStore, tiny_file: Path, cache: Path) -> None:
    files, first = stages_of(store, tiny_file)
    again, second = stages_of(store, tiny_file)
    assert files == again
    assert files.served_name == "tiny"
    assert files.directory.is_relative_to(cache)
    assert first == ["read tiny.gguf", "convert tiny.gguf to bfloat16, once"]
    assert second == ["read tiny.gguf", "verify"]
    assert load_tokenizer(files.directory).encode("hi") == [261]


def test_two_files_with_the_same_contents_share_a_conversion(
    store: ModelStore, tiny_file: Path, tmp_path: Path
) -> None:
    files = locate_in(store, str(tiny_file))
    copy = shutil.copy(tiny_file, tmp_path / "other name.bin")
    other = locate_in(store, str(copy))
    assert (other.directory, other.digest, other.served_name) == (files.directory, files.digest, "other name")


def test_two_files_with_other_contents_do_not(store: ModelStore, tiny_file: Path, tmp_path: Path) -> None:
    gemma = locate_in(store, str(tiny_gemma3().write(tmp_path / "gemma.gguf")))
    llama = locate_in(store, str(tiny_file))
    assert gemma.directory != llama.directory
    assert gemma.digest != llama.digest


def test_a_damaged_conversion_is_made_again(store: ModelStore, tiny_file: Path) -> None:
    files, _ = stages_of(store, tiny_file)
    (files.directory / "config.json").write_text("{}")
    again, stages = stages_of(store, tiny_file)
    assert again == files
    assert any("config.json is damaged" in stage for stage in stages)
    assert json.loads((files.directory / "config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.9999])
def test_a_truncated_gguf_is_refused_by_name(store: ModelStore, tmp_path: Path, cache: Path, part: float) -> None:
    path = tiny_llama().write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ModelError, match=r"cut\.gguf is not a whole GGUF"):
        locate_in(store, str(path))
    assert not cache.exists()


def test_without_room_a_gguf_is_not_converted(cache: Path, tiny_file: Path) -> None:
    with pytest.raises(CapacityError, match="not enough room"):
        locate_in(ModelStore(cache, free=lambda _: 10), str(tiny_file))


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_a_name_that_is_not_fetched_says_how(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIST_CACHE", str(cache))
    with pytest.raises(ModelError, match=f"run: kvist fetch {name}"):
        locate(name)
    assert not cache.exists()


def test_a_name_whose_files_are_damaged_says_which_and_how(store: ModelStore, converted: Path) -> None:
    place = store.directory(named("smollm2").gguf_sha256)
    place.parent.mkdir(parents=True)
    shutil.copytree(converted, place)
    with pytest.raises(ModelError, match="run: kvist fetch smollm2"):
        locate_in(store, "smollm2")


@pytest.mark.parametrize("given", ["", "no-such-model", "hub/model", "/no/such/path", "x" * 5000, "a\x00b", "a\udcffb"])
def test_what_is_no_model_is_refused_with_what_could_be_given(store: ModelStore, given: str) -> None:
    with pytest.raises(ModelError, match=r"smollm2.*gemma3-270m.*\.gguf|can not be read") as caught:
        locate_in(store, given)
    assert str(caught.value).encode()


def test_other_files_are_refused(store: ModelStore, directory: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ModelError, match="not a whole GGUF"):
            locate_in(store, str(directory / name))


def test_a_device_is_refused(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="there is no model"):
        locate_in(store, "/dev/zero")
