"""The digest of weights: every byte and every file name counts, and nothing else does."""

from pathlib import Path

import pytest

from kvist.app.weights import weights_digest
from kvist.base.errors import ModelError


def make(directory: Path, files: dict[str, bytes]) -> Path:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory


def test_it_depends_on_the_weights_alone(tmp_path: Path) -> None:
    first = make(tmp_path / "a", {"x.safetensors": b"one" * 1000, "y.safetensors": b"", "config.json": b"{}"})
    same = make(tmp_path / "b", {"y.safetensors": b"", "x.safetensors": b"one" * 1000, "tokenizer.json": b"?"})
    assert weights_digest(first) == weights_digest(same)


def test_every_difference_in_the_weights_shows(tmp_path: Path) -> None:
    variants = (
        {"x.safetensors": b"one"},
        {"x.safetensors": b"onf"},
        {"y.safetensors": b"one"},
        {"x.safetensors": b"one", "y.safetensors": b""},
        {"x.safetensors": b"", "y.safetensors": b"one"},
        {},
    )
    digests = {weights_digest(make(tmp_path / str(i), files)) for i, files in enumerate(variants)}
    assert len(digests) == len(variants)


def test_a_file_that_cannot_be_read_is_a_model_error(tmp_path: Path) -> None:
    directory = make(tmp_path / "a", {})
    (directory / "x.safetensors").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"x\.safetensors"):
        weights_digest(directory)
