"""What `kvist plan --model` takes, and how it refuses all else: one error each, and no traceback."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvist.app.plan_model import planned_model
from kvist.app.published_models import published_models
from kvist.base.errors import ConfigError, KvistError, ModelError
from kvist.base.units import Bytes
from tiny_gguf import tiny_llama

CONFIG = dict(published_models()["smollm2-135m"].config)


def write_config(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def test_a_name_is_the_published_configuration() -> None:
    model = planned_model("smollm2-135m")
    assert (model.name, model.weights_bytes, model.weights_from) == ("smollm2-135m", None, "counted")
    assert len(model.layers.layers) == 30


def test_a_configuration_alone_has_its_weights_counted(tmp_path: Path) -> None:
    path = write_config(tmp_path / "mine")
    for given in (path, tmp_path / "mine"):
        model = planned_model(str(given))
        assert (model.name, model.weights_bytes, model.weights_from) == ("mine", None, "counted")
        assert model.layers == planned_model("smollm2-135m").layers


def test_weights_that_are_there_are_measured(tmp_path: Path) -> None:
    write_config(tmp_path / "mine")
    file = tmp_path / "mine" / "model.safetensors"
    save_file({"a": torch.zeros(1000, dtype=torch.bfloat16)}, file)
    model = planned_model(str(tmp_path / "mine"))
    assert (model.weights_bytes, model.weights_from) == (file.stat().st_size, "the files")
    assert model.weights_bytes is not None
    assert 2000 < model.weights_bytes < 2200


def test_weights_that_are_given_count_more(tmp_path: Path) -> None:
    write_config(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"junk")
    model = planned_model(str(tmp_path / "mine"), weights=Bytes(5_000))
    assert (model.weights_bytes, model.weights_from) == (5_000, "given")


def test_a_gguf_file_tells_its_geometry_and_the_bytes_of_its_tensors(tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "tiny.gguf")
    model = planned_model(str(path))
    assert (model.name, model.weights_from) == ("tiny", "the file")
    assert model.weights_bytes is not None
    assert 0.5 * path.stat().st_size < model.weights_bytes < path.stat().st_size
    assert len(model.layers.layers) == 2


def test_one_part_of_a_gguf_does_not_pass_for_the_whole(tmp_path: Path) -> None:
    tiny = tiny_llama()
    path = tiny.write(tmp_path / "tiny-00001-of-00003.gguf")
    content = path.read_bytes()
    # One more field at the front: split.count, a 16-bit integer.
    key = b"split.count"
    fields = struct.unpack("<Q", content[16:24])[0] + 1
    more = struct.pack("<Q", len(key)) + key + struct.pack("<IH", 2, 3)
    path.write_bytes(content[:16] + struct.pack("<Q", fields) + more + content[24:] + b"\0" * 64)
    with pytest.raises(ModelError, match=r"one of 3 parts; .*--weights"):
        planned_model(str(path))
    assert planned_model(str(path), weights=Bytes(10**6)).weights_bytes == 10**6


def test_a_link_is_followed(tmp_path: Path) -> None:
    write_config(tmp_path / "mine")
    (tmp_path / "link").symlink_to("mine")
    assert planned_model(str(tmp_path / "link")).name == "mine"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "should hold JSON"),
        (b"{", "should hold JSON"),
        (b"\xff\xfe\x00junk" * 100, "should hold JSON"),
        (b"[]", "holds a list of 0"),
        (b"null", "holds null"),
        (b"7", "holds 7"),
        (b"[" * 100_000, "should hold JSON"),
        (b"{}", "model_type"),
        (b'{"model_type": "llama"}', "hidden_size"),
        (b'{"model_type": 7}', "model_type"),
        (b'{"model_type": "parrot"}', "'parrot' is not known"),
        (b"{" + b" " * 2**24 + b"}", "longer than"),
    ],
    ids=["empty", "cut", "binary", "list", "null", "number", "deep", "no fields", "few fields", "typed", "odd", "long"],
)
def test_what_is_no_configuration_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=complaint) as caught:
        planned_model(str(path))
    assert len(str(caught.value)) < 1_500


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_hidden_layers": -30}, "num_hidden_layers is -30"),
        ({"hidden_size": -576}, "hidden_size is -576"),
        ({"vocab_size": None}, "vocab_size is null"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"hidden_size": 1e400}, "hidden_size is inf"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers is"),
        ({"max_position_embeddings": 10**400}, "an integer of 1329 bits"),
        ({"quantization_config": {"quant_method": "guesswork"}}, "'guesswork' is not known"),
    ],
    ids=str,
)
def test_fields_that_cannot_be_are_named_with_their_values(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ModelError, match=complaint):
        planned_model(str(write_config(tmp_path / "mine", **change)))


def test_a_directory_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        planned_model(str(tmp_path))


@pytest.mark.parametrize("file", ["model.safetensors", "model.safetensors.index.json"])
def test_damaged_weights_are_told_with_a_way_out(tmp_path: Path, file: str) -> None:
    write_config(tmp_path / "mine")
    (tmp_path / "mine" / file).write_bytes(os.urandom(64))
    with pytest.raises(ModelError, match=rf"{file}.*--weights"):
        planned_model(str(tmp_path / "mine"))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + b"\xff" * 100, b"\0" * 5_000], ids=["0", "4", "104", "5k"])
def test_damaged_gguf_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a whole GGUF file"):
        planned_model(str(path))


def test_a_huge_file_costs_no_more_than_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ModelError, match="longer than"):
        planned_model(str(path))


def test_links_to_nowhere_and_to_themselves_are_told(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(ModelError, match="link to nowhere"):
        planned_model(str(tmp_path / "nowhere"))
    with pytest.raises(KvistError):
        planned_model(str(tmp_path / "round"))
    write_config(tmp_path / "mine").unlink()
    (tmp_path / "mine" / "config.json").symlink_to("gone.json")
    with pytest.raises(ModelError, match=r"no config\.json"):
        planned_model(str(tmp_path / "mine"))


def test_a_directory_for_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match="can not be read"):
        planned_model(str(tmp_path))


@pytest.mark.parametrize("given", ["", "llama-4-8b", "/nowhere/at/all", "a\0b", "x" * 100_000, "~nobody-at-all/x"])
def test_what_is_nowhere_is_refused_with_what_there_is(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned_model(given)
    assert len(str(caught.value)) < 600
