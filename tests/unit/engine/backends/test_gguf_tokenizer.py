"""The saved tokenizer cuts text as the GGUF's own rules say, and begins it as they say."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_convert import convert
from kvist.engine.backends.gguf_header import read_header
from kvist.engine.backends.gguf_tokenizer import PROBES, begins_with_bos, check_vocabulary
from tiny_gguf import TinyGguf, byte_alphabet, tiny_gemma3, tiny_llama

TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(" \n\t0123hix")), max_size=40)


def saved(model: TinyGguf, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of the converted model, as any user of the directory would load it."""
    convert(model.write(folder / "tiny.gguf"), folder / "out")
    return AutoTokenizer.from_pretrained(folder / "out", local_files_only=True)


def built(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer as transformers makes it of the GGUF, with whatever it loses."""
    return AutoTokenizer.from_pretrained(folder, gguf_file="tiny.gguf", local_files_only=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("llama")
    return saved(tiny_llama(), folder), built(folder)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    folder = tmp_path_factory.mktemp("gemma")
    return saved(tiny_gemma3(), folder), built(folder)


def digits_apart(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokens of a text whose numeric characters were each cut out first: the rule that is called smollm."""
    parts = itertools.groupby(enumerate(text), key=lambda pair: pair[0] if pair[1].isnumeric() else -1)
    pieces = ("".join(character for _, character in part) for _, part in parts)
    return [token for piece in pieces for token in tokenizer.encode(piece, add_special_tokens=False)]


def test_spaces_before_a_digit_stay_together(llama) -> None:
    tokenizer, unmended = llama
    four_spaces = tokenizer.convert_tokens_to_ids(byte_alphabet()[32] * 4)
    assert four_spaces in tokenizer.encode("\n    5")
    assert four_spaces not in unmended.encode("\n    5")


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_digits_are_cut_out_before_everything_else(llama, text: str) -> None:
    tokenizer, unmended = llama
    # Python counts some ideographs as numeric, which the rule does not.
    if not any(character >= "\u2e80" for character in text if character.isnumeric()):
        assert tokenizer.encode(text) == digits_apart(unmended, text)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_a_text_survives_both_ways(llama, text: str) -> None:
    tokenizer, _ = llama
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_sentencepiece_is_saved_as_it_was_built(gemma, text: str) -> None:
    tokenizer, unsaved = gemma
    plain = unsaved.encode(text, add_special_tokens=False)
    assert tokenizer.encode(text, add_special_tokens=False) == plain
    assert tokenizer.encode(text) == [2, *plain]


def test_probes_are_among_the_texts_that_agree(llama, gemma) -> None:
    for text in PROBES:
        assert llama[0].encode(text) == digits_apart(llama[1], text)
        assert gemma[0].encode(text)[1:] == gemma[1].encode(text, add_special_tokens=False)


def test_a_text_begins_as_the_gguf_says(tmp_path: Path) -> None:
    for says, begins in ((True, [1]), (False, [])):
        folder = tmp_path / str(says)
        folder.mkdir()
        model = tiny_llama()
        model.tokenizer["ggml.add_bos_token"] = says
        tokenizer = saved(model, folder)
        assert tokenizer.encode("x") == [*begins, *tokenizer.encode("x", add_special_tokens=False)]
        assert tokenizer.encode("") == begins


@pytest.mark.parametrize(
    ("model", "expected"),
    [(tiny_gemma3(), True), (tiny_llama(), False), (tiny_llama("llama-bpe"), True), (tiny_llama("qwen2"), False)],
)
def test_a_gguf_that_does_not_say_begins_as_its_kind_does(model: TinyGguf, *, expected: bool, tmp_path: Path) -> None:
    del model.tokenizer["ggml.add_bos_token"]
    assert begins_with_bos(read_header(model.write(tmp_path / "tiny.gguf"))) is expected


def test_a_llama_3_vocabulary_takes_whole_words_that_no_merge_reaches(tmp_path: Path) -> None:
    model = tiny_llama("llama-bpe")
    model.tokenizer["ggml.merges"] = model.tokenizer["ggml.merges"][:2]
    tokenizer = saved(model, tmp_path)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hi", add_special_tokens=False)) == ["hi"]


@pytest.mark.parametrize(
    ("kind", "rule"), [("gpt2", "default"), ("gpt2", "deepseek-coder"), ("bert", "smollm"), ("t5", "x")]
)
def test_a_rule_that_is_not_known_is_refused(kind: str, rule: str, tmp_path: Path) -> None:
    model = tiny_llama(rule)
    model.tokenizer["ggml.model"] = kind
    with pytest.raises(ModelError, match=f"{kind!r}.*{rule!r}.*--model DIR"):
        check_vocabulary(read_header(model.write(tmp_path / "tiny.gguf")), tmp_path / "tiny.gguf")


def test_a_rule_that_is_not_given_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    del model.tokenizer["ggml.pre"]
    with pytest.raises(ModelError, match="None"):
        saved(model, tmp_path)


def test_a_vocabulary_that_names_a_token_twice_is_refused(tmp_path: Path) -> None:
    model = tiny_gemma3()
    model.tokenizer["ggml.tokens"] = ["hi" if each == "he" else each for each in model.tokenizer["ggml.tokens"]]
    with pytest.raises(ModelError, match=r"tiny\.gguf.*360 tokens instead of 361"):
        saved(model, tmp_path)


def test_the_files_say_how_to_be_read(llama, tmp_path: Path) -> None:
    saved(tiny_llama(), tmp_path)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_max_length"] == 256
    assert not {"is_local", "local_files_only"} & config.keys()
