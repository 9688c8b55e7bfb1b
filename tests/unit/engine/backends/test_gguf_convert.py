"""Conversion gives the weights, the configuration and the tokenizer that the GGUF stands for, or a clear refusal."""

import errno
import json
import resource
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_convert import convert, refuse_another_geometry
from kvist.engine.backends.gguf_header import read_header
from tiny_gguf import HEAD_DIM, HEADS, KV_HEADS, TinyGguf, tiny_gemma3, tiny_llama


def converted(model: TinyGguf, folder: Path) -> Path:
    convert(model.write(folder / "tiny.gguf"), folder / "out")
    return folder / "out"


def config_in(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(tiny_llama(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(tiny_gemma3(), tmp_path_factory.mktemp("gemma"))


def numbers_of(folder: Path) -> dict[str, np.ndarray]:
    """What the format's own reader makes of the GGUF."""
    tensors = gguf.GGUFReader(folder / "tiny.gguf").tensors
    return {each.name: gguf.quants.dequantize(each.data, each.tensor_type) for each in tensors}


def as_bf16(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(values)).to(torch.bfloat16)


def test_weights_are_the_dequantised_ones_rounded_to_bf16(llama: Path) -> None:
    ours, theirs = load_file(llama / "model.safetensors"), numbers_of(llama.parent)
    assert {each.dtype for each in ours.values()} == {torch.bfloat16}
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.1.mlp.down_proj": "blk.1.ffn_down",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.1.self_attn.o_proj": "blk.1.attn_output",
        "model.layers.1.post_attention_layernorm": "blk.1.ffn_norm",
    }
    for name, their_name in names.items():
        assert torch.equal(ours[f"{name}.weight"], as_bf16(theirs[f"{their_name}.weight"])), name


@pytest.mark.parametrize(("ours", "theirs", "heads"), [("q_proj", "attn_q", HEADS), ("k_proj", "attn_k", KV_HEADS)])
def test_rows_are_back_in_the_order_of_rotated_halves(llama: Path, ours: str, theirs: str, heads: int) -> None:
    stored = numbers_of(llama.parent)[f"blk.0.{theirs}.weight"]
    halves = [
        head * HEAD_DIM + 2 * row + half for head in range(heads) for half in (0, 1) for row in range(HEAD_DIM // 2)
    ]
    got = load_file(llama / "model.safetensors")[f"model.layers.0.self_attn.{ours}.weight"]
    assert torch.equal(got, as_bf16(stored[halves]))


def test_norms_of_gemma_are_stored_less_one(gemma: Path) -> None:
    ours, theirs = load_file(gemma / "model.safetensors"), numbers_of(gemma.parent)
    for name, their_name in (("model.norm", "output_norm"), ("model.layers.0.self_attn.q_norm", "blk.0.attn_q_norm")):
        assert torch.equal(ours[f"{name}.weight"], as_bf16(theirs[f"{their_name}.weight"] - 1))


def test_the_configuration_says_what_the_gguf_says(llama: Path, gemma: Path) -> None:
    small, windowed = config_in(llama), config_in(gemma)
    assert small["rms_norm_eps"] == 1e-5
    assert windowed["rms_norm_eps"] == 1e-6
    assert small["architectures"] == ["LlamaForCausalLM"]
    assert small["rope_parameters"]["rope_theta"] == 10_000.0
    assert windowed["sliding_window"] == 32
    assert windowed["rope_parameters"]["full_attention"]["rope_theta"] == 1_000_000.0
    assert small["tie_word_embeddings"] is windowed["tie_word_embeddings"] is True
    assert not {"_model_name_or_path", "_name_or_path", "quantization_config"} & (small.keys() | windowed.keys())


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_transformers_loads_every_weight_of_the_result(name: str, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(name)
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, local_files_only=True, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model(torch.tensor([[3, 4, 5]])).logits.isfinite().all()


def test_nothing_but_the_model_is_left_in_the_directory(llama: Path, gemma: Path) -> None:
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in gemma.iterdir()} == files
    assert {path.name for path in llama.iterdir()} == files | {"chat_template.jinja"}


def test_files_beside_the_gguf_are_ignored(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer_config.json", "generation_config.json", "adapter_config.json"):
        (tmp_path / name).write_text("{ this is not JSON")
    (tmp_path / "chat_template.jinja").write_text("wrong")
    template = (converted(tiny_llama(), tmp_path) / "chat_template.jinja").read_text()
    assert template == tiny_llama().tokenizer["chat_template"]


def test_conversion_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    converted(tiny_llama(), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_the_same_file_gives_the_same_bytes(llama: Path, tmp_path: Path) -> None:
    again = converted(tiny_llama(), tmp_path)
    for path in llama.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_a_tensor_that_is_missing_is_refused_and_not_made_up(tmp_path: Path) -> None:
    model = tiny_llama()
    del model.tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ModelError, match=r"tiny\.gguf is not whole.*up_proj.weight is not there"):
        converted(model, tmp_path)


def test_a_tensor_that_nobody_takes_is_refused_and_not_dropped(tmp_path: Path) -> None:
    model = tiny_llama()
    model.tensors["blk.1.attn_q.bias"] = np.ones(HEADS * HEAD_DIM, dtype=np.float32)
    with pytest.raises(ModelError, match=r"tiny\.gguf is not whole"):
        converted(model, tmp_path)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.tensors["blk.1.ffn_up.weight"] = model.tensors["blk.1.ffn_up.weight"][:64]
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        converted(model, tmp_path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_by_name(part: float, tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(ModelError, match=r"cut\.gguf is not a whole GGUF"):
        convert(path, tmp_path / "out")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(24, 12_000), byte=st.integers(0, 255))
def test_a_changed_byte_never_gets_past_as_another_exception(tmp_path_factory, at: int, byte: int) -> None:
    folder = tmp_path_factory.mktemp("changed")
    path = tiny_llama().write(folder / "tiny.gguf")
    data = bytearray(path.read_bytes())
    data[at] = byte
    path.write_bytes(bytes(data))
    try:
        convert(path, folder / "out")
    except ModelError:
        return
    assert config_in(folder / "out")["num_hidden_layers"] == 2


def test_no_room_while_writing_weights_is_told_as_such(tmp_path: Path) -> None:
    path = tiny_llama().write(tmp_path / "tiny.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"\w") as caught:
            convert(path, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def test_standard_error_is_given_back_after_a_failure(tmp_path: Path) -> None:
    before = sys.stderr
    model = tiny_llama("no-such-rule")
    with pytest.raises(ModelError, match="no-such-rule"):
        converted(model, tmp_path)
    assert sys.stderr is before


@pytest.mark.parametrize(
    ("key", "value", "blamed"),
    [
        ("sliding_window", 64, "groups"),
        ("num_hidden_layers", 1, "layers"),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 5.0}, "rope"),
        ("max_position_embeddings", 7, "positions_max"),
    ],
)
def test_a_conversion_that_changes_what_keys_are_seen_is_refused(
    gemma: Path, key: str, value: object, blamed: str
) -> None:
    file = gemma.parent / "tiny.gguf"
    config = config_in(gemma)
    refuse_another_geometry(read_header(file), config, file)
    types = config["layer_types"][:1] if key == "num_hidden_layers" else config["layer_types"]
    with pytest.raises(ModelError, match=blamed):
        refuse_another_geometry(read_header(file), config | {key: value, "layer_types": types}, file)
