"""Tiny configurations of every family that can be planned for, and what transformers makes of them.

A model on torch's meta device has every parameter's shape and no memory: the count that the planner's must equal.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

_SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
_SHARED = {"shared_expert_intermediate_size": 28}
_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
_LATENT = {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 2,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 10, "mamba_n_groups": 2, "mamba_d_conv": 4, "mamba_expand": 2}
_NEMOTRON = {
    "layers_block_type": ["mamba", "mlp", "mamba", "attention", "moe", "mlp"],
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 10,
    "ssm_state_size": 6,
    "n_groups": 2,
    "conv_kernel": 4,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 28,
}
_LLAMA4 = {"num_local_experts": 6, "num_experts_per_tok": 1, "head_dim": 16, "attention_chunk_size": 128}
_JAMBA = {"num_experts": 6, "num_experts_per_tok": 2, "attn_layer_period": 3, "attn_layer_offset": 1}
_GEMMA3N = {
    "head_dim": 16,
    "sliding_window": 32,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "altup_num_inputs": 3,
    "laurel_rank": 5,
    "vocab_size_per_layer_input": 200,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biased and tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"head_dim": 20, "sliding_window": 64}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 64}),
    "gemma3_text": ("gemma3_text", {"head_dim": 16, "sliding_window": 64}),
    "phi3": ("phi3", {}),
    "smollm3": ("smollm3", {"mlp_bias": True}),
    "cohere": ("cohere", {"attention_bias": True}),
    "cohere, with norms of heads": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"sliding_window": 64}),
    "mixtral": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": ("qwen2_moe", _MOE | _SHARED),
    "qwen2_moe, in part": ("qwen2_moe", _MOE | _SHARED | {"mlp_only_layers": [3], "decoder_sparse_step": 2}),
    "qwen3_moe": ("qwen3_moe", _MOE | {"head_dim": 16}),
    "qwen3_moe, dense after all": ("qwen3_moe", _MOE | {"decoder_sparse_step": 7}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16}),
    "llama4_text": (
        "llama4_text",
        _LLAMA4 | {"intermediate_size_mlp": 90, "interleave_moe_layer_step": 2},
    ),
    "llama4_text, told": ("llama4_text", _LLAMA4 | {"moe_layers": [1, 2]}),
    "deepseek_v2": ("deepseek_v2", _LATENT | {"q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", _LATENT),
    "deepseek_v3, biased": ("deepseek_v3", _LATENT | {"attention_bias": True, "first_k_dense_replace": 0}),
    "qwen3_next": ("qwen3_next", _MOE | _SHARED | _NET | {"head_dim": 16}),
    "qwen3_5_text": ("qwen3_5_text", _NET | {"head_dim": 16}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", _MOE | _SHARED | _NET | {"head_dim": 16}),
    "jamba": ("jamba", _JAMBA | {"mamba_dt_rank": 5}),
    "jamba, biased": ("jamba", {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False}),
    "bamba": ("bamba", _MAMBA | {"attn_layer_indices": [1, 4]}),
    "bamba, biased": (
        "bamba",
        _MAMBA | {"attn_layer_indices": [2], "mamba_proj_bias": True, "mlp_bias": True, "attention_bias": True},
    ),
    "nemotron_h": ("nemotron_h", _NEMOTRON),
    "nemotron_h, biased": ("nemotron_h", _NEMOTRON | {"use_bias": True, "mlp_bias": True, "moe_latent_size": 14}),
    "lfm2": ("lfm2", {"full_attn_idxs": [1, 4], "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.3}),
    "lfm2, biased": ("lfm2", {"full_attn_idxs": [0], "conv_bias": True, "block_auto_adjust_ff_dim": False}),
    "lfm2_moe": (
        "lfm2_moe",
        _MOE | {"num_dense_layers": 2, "layer_types": ["conv", "conv", "full_attention"] * 2},
    ),
    "gemma3n_text": ("gemma3n_text", _GEMMA3N),
    "gemma3n_text, uneven": ("gemma3n_text", _GEMMA3N | {"intermediate_size": [40, 48, 56, 64, 72, 80]}),
}
"""Model type and fields beyond the common ones, by what is particular."""


def tiny_config(variant: str) -> PreTrainedConfig:
    """A fresh configuration, as transformers' own class."""
    model_type, own = VARIANTS[variant]
    return AutoConfig.for_model(model_type, **json.loads(json.dumps(_SIZES | own)))


def as_file(config: PreTrainedConfig) -> dict[str, object]:
    """What a `config.json` with every field of a configuration would hold."""
    values: dict[str, object] = json.loads(config.to_json_string(use_diff=False))
    return values


def model_on_meta(config: PreTrainedConfig) -> torch.nn.Module:
    """The model that transformers builds, without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def counted_parameters(model: torch.nn.Module) -> int:
    """How many numbers a model has; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def own_fields(variant: str) -> Mapping[str, object]:
    """The fields as an author would write them: the common ones, the particular ones and the model type."""
    model_type, own = VARIANTS[variant]
    return {"model_type": model_type} | _SIZES | own
