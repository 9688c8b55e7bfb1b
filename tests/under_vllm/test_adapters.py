"""Adapters are worlds of their own: by name, and by what lies in their files where vLLM itself looks at names only."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from under_vllm.conftest import Tokens
from under_vllm.place import Place
from under_vllm.server import VllmServer, VllmSettings
from under_vllm.talk import check_same, forget, settled

NAME = "smollm2"
RANK = 4


def write_adapter(folder: Path, model: Path, seed: int) -> Path:
    """An adapter of random weights for the queries and values of every layer."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_key_value_heads"]
    values = heads * (hidden // config["num_attention_heads"])
    dice = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, size in (("q_proj", hidden), ("v_proj", values)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{stem}.lora_A.weight"] = dice.normal(0, 0.05, (RANK, hidden)).astype(np.float32)
            tensors[f"{stem}.lora_B.weight"] = dice.normal(0, 0.05, (size, RANK)).astype(np.float32)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(described | {"bias": "none"}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def settings(
    model: Callable[[str], Path], place: Place, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], VllmSettings]:
    folder = tmp_path_factory.mktemp("adapters")

    def settings(seed: int) -> VllmSettings:
        one, two = (
            write_adapter(folder / name, model(NAME), each) for name, each in (("one", seed), ("two", seed + 1))
        )
        flags = ("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules")
        return VllmSettings(model=model(NAME), kvist=place.kvist("disk"), flags=(*flags, f"one={one}", f"two={two}"))

    return settings


def test_adapters_find_only_their_own(settings: Callable[[int], VllmSettings], tokens: Tokens) -> None:
    prompt = tokens(NAME, 0, 500)
    with VllmServer(settings(1)) as server:
        cold = {}
        for name in ("m", "one", "two"):
            cold[name] = server.ask(prompt, model=name)
            assert cold[name].cached_tokens == 0
            forget(server)
        assert len({answer.logprobs[0].values().__iter__().__next__() for answer in cold.values()}) == 3
        warm = {name: server.ask(prompt, model=name) for name in cold}
        assert all(answer.cached_tokens == 480 for answer in warm.values())
        check_same([server.ask(prompt, model=name) for name in cold], list(warm.values()))
    with VllmServer(settings(1)) as server:
        check_same([server.ask(prompt, model=name) for name in cold], list(warm.values()))
    with VllmServer(settings(7)) as server:  # the same names and paths, and other files
        others = {name: server.ask(prompt, model=name) for name in cold}
        assert [answer.cached_tokens for answer in others.values()] == [480, 0, 0]
        assert settled(server)["kvist_connector_detached"] == 0
