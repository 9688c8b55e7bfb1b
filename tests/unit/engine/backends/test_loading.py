"""Directories become models that answer as their weights say, or errors that say what is wrong with them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from kvist.base.errors import ModelError
from kvist.base.units import Tokens
from kvist.engine.backends.attention import IMPLEMENTATION
from kvist.engine.backends.cpu.layer import FusedLayer
from kvist.engine.backends.loading import check_model, load_model, weights_bytes
from kvist.geometry.config import geometry_from_config
from kvist.geometry.groups import ModelGeometry
from tiny_engine import Shape, TinyEngine, ask, one_thread, subject
from tiny_models import tiny_configs, tiny_model

CPU = torch.device("cpu")
Weights = dict[str, torch.Tensor]
LAYER = "model.layers.2.self_attn.q_proj"


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def write(folder: Path, name: str = "llama") -> ModelGeometry:
    config = tiny_configs()[name]
    tiny_model(config).save_pretrained(folder)
    return geometry_from_config(json.loads((folder / "config.json").read_text()))


def load(folder: Path, geometry: ModelGeometry, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return load_model(folder, geometry, dtype=dtype, device=CPU)


def rewrite(folder: Path, change: Callable[[Weights], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def reconfigure(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("name", tiny_configs())
def test_every_architecture_is_loaded_with_our_attention(name: str, tmp_path: Path) -> None:
    geometry = write(tmp_path, name)
    model = load(tmp_path, geometry)
    assert model.config._attn_implementation == IMPLEMENTATION
    assert not model.training
    assert {str(each.dtype) for each in model.parameters()} == {"torch.float32"}
    assert {type(layer) for layer in model.get_decoder().layers} == {FusedLayer}


@pytest.mark.parametrize("name", tiny_configs())
def test_every_architecture_stays_as_it_is_where_no_kernels_compute(name: str, tmp_path: Path) -> None:
    geometry = write(tmp_path, name)
    model = load(tmp_path, geometry, torch.float16)
    assert {type(layer).__module__.split(".")[0] for layer in model.get_decoder().layers} == {"transformers"}
    check_model(model, geometry)


def test_what_was_saved_answers_as_before(tmp_path: Path) -> None:
    geometry = write(tmp_path, "gemma3")
    known = subject("gemma3")
    prompt = list(range(3, 60))
    loaded = replace(known, served=load(tmp_path, geometry))
    before, after = (ask(TinyEngine(each, Shape()), "a", prompt, 5) for each in (known, loaded))
    assert before.tokens == after.tokens
    assert torch.equal(torch.stack(before.logits), torch.stack(after.logits))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_is_the_one_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    model = load(tmp_path, write(tmp_path), dtype)
    assert {each.dtype for each in model.parameters()} == {dtype}
    assert weights_bytes(model) == 2 * sum(each.numel() for each in model.parameters())


def test_shared_weights_are_counted_once() -> None:
    config = tiny_configs()["llama"]
    config.tie_word_embeddings = True
    tied, apart = weights_bytes(tiny_model(config)), weights_bytes(tiny_model(tiny_configs()["llama"]))
    assert apart - tied == config.vocab_size * config.hidden_size * 4


# Files that do not make a model


@pytest.mark.parametrize("kept", [0, 4, 8, 9, 1000, 0.5, 0.999], ids=str)
def test_weights_cut_short_are_refused(kept: float, tmp_path: Path) -> None:
    geometry = write(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(ModelError, match="cannot load the model in"):
        load(tmp_path, geometry)


def lose(weights: Weights) -> None:
    del weights[f"{LAYER}.weight"]


def shrink(weights: Weights) -> None:
    weights[f"{LAYER}.weight"] = weights[f"{LAYER}.weight"][:-2].clone()


def flatten(weights: Weights) -> None:
    weights[f"{LAYER}.weight"] = weights[f"{LAYER}.weight"].flatten().clone()


def add(weights: Weights) -> None:
    weights[f"{LAYER}.bias"] = torch.zeros(64)


def rename(weights: Weights) -> None:
    for name in list(weights):
        weights[f"encoder.{name}"] = weights.pop(name)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lose, rf"1 weights in .* are missing, '{LAYER}.weight'"),
        (shrink, rf"1 weights in .* are of another shape, '{LAYER}.weight'"),
        (flatten, rf"1 weights in .* are of another shape, '{LAYER}.weight'"),
        (add, rf"1 weights in .* are unknown to the configuration, '{LAYER}.bias'"),
        (rename, r"39 weights in .* are missing"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_weights_of_another_model_are_refused_and_never_made_up(
    change: Callable[[Weights], None], complaint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    geometry = write(tmp_path)
    rewrite(tmp_path, change)
    capfd.readouterr()
    with pytest.raises(ModelError, match=complaint):
        load(tmp_path, geometry)
    assert capfd.readouterr() == ("", ""), "the error says it all"


def test_old_files_with_rotary_tables_are_still_good(tmp_path: Path) -> None:
    geometry = write(tmp_path)

    def tabulate(weights: Weights) -> None:
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    rewrite(tmp_path, tabulate)
    assert load(tmp_path, geometry).config.num_hidden_layers == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"num_hidden_layers": 3},
        {"num_hidden_layers": 5},
        {"vocab_size": 308},
        {"num_key_value_heads": 1},
        {"attention_bias": True},
        {"intermediate_size": -3},
        {"hidden_act": "nonsense"},
        {"hidden_act": 3},
        {"rms_norm_eps": "small"},
        {"pad_token_id": 10**6},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": []},
    ],
    ids=str,
)
def test_a_configuration_of_another_model_is_refused(fields: dict[str, Any], tmp_path: Path) -> None:
    geometry = write(tmp_path)
    reconfigure(tmp_path, **fields)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load(tmp_path, geometry)


def test_no_code_of_the_directory_is_run(tmp_path: Path) -> None:
    geometry = write(tmp_path)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    reconfigure(tmp_path, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"})
    load(tmp_path, geometry)
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    geometry = write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no file named model.safetensors"):
        load(tmp_path, geometry)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "{}", '{"model_type": "nonsense"}'])
def test_a_configuration_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    geometry = write(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=str(tmp_path)):
        load(tmp_path, geometry)


def test_an_empty_or_absent_directory_is_refused(tmp_path: Path) -> None:
    geometry = write(tmp_path / "whole")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent", tmp_path / "whole" / "config.json"):
        with pytest.raises(ModelError, match="cannot load the model in"):
            load(folder, geometry)


# Models that are not what their geometry says


@pytest.mark.parametrize("window", [8, 23, 25, None])
def test_another_window_is_refused(window: int | None) -> None:
    model, geometry = subject("mistral-window").plain, subject("mistral-window").geometry
    (group,) = geometry.groups
    wrong = replace(geometry, groups=(replace(group, window=None if window is None else Tokens(window)),))
    with pytest.raises(ModelError, match=rf"layer 0 attends to a window of 24, its configuration says {window}"):
        check_model(model, wrong)
    check_model(model, geometry)


def test_layers_in_the_wrong_groups_are_refused() -> None:
    model, geometry = subject("gemma3").plain, subject("gemma3").geometry
    full, sliding = geometry.groups
    swapped = (replace(full, layers=sliding.layers), replace(sliding, layers=full.layers))
    with pytest.raises(ModelError, match=r"attends to a window of"):
        check_model(model, replace(geometry, groups=swapped))


def test_layers_too_many_or_too_few_are_refused() -> None:
    model, geometry = subject("llama").plain, subject("llama").geometry
    (group,) = geometry.groups
    for layers in ((0, 1, 2), (0, 1, 2, 3, 4), ()):
        with pytest.raises(ModelError, match=r"attention in layers \[0, 1, 2, 3\], its configuration says"):
            check_model(model, replace(geometry, groups=(replace(group, layers=layers),)))


def test_a_window_that_no_sequence_outgrows_is_full_attention(tmp_path: Path) -> None:
    write(tmp_path, "mistral-window")
    for window in (511, 512, 513):
        reconfigure(tmp_path, sliding_window=window)
        geometry = geometry_from_config(json.loads((tmp_path / "config.json").read_text()))
        assert geometry.groups[0].window == (511 if window == 511 else None)
        check_model(load(tmp_path, geometry, torch.float16), geometry)


def test_a_window_that_the_architecture_does_not_read_is_none(tmp_path: Path) -> None:
    write(tmp_path)
    reconfigure(tmp_path, sliding_window=16)
    geometry = geometry_from_config(json.loads((tmp_path / "config.json").read_text()))
    assert [group.window for group in geometry.groups] == [None]
    check_model(load(tmp_path, geometry, torch.float16), geometry)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_in_memory_of_their_own_and_tied_ones_still_one(tied: bool, tmp_path: Path) -> None:
    """Whoever changes or shortens a file after it was read changes nothing in here."""
    config = tiny_configs()["llama"]
    config.tie_word_embeddings = tied
    tiny_model(config).save_pretrained(tmp_path)
    model = load(tmp_path, geometry_from_config(json.loads((tmp_path / "config.json").read_text())))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.named_parameters())
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert weights_bytes(model) == sum(tensor.nbytes for tensor in before.values())
