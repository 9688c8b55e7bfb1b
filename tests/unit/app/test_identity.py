"""Every fact that shapes KV is part of its name, and nothing else is."""

import dataclasses
import json
from pathlib import Path

import pytest

from kvist.app.config import ServeConfig, read_config
from kvist.app.identity import kv_facts, kv_namespace
from kvist.base.units import Tokens
from kvist.blocks.keys import namespace_of
from kvist.geometry.groups import KvGroup, ModelGeometry

GEOMETRY = ModelGeometry(
    architecture="LlamaForCausalLM",
    layers=2,
    query_heads=2,
    hidden_size=8,
    vocab_size=10,
    positions_max=Tokens(64),
    groups=(KvGroup(layers=(0, 1), kv_heads=1, head_dim_k=4, head_dim_v=4),),
    rope=(("theta", "10000.0"),),
    dtype="float32",
)
TIERS = read_config({"tier": ["dram=1MiB"]})


def model(folder: Path, weights: bytes = b"weights", epsilon: float = 1e-5) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps({"rms_norm_eps": epsilon}))
    return folder


def changed(config: ServeConfig, **fields: object) -> ServeConfig:
    return config.model_copy(update=fields)


def test_the_same_model_has_one_name_wherever_it_lies_and_whatever_it_is_called(tmp_path: Path) -> None:
    names = {
        kv_namespace(model(tmp_path / "a"), GEOMETRY, TIERS),
        kv_namespace(model(tmp_path / "b"), GEOMETRY, changed(TIERS, served_model_name="other", port=1, audit=True)),
    }
    assert len(names) == 1


def test_whatever_shapes_kv_changes_the_name(tmp_path: Path) -> None:
    group = GEOMETRY.groups[0]
    plain = model(tmp_path / "plain")
    names = [
        kv_namespace(plain, GEOMETRY, TIERS),
        kv_namespace(model(tmp_path / "weights", weights=b"weightz"), GEOMETRY, TIERS),
        kv_namespace(model(tmp_path / "epsilon", epsilon=1e-6), GEOMETRY, TIERS),
        kv_namespace(plain, GEOMETRY, changed(TIERS, dtype="float32")),
        kv_namespace(plain, GEOMETRY, changed(TIERS, block_tokens=32)),
        kv_namespace(plain, dataclasses.replace(GEOMETRY, rope=(("theta", "20000.0"),)), TIERS),
        kv_namespace(
            plain, dataclasses.replace(GEOMETRY, groups=(dataclasses.replace(group, window=Tokens(16)),)), TIERS
        ),
        kv_namespace(plain, dataclasses.replace(GEOMETRY, groups=(dataclasses.replace(group, head_dim_v=8),)), TIERS),
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("fact", kv_facts(GEOMETRY, TIERS, config_digest="c", weights="w"))
def test_every_fact_counts_the_adapter_too(fact: str) -> None:
    facts = kv_facts(GEOMETRY, TIERS, config_digest="c", weights="w")
    assert namespace_of({**facts, fact: "something else"}) != namespace_of(facts)


def test_without_tiers_every_process_has_a_name_of_its_own(tmp_path: Path) -> None:
    folder = model(tmp_path / "a")
    assert kv_namespace(folder, GEOMETRY, ServeConfig()) != kv_namespace(folder, GEOMETRY, ServeConfig())
