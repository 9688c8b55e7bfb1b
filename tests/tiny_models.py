"""Tiny random models of every supported architecture, small enough to be compared with transformers exactly.

Each has 4 to 6 layers, 307 tokens and 512 positions unless the variant is about that. Windows (16 to 32) are much
shorter than the sequences tests should use, and not all of them are multiples of a block. Weights are drawn larger
than usual, so that windows, scaled rotations and soft caps show in the logits.
"""

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

TINY_VOCAB = 307
TINY_POSITIONS = 512

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def tiny_configs() -> dict[str, PretrainedConfig]:
    """A fresh configuration of every variant, by name; the name begins with the model type."""
    return {
        "llama": LlamaConfig(**_sizes(heads=4, kv_heads=4)),
        "llama-gqa3": LlamaConfig(**_sizes(heads=9, kv_heads=3, hidden=72, head_dim=16)),
        "llama-llama3": LlamaConfig(**_sizes(), rope_parameters={"rope_theta": 500_000.0} | LLAMA3),
        "llama-linear": LlamaConfig(**_sizes(), rope_theta=5_000.0, rope_scaling={"type": "linear", "factor": 2.0}),
        "llama-dynamic": LlamaConfig(**_sizes(positions=96), rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        "mistral-window": MistralConfig(**_sizes(), sliding_window=24),
        "mistral-full": MistralConfig(**_sizes(heads=4, kv_heads=1, head_dim=32), sliding_window=None),
        "qwen2": Qwen2Config(**_sizes(heads=3, kv_heads=1, hidden=48)),
        "qwen2-window": Qwen2Config(**_sizes(), use_sliding_window=True, sliding_window=20, max_window_layers=2),
        "qwen2-all-window": Qwen2Config(**_sizes(), use_sliding_window=True, sliding_window=16, max_window_layers=0),
        "qwen3": Qwen3Config(**_sizes(heads=8, kv_heads=2, head_dim=16)),
        "qwen3-yarn": Qwen3Config(**_sizes(head_dim=16), rope_scaling=dict(YARN)),
        "qwen3-window": Qwen3Config(
            **_sizes(head_dim=16), use_sliding_window=True, sliding_window=32, layer_types=_alternating(4)
        ),
        "gemma2": Gemma2Config(**_sizes(head_dim=32), **_gemma(), sliding_window=16, attn_logit_softcapping=5.0),
        "gemma2-types": Gemma2Config(
            **_sizes(heads=4, kv_heads=4, head_dim=16), **_gemma(), sliding_window=17, layer_types=_alternating(4)
        ),
        "gemma3": Gemma3TextConfig(
            **_sizes(heads=4, kv_heads=1, layers=6, head_dim=32),
            **_gemma(),
            sliding_window=32,
            sliding_window_pattern=3,
        ),
        "gemma3-linear": Gemma3TextConfig(
            **_sizes(head_dim=16, layers=6),
            **_gemma(),
            sliding_window=18,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
            rope_local_base_freq=5_000.0,
        ),
        "phi3": Phi3Config(**_sizes(heads=4, kv_heads=4)),
        "phi3-partial": Phi3Config(**_sizes(), partial_rotary_factor=0.75),
        "phi3-window": Phi3Config(**_sizes(), sliding_window=31),
        "phi3-longrope": Phi3Config(**_sizes(), original_max_position_embeddings=80, rope_scaling=_longrope(8)),
        "smollm3": SmolLM3Config(**_sizes(heads=4, kv_heads=1, layers=5)),
        "smollm3-window": SmolLM3Config(
            **_sizes(), use_sliding_window=True, sliding_window=16, no_rope_layers=[1, 0, 1, 0]
        ),
    }


def tiny_model(config: PretrainedConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model with random weights, the same for the same seed; torch's own random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    return model.to(dtype).eval()


def _sizes(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    hidden: int = 64,
    layers: int = 4,
    positions: int = TINY_POSITIONS,
    head_dim: int | None = None,
) -> dict[str, Any]:
    sizes = {
        "vocab_size": TINY_VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    return sizes if head_dim is None else sizes | {"head_dim": head_dim}


def _gemma() -> dict[str, Any]:
    return {"query_pre_attn_scalar": 32, "final_logit_softcapping": 30.0}


def _alternating(layers: int) -> list[str]:
    return ["full_attention" if layer % 2 == 0 else "sliding_attention" for layer in range(layers)]


def _longrope(pairs: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.05 * pair for pair in range(pairs)],
        "long_factor": [2.0 + 0.25 * pair for pair in range(pairs)],
    }
