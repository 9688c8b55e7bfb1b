"""A slim GGUF is a whole one with the same weights and facts, without the words of its vocabulary."""

import errno
import resource
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvist.engine.backends.gguf_header import ArrayField, read_header
from kvist.engine.backends.gguf_slim import write_slim
from tiny_gguf import TinyGguf, tiny_gemma3, tiny_llama

MODELS = pytest.mark.parametrize("model", [tiny_llama(), tiny_gemma3()], ids=["llama", "gemma3"])


def slim(model: TinyGguf, folder: Path) -> tuple[Path, Path]:
    """A whole file and its slim copy."""
    whole = model.write(folder / "whole.gguf")
    write_slim(whole, read_header(whole), folder / "slim.gguf")
    return whole, folder / "slim.gguf"


@MODELS
def test_the_tensors_are_the_same_for_another_reader(model: TinyGguf, tmp_path: Path) -> None:
    theirs, ours = (gguf.GGUFReader(path).tensors for path in slim(model, tmp_path))
    for one, two in zip(theirs, ours, strict=True):
        assert (one.name, one.tensor_type, one.shape.tolist()) == (two.name, two.tensor_type, two.shape.tolist())
        assert np.array_equal(one.data, two.data)


@MODELS
def test_only_the_words_are_gone_and_their_number_is_there(model: TinyGguf, tmp_path: Path) -> None:
    whole, copy = (read_header(path) for path in slim(model, tmp_path))
    words = {key for key, value in whole.fields.items() if isinstance(value, ArrayField)}
    assert words
    assert all(key.startswith("tokenizer.") for key in words)
    vocab_size = f"{model.architecture}.vocab_size"
    kept = {key: value for key, value in whole.fields.items() if key not in words}
    assert copy.fields == kept | {vocab_size: whole.array_length("tokenizer.ggml.tokens")}
    assert copy.tensors.keys() == whole.tensors.keys()


def test_arrays_that_are_no_vocabulary_stay(tmp_path: Path) -> None:
    model = tiny_llama()
    model.fields["some.list"] = [1, 2, 3]
    _, copy = slim(model, tmp_path)
    assert read_header(copy).array_length("llama.some.list") == 3


def test_no_room_is_told_by_the_system(tmp_path: Path) -> None:
    whole = tiny_llama().write(tmp_path / "whole.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_slim(whole, read_header(whole), tmp_path / "slim.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
