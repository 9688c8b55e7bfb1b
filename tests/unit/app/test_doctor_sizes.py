"""Tiers against the KV that they are for."""

import json
from pathlib import Path

import pytest

from kvist.app.doctor_findings import Finding
from kvist.app.doctor_sizes import Needs, model_findings, read_config, size_findings
from kvist.app.tier_specs import DiskSpec, DramSpec, PoolSpec
from kvist.base.errors import ModelError
from kvist.geometry.config import geometry_from_config

MIB = 2**20
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
BYTES_PER_TOKEN = 4 * 4 * (64 + 64) * 2
NEEDS = Needs(geometry=geometry_from_config(LLAMA), prompt_tokens=1024)
PROMPT = 1024 * BYTES_PER_TOKEN
DISK = DiskSpec(name="disk", path="/x", bytes=10 * PROMPT)


def dram(size: int, **more: object) -> DramSpec:
    return DramSpec(name="dram", bytes=size, **more)


def statuses(found: list[Finding]) -> list[str]:
    return [each.status for each in found]


def test_kv_takes_what_the_geometry_says() -> None:
    assert NEEDS.bytes_of(1024) == PROMPT
    half = Needs(geometry=NEEDS.geometry, prompt_tokens=1, cache_dtype="fp8_e4m3")
    assert half.bytes_of(1024) == PROMPT // 2
    wide = geometry_from_config(LLAMA | {"torch_dtype": "float32"})
    assert Needs(geometry=wide, prompt_tokens=1).bytes_of(1024) == 2 * PROMPT


def test_a_window_takes_its_length_at_most() -> None:
    config = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}
    assert Needs(geometry=geometry_from_config(config), prompt_tokens=1).bytes_of(1024) == PROMPT // 2


def test_a_tier_that_holds_no_prompt_is_a_note() -> None:
    (small, large) = size_findings([dram(PROMPT - 1), DISK], NEEDS)
    assert (small.status, large.status) == ("note", "ok")
    assert "10 prompts" in large.text
    (quota,) = size_findings([dram(10 * PROMPT, tenant_bytes=PROMPT - 1)], NEEDS)
    assert (quota.status, "tenant_bytes" in quota.text) == ("note", True)


def test_tiers_no_larger_than_vllms_own_memory_are_a_note() -> None:
    needs = Needs(geometry=NEEDS.geometry, prompt_tokens=1024, own_bytes=20 * PROMPT)
    assert statuses(list(size_findings([dram(2 * PROMPT), DISK], needs))) == ["ok", "ok", "note"]
    assert statuses(list(size_findings([dram(30 * PROMPT), DISK], needs))) == ["ok", "ok"]
    pool = PoolSpec(name="pool", url="redis://127.0.0.1")
    assert statuses(list(size_findings([dram(2 * PROMPT), pool], needs))) == ["ok"]
    assert list(size_findings([pool], needs)) == []


def model_in(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(content)
    return folder


def test_a_model_is_found_by_its_directory_and_in_the_hubs_cache(tmp_path: Path) -> None:
    whole = json.dumps(LLAMA)
    assert read_config(str(model_in(tmp_path / "m", whole)), {}) == LLAMA
    model_in(tmp_path / "hub" / "models--some--llama" / "snapshots" / "abc", whole)
    assert read_config("some/llama", {"HF_HOME": str(tmp_path)}) == LLAMA
    assert read_config("some/llama", {"HF_HUB_CACHE": str(tmp_path / "hub")}) == LLAMA


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "{}", "[" * 100_000, json.dumps(LLAMA | {"hidden_size": -1})])
def test_a_configuration_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        geometry_from_config(read_config(str(model_in(tmp_path / "m", content)), {}))


@pytest.mark.parametrize("model", ["", "no/such", "../../etc", "a\0b", "x" * 5000, "a/" + "b" * 300])
def test_a_model_that_is_not_here_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        read_config(model, {"HF_HOME": str(tmp_path)})


MAMBA = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 1000,
    "intermediate_size": 512,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "max_position_embeddings": 4096,
}


def test_a_model_with_recurrent_state_does_not_start() -> None:
    (found,) = model_findings(MAMBA)
    assert (found.check, found.status) == ("model", "problem")
    assert "6 of the model's 8 layers" in found.text


@pytest.mark.parametrize("config", [LLAMA, {}, {"model_type": "nobody's"}, MAMBA | {"hidden_size": -1}])
def test_of_other_models_nothing_is_said(config: dict[str, object]) -> None:
    assert list(model_findings(config)) == []
