"""Objects with the attributes that vLLM's have, as far as they are read; classes have its names, which are read too."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvist.connectors.vllm.reading import Foreign


@dataclass
class FullAttentionSpec:
    """vLLM's, of layers that see every position."""

    block_size: int = 16
    unpadded_page_size_bytes: int = 4096
    prefix_cacheable: bool = True
    prefix_replay_tokens: int = 0


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    """vLLM's, of layers with latent KV."""


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    """vLLM's, of layers with a window."""

    sliding_window: int = 512
    extra_retained_tokens: int = 0


@dataclass
class ChunkedLocalAttentionSpec(FullAttentionSpec):
    """vLLM's, of layers that see their chunk."""

    attention_chunk_size: int = 8192


@dataclass
class MambaSpec(FullAttentionSpec):
    """vLLM's, of recurrent layers."""


@dataclass
class RSWASpec(FullAttentionSpec):
    """vLLM's, of a kind that nobody has looked at."""


@dataclass
class UniformTypeKVCacheSpecs:
    """vLLM's, of layers that have a specification each."""

    kv_cache_specs: dict[str, object]


def group(spec: object, *layers: str, **changed: object) -> Foreign:
    """One of vLLM's KV cache groups."""
    given: dict[str, object] = {"enable_kv_transfer": True, "host_resident": False} | changed
    return SimpleNamespace(layer_names=list(layers) or ["layer.0"], kv_cache_spec=spec, **given)


def kv_cache_config(*groups: object, hash_block_size: int | None = 16) -> Foreign:
    """What vLLM knows of its KV."""
    return SimpleNamespace(
        kv_cache_groups=list(groups), hash_block_size=hash_block_size, num_blocks=100, kv_tp_replicas=1
    )


@dataclass
class Configured:
    """A model's configuration, as the library that reads it hands it over."""

    values: Any = field(default_factory=lambda: {"hidden_size": 576})

    def to_dict(self) -> Any:
        """All of it."""
        return self.values


def model_config(**changed: object) -> Foreign:
    """What vLLM knows of a model."""
    given: dict[str, object] = {
        "model": "/models/smol",
        "revision": None,
        "hf_config": Configured(),
        "dtype": "torch.bfloat16",
        "quantization": None,
        "quantization_config": None,
        "multimodal_config": None,
        "trust_remote_code": False,
        "code_revision": None,
        "max_model_len": 8192,
    }
    return SimpleNamespace(**given | changed)


def vllm_config(**changed: object) -> Foreign:
    """Everything that vLLM was told."""
    parallel = {
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "world_size": 1,
        "enable_fault_tolerance": False,
    }
    transfer = {"kv_load_failure_policy": "recompute", "kv_role": "kv_both", "kv_connector_extra_config": {}}
    given: dict[str, object] = {
        "model_config": model_config(),
        "cache_config": SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256"),
        "parallel_config": SimpleNamespace(**parallel),
        "kv_transfer_config": SimpleNamespace(**transfer),
        "load_config": SimpleNamespace(load_format="auto", download_dir=None),
        "scheduler_config": SimpleNamespace(max_num_batched_tokens=2048),
        "device_config": SimpleNamespace(device_type="cpu"),
        "speculative_config": None,
        "lora_config": None,
        "max_concurrent_batches": 1,
        "compilation_config": SimpleNamespace(static_forward_context={"layer.0": SimpleNamespace(isa="amx")}),
    }
    return SimpleNamespace(**given | changed)


def request(name: str = "r", **changed: object) -> Foreign:
    """One of vLLM's requests."""
    given: dict[str, object] = {
        "num_tokens": 40,
        "num_prompt_tokens": 33,
        "num_computed_tokens": 16,
        "block_hashes": [b"a" * 32, b"b" * 32],
        "cache_salt": None,
        "lora_request": None,
        "skip_reading_prefix_cache": False,
        "resumable": False,
    }
    return SimpleNamespace(request_id=name, **given | changed)


def scheduler_output(**changed: object) -> Foreign:
    """What vLLM's scheduler has decided for a step."""
    given: dict[str, object] = {
        "num_scheduled_tokens": {},
        "finished_req_ids": set(),
        "preempted_req_ids": None,
        "kv_connector_block_state": None,
    }
    return SimpleNamespace(**given | changed)


@dataclass
class Tables:
    """Where vLLM says which blocks requests have."""

    blocks: dict[str, tuple[list[int], ...]]

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...] | None:
        """Of one request."""
        return self.blocks.get(request_id)
