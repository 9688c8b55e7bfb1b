"""A model's tokenizer through the server's port: texts, conversations, ends, and what is refused."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvist.base.errors import ModelError, RequestError
from kvist.base.ids import TokenId
from kvist.engine.backends.gguf_convert import convert
from kvist.engine.backends.gguf_tokenizer import PROBES
from kvist.engine.backends.tokenizer import HfTokenizer, load_tokenizer
from tiny_gguf import tiny_gemma3, tiny_llama

CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def llama_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    convert(tiny_llama().write(folder / "tiny.gguf"), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> HfTokenizer:
    folder = tmp_path_factory.mktemp("gemma")
    convert(tiny_gemma3().write(folder / "tiny.gguf"), folder / "out")
    return load_tokenizer(folder / "out")


@pytest.fixture(scope="module")
def llama(llama_files: Path) -> HfTokenizer:
    return load_tokenizer(llama_files)


@pytest.fixture
def copy(llama_files: Path, tmp_path: Path) -> Path:
    return shutil.copytree(llama_files, tmp_path / "copy")


def test_texts_go_both_ways(llama: HfTokenizer, gemma: HfTokenizer) -> None:
    for text in ("", "x", " a  b\n\n", "naïve 你好 🎉 \x00"):
        assert llama.decode(llama.encode(text)) == text
        assert gemma.encode(text)[0] == 2
        assert gemma.decode(gemma.encode(text)) == text


def test_special_tokens_are_shown_only_when_asked_for(llama: HfTokenizer) -> None:
    tokens = llama.encode("<|im_start|>hi<|im_end|>")
    assert (tokens[0], tokens[-1]) == (1, 2)
    assert llama.decode(tokens) == "hi"
    assert llama.decode(tokens, special=True) == "<|im_start|>hi<|im_end|>"


def test_a_long_text_is_neither_cut_nor_remarked_on(llama: HfTokenizer, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(llama.encode("x" * 100_000)) == 100_000
    assert capfd.readouterr() == ("", "")


def test_a_conversation_is_laid_out_by_the_model_s_template(llama: HfTokenizer) -> None:
    assert llama.has_chat_template
    tokens = llama.encode_chat(CHAT)
    assert llama.decode(tokens, special=True) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokens.count(TokenId(1)) == 2


def test_a_template_that_begins_with_bos_gives_one_bos(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    config = json.loads((copy / "tokenizer.json").read_text())
    config["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    (copy / "tokenizer.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(copy)
    assert tokenizer.encode("x") == [1, *tokenizer.encode("x")[1:]]
    assert tokenizer.encode_chat(CHAT) == tokenizer.encode("hi")


def test_a_model_without_a_template_says_so(gemma: HfTokenizer) -> None:
    assert not gemma.has_chat_template
    with pytest.raises(RequestError, match="no chat template") as caught:
        gemma.encode_chat(CHAT)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": None}], [{"role": "user", "content": 3}]],
)
def test_messages_that_the_template_was_not_written_for_are_refused(llama: HfTokenizer, messages) -> None:
    with pytest.raises(RequestError, match="chat template rejects") as caught:
        llama.encode_chat(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{% if %}",
        "{{ messages[9]['role'] }}",
        "{{ messages.append(1) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ undefined_function() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_refuses_the_messages(copy: Path, template: str) -> None:
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(RequestError) as caught:
        load_tokenizer(copy).encode_chat(CHAT)
    assert caught.value.param == "messages"


def test_halves_of_surrogate_pairs_are_refused(llama: HfTokenizer) -> None:
    for text in ("a\ud800", "\udfff", "\udcff\x00"):
        with pytest.raises(RequestError, match="surrogate") as caught:
            llama.encode(text)
        assert caught.value.param == "prompt"
        with pytest.raises(RequestError, match="surrogate") as caught:
            llama.encode_chat([{"role": "user", "content": text}])
        assert caught.value.param == "messages"


def test_ids_that_the_model_lacks_have_no_text_and_numbers_that_are_no_ids_are_refused(llama: HfTokenizer) -> None:
    assert llama.decode([TokenId(100_000)]) == ""
    for token in (-1, 2**40):
        with pytest.raises(RequestError, match=str(token)):
            llama.decode([TokenId(token)])


@pytest.mark.parametrize(
    ("name", "content", "stop"),
    [
        ("generation_config.json", {"eos_token_id": [1, 5]}, {1, 2, 5}),
        ("generation_config.json", {"eos_token_id": 7}, {2, 7}),
        ("generation_config.json", {"eos_token_id": None}, {2}),
        ("generation_config.json", {}, {2}),
        ("config.json", {"model_type": "llama", "text_config": {"eos_token_id": [9]}}, {2, 9}),
    ],
)
def test_every_end_that_the_files_name_stops(copy: Path, name: str, content: dict, stop: set[int]) -> None:
    (copy / name).write_text(json.dumps(content))
    assert load_tokenizer(copy).stop_tokens == stop


def test_without_a_generation_config_the_others_say_where_a_text_ends(copy: Path) -> None:
    (copy / "generation_config.json").unlink()
    assert load_tokenizer(copy).stop_tokens == {2}


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"eos_token_id": "</s>"}', '{"eos_token_id": [-1]}', '{"eos_token_id": true}']
)
def test_an_end_that_is_no_token_is_refused_by_file(copy: Path, text: str) -> None:
    (copy / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_tokenizer(copy)


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_refused_by_directory(copy: Path, text: str) -> None:
    (copy / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=f"tokenizer in {copy} can not be loaded"):
        load_tokenizer(copy)


def test_a_directory_without_a_tokenizer_is_refused(copy: Path, tmp_path: Path) -> None:
    for path in copy.glob("tokenizer*"):
        path.unlink()
    for directory in (copy, tmp_path / "absent"):
        with pytest.raises(ModelError, match=str(directory)):
            load_tokenizer(directory)


def test_code_of_the_model_is_never_run(copy: Path) -> None:
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil"}
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    mark = copy / "ran"
    (copy / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(ModelError, match=r"trust_remote_code|can not be loaded"):
        load_tokenizer(copy)
    assert not mark.exists()


def test_limits_in_the_file_do_not_cut_or_fill_a_text(copy: Path) -> None:
    config = json.loads((copy / "tokenizer.json").read_text())
    config["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    config["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    (copy / "tokenizer.json").write_text(json.dumps(config))
    assert len(load_tokenizer(copy).encode("x" * 20)) == 20


def test_it_cuts_text_as_transformers_does(llama: HfTokenizer, llama_files: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(llama_files, local_files_only=True)
    for text in PROBES:
        assert llama.encode(text) == theirs.encode(text)
        assert llama.decode(llama.encode(text)) == theirs.decode(theirs.encode(text), skip_special_tokens=True)
    tokens = theirs.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert llama.encode_chat(CHAT) == tokens


def test_other_threads_run_while_a_long_text_is_encoded(llama: HfTokenizer) -> None:
    text, done, ticks = "The quick brown fox, 12345. " * 20_000, threading.Event(), []

    def tick() -> None:
        while not done.wait(0.001):
            ticks.append(llama.decode([TokenId(100)]))

    ticking = threading.Thread(target=tick)
    ticking.start()
    tokens = llama.encode(text)
    done.set()
    ticking.join()
    assert len(ticks) > 10
    assert len(tokens) > 100_000


OFFLINE = """
import sys
from pathlib import Path

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"reached out: {event} {arguments}")

sys.addaudithook(refuse)
from kvist.engine.backends.gguf_convert import convert
from kvist.engine.backends.tokenizer import load_tokenizer

convert(Path(sys.argv[1]), Path(sys.argv[2]))
print(load_tokenizer(Path(sys.argv[2])).encode("x"))
"""


def test_neither_conversion_nor_tokenizer_opens_a_connection(tmp_path: Path) -> None:
    gguf = tiny_llama().write(tmp_path / "tiny.gguf")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(gguf), str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[123]\n"), done.stderr
