"""Whatever foreign code raises comes out as Kvist's own, and nothing is lost on the way."""

import errno

import pytest
from safetensors import SafetensorError
from tokenizers import Tokenizer

from kvist.base.errors import CapacityError, ModelError, RequestError
from kvist.engine.backends.foreign import NO_ROOM, translated


@pytest.mark.parametrize(
    "raised",
    [
        Exception("bare"),
        ValueError("bad\nvalue\x1b[2J"),
        KeyError("k"),
        RuntimeError(),
        OSError(errno.EIO, "I/O"),
        SafetensorError("x"),
        RecursionError("deep"),
        StopIteration(),
    ],
)
def test_any_foreign_exception_becomes_one_printable_line(raised: Exception) -> None:
    with (
        pytest.raises(ModelError, match=r"m\.gguf can not be converted") as caught,
        translated("m.gguf can not be converted"),
    ):
        raise raised
    assert caught.value.__cause__ is raised
    assert str(caught.value).isprintable()
    assert type(raised).__name__ in str(caught.value)


def test_a_long_message_is_cut() -> None:
    with pytest.raises(ModelError) as caught, translated("m"):
        raise ValueError("x" * 10_000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("raised", [ModelError("ours"), CapacityError("ours"), RequestError("ours"), MemoryError()])
def test_what_is_ours_passes(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, translated("m"):
        raise raised
    assert caught.value is raised


@pytest.mark.parametrize("number", NO_ROOM)
def test_no_room_is_recognised_however_it_is_told(number: int) -> None:
    for raised in (OSError(number, "full"), SafetensorError(f"I/O error: full (os error {number})")):
        with pytest.raises(OSError, match=r"\w") as caught, translated("m"):
            raise raised
        assert caught.value.errno == number


def test_interrupts_pass() -> None:
    with pytest.raises(KeyboardInterrupt), translated("m"):
        raise KeyboardInterrupt


def test_a_damaged_tokenizer_file_is_one_of_them(tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ModelError, match="tokenizer: Exception"), translated("the tokenizer"):
        Tokenizer.from_file(str(path))
