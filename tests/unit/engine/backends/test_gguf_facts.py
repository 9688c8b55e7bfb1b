"""What can not be converted faithfully is refused by name, before the work or after it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_facts import (
    TOKENIZER_BYTES_MAX,
    bytes_to_convert,
    check_convertible,
    lost_facts,
    refuse_losses,
)
from kvist.engine.backends.gguf_header import GgufHeader, read_header
from tiny_gguf import HEADS, HIDDEN, TinyGguf, tiny_gemma3, tiny_llama


def header_of(model: TinyGguf, folder: Path) -> GgufHeader:
    return read_header(model.write(folder / "tiny.gguf"))


def check(model: TinyGguf, folder: Path) -> None:
    check_convertible(header_of(model, folder), folder / "tiny.gguf")


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gemma3()], ids=["llama", "gemma3"])
def test_whole_models_pass(model: TinyGguf, tmp_path: Path) -> None:
    check(model, tmp_path)
    assert bytes_to_convert(header_of(model, tmp_path)) > TOKENIZER_BYTES_MAX


def test_an_unknown_architecture_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    model = tiny_llama()
    model.architecture = "mamba"
    with pytest.raises(ModelError, match=r"'mamba'.*gemma2, gemma3, llama, phi3, qwen2, qwen3"):
        check(model, tmp_path)


@pytest.mark.parametrize("kind", ["yarn", "linear", "longrope"])
def test_a_scaled_rope_is_refused(kind: str, tmp_path: Path) -> None:
    model = tiny_llama()
    model.fields["rope.scaling.type"] = kind
    with pytest.raises(ModelError, match=f"{kind}.*--model DIR"):
        check(model, tmp_path)


def test_a_rope_that_says_it_is_not_scaled_passes(tmp_path: Path) -> None:
    model = tiny_llama()
    model.fields["rope.scaling.type"] = "none"
    check_convertible(header_of(model, tmp_path), tmp_path)
    assert header_of(model, tmp_path).of_model("rope.scaling.type") == "none"


def test_a_rope_scaled_by_tensors_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.tensors["rope_freqs.weight"] = np.ones(16, dtype=np.float32)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        check(model, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 3),
        ("block_count", 2**31),
        ("embedding_length", HIDDEN + 1),
        ("context_length", 0),
        ("feed_forward_length", 2**31),
        ("attention.head_count", 2**31),
        ("attention.head_count_kv", "two"),
        ("rope.dimension_count", 2**31),
        ("attention.head_count", [4, 4]),
        ("context_length", 1.5),
    ],
)
def test_numbers_that_do_not_fit_the_tensors_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    model = tiny_llama()
    model.fields[key] = value
    with pytest.raises(ModelError, match=rf"damaged.*{key}"):
        check(model, tmp_path)


def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.tokenizer["ggml.tokens"] = [*model.tokenizer["ggml.tokens"], "more"]
    with pytest.raises(ModelError, match=r"tokens = 263.*262"):
        check(model, tmp_path)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight"])
def test_a_model_without_a_whole_layer_or_embeddings_is_refused(name: str, tmp_path: Path) -> None:
    model = tiny_llama()
    dropped = name.rsplit(".", 2)[0]
    model.tensors = {key: value for key, value in model.tensors.items() if not key.startswith(dropped.split(".ffn")[0])}
    with pytest.raises(ModelError, match=r"damaged"):
        check(model, tmp_path)


def test_gemma_2_27b_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.architecture = "gemma2"
    model.fields["block_count"] = 46
    with pytest.raises(ModelError, match="27B"):
        check(model, tmp_path)


def config(**changes: Any) -> dict[str, Any]:
    whole = {
        "num_hidden_layers": 2,
        "max_position_embeddings": 256,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "default"},
    }
    return whole | changes


def test_a_faithful_configuration_loses_nothing(tmp_path: Path) -> None:
    header = header_of(tiny_llama(), tmp_path)
    assert lost_facts(header, config()) == []
    assert lost_facts(header, config(rms_norm_eps=9.999999747378752e-06)) == []
    refuse_losses(header, config(), tmp_path)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"num_hidden_layers": 3}, "block_count"),
        ({"head_dim": 64}, "rope.dimension_count"),
        ({"head_dim": None}, "rope.dimension_count"),
        ({"rms_norm_eps": 1e-6}, "attention.layer_norm_rms_epsilon"),
        ({"rope_parameters": {"rope_theta": 500_000.0}}, "rope.freq_base"),
        ({"rope_parameters": None}, "rope.freq_base"),
        ({"rope_parameters": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}}, "rope.dimension_count"),
        ({"max_position_embeddings": "256"}, "context_length"),
    ],
)
def test_each_lost_fact_is_named(changes: dict[str, Any], lost: str, tmp_path: Path) -> None:
    header = header_of(tiny_llama(), tmp_path)
    assert [line.split(" is ")[0] for line in lost_facts(header, config(**changes))] == [lost]
    with pytest.raises(ModelError, match=f"faithfully: {lost}.*--model DIR"):
        refuse_losses(header, config(**changes), tmp_path)


def test_a_window_that_the_configuration_lacks_is_lost(tmp_path: Path) -> None:
    model = tiny_llama()
    model.fields |= {"attention.sliding_window": 128, "attn_logit_softcapping": 50.0}
    lost = lost_facts(header_of(model, tmp_path), config(attn_logit_softcapping=50.0))
    assert [line.split(" is ")[0] for line in lost] == ["attention.sliding_window"]
