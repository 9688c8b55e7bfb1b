"""Whole safetensors files pass, and every kind of damage to one is refused by its name."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kvist.app.safetensors_check import INDEX, SINGLE, check_safetensors, check_weights
from kvist.base.errors import ModelError

TENSORS = {
    "a": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "b": torch.ones(5, dtype=torch.float32),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(3),
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / SINGLE, metadata={"format": "pt"})
    return tmp_path / SINGLE


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def tensor(*, dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_a_whole_file_names_its_tensors(whole: Path) -> None:
    assert check_safetensors(whole) == set(TENSORS)
    assert check_weights(whole.parent) == (whole,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_every_dtype_has_its_width(dtype: torch.dtype, tmp_path: Path) -> None:
    save_file({"t": torch.zeros(3, 5).to(dtype)}, tmp_path / "t.safetensors")
    assert check_safetensors(tmp_path / "t.safetensors") == {"t"}


def test_a_file_cut_anywhere_is_refused(whole: Path) -> None:
    data = whole.read_bytes()
    for cut in range(len(data)):
        whole.write_bytes(data[:cut])
        with pytest.raises(ModelError, match=str(whole)):
            check_safetensors(whole)


def test_bytes_after_the_last_tensor_are_refused(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes() + b"\x00")
    with pytest.raises(ModelError, match="damaged"):
        check_safetensors(whole)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"nonsense",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        {"t": 1},
        {"t": {"dtype": "F32"}},
        {"t": tensor(dtype="F99")},
        {"t": tensor(shape=(2,))},
        {"t": tensor(shape=(-1,), offsets=(4, 0))},
        {"t": tensor(shape=("1",))},
        {"t": tensor(shape=(True,))},
        {"t": tensor(offsets=(0, 4, 8))},
        {"t": tensor(offsets=(0.0, 4.0))},
        {"t": tensor(offsets=(4, 8))},
        {"t": tensor(), "u": tensor()},
        {"t": tensor(), "u": tensor(offsets=(5, 9))},
        {"t": tensor(shape=(2**60, 2**60), offsets=(0, 2**122))},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(header: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "t.safetensors", header, b"\x00" * 4)
    with pytest.raises(ModelError, match=r"t\.safetensors is damaged"):
        check_safetensors(path)


def test_a_header_longer_than_the_file_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    for length in (2**63, 2**32, 1000, 0):
        path.write_bytes(struct.pack("<Q", length) + b"{}")
        with pytest.raises(ModelError, match="header should take"):
            check_safetensors(path)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 300), byte=st.integers(0, 255))
def test_whatever_the_library_refuses_is_refused(tmp_path_factory, at: int, byte: int) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    save_file(TENSORS, path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(bytes(data))
    try:
        with safe_open(path, "pt") as file:
            names = set(file.keys())
    except SafetensorError:
        with pytest.raises(ModelError):
            check_safetensors(path)
    else:
        assert check_safetensors(path) == names


def shard(folder: Path, places: Any) -> None:
    save_file({"a": TENSORS["a"]}, folder / "model-1.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "model-2.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


PLACES = {"a": "model-1.safetensors", "b": "model-2.safetensors"}


def test_shards_are_checked_together(tmp_path: Path) -> None:
    shard(tmp_path, PLACES)
    assert [path.name for path in check_weights(tmp_path)] == list(PLACES.values())


def test_a_damaged_or_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    shard(tmp_path, PLACES)
    second = tmp_path / "model-2.safetensors"
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model-2\.safetensors is damaged"):
        check_weights(tmp_path)
    second.unlink()
    with pytest.raises(ModelError, match=r"model-2\.safetensors can not be read"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    "places",
    [
        {},
        [],
        None,
        {"a": 3},
        {"a": "../model-1.safetensors"},
        {"a": "/etc/passwd"},
        {"a": "model-1.bin"},
        {"c": "model-1.safetensors"},
        {"a": "model-2.safetensors"},
    ],
)
def test_an_index_that_is_wrong_is_refused(places: Any, tmp_path: Path) -> None:
    shard(tmp_path, places)
    with pytest.raises(ModelError, match="damaged"):
        check_weights(tmp_path)


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / INDEX).write_text(text)
        with pytest.raises(ModelError, match=r"index\.json"):
            check_weights(tmp_path)


def test_a_directory_without_safetensors_is_refused_and_pickles_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no weights"):
        check_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is not read"):
        check_weights(tmp_path)
