"""Models that planning is tested with: published configurations, as their config.json has them."""

from kvist.base.units import Bytes, Tokens
from kvist.geometry.layers import AttentionLayer, KvLayer, ModelLayers, Parameters
from kvist.geometry.published import model_layers
from kvist.planner.memory import Machine

GIB = 2**30


def _llama(layers: int, hidden: int, heads: int, intermediate: int, **more: object) -> ModelLayers:
    config: dict[str, object] = {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "intermediate_size": intermediate,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    return model_layers(config | more)


LLAMA_8B = _llama(32, 4096, 32, 14_336)
LLAMA_70B = _llama(80, 8192, 64, 28_672)
LLAMA_405B = _llama(126, 16_384, 128, 53_248)
QWEN2_72B = _llama(80, 8192, 64, 29_568, model_type="qwen2", vocab_size=152_064)
QWEN1_32B = _llama(64, 5120, 40, 27_392, model_type="qwen2", vocab_size=152_064, max_position_embeddings=32_768)
COMMAND_R = _llama(
    40, 8192, 64, 22_528, model_type="cohere", num_key_value_heads=64, vocab_size=256_000, tie_word_embeddings=True
)
SMOLLM2 = _llama(
    30, 576, 9, 1536, num_key_value_heads=3, vocab_size=49_152, max_position_embeddings=8192, tie_word_embeddings=True
)

DEEPSEEK_V3 = model_layers(
    {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "n_group": 8,
        "topk_group": 4,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 129_280,
        "max_position_embeddings": 163_840,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
)


def _gemma3(layers: int, heads: int, kv_heads: int, **more: object) -> ModelLayers:
    config: dict[str, object] = {
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16",
    }
    return model_layers(config | more)


GEMMA3_270M = _gemma3(
    18,
    4,
    1,
    hidden_size=640,
    intermediate_size=2048,
    vocab_size=262_144,
    sliding_window=512,
    max_position_embeddings=32_768,
)
GEMMA3_4B = _gemma3(
    34,
    8,
    4,
    hidden_size=2560,
    intermediate_size=10_240,
    vocab_size=262_208,
    sliding_window=1024,
    max_position_embeddings=131_072,
)


def _gpt_oss(layers: int, experts: int) -> ModelLayers:
    return model_layers(
        {
            "model_type": "gpt_oss",
            "num_hidden_layers": layers,
            "hidden_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "intermediate_size": 2880,
            "num_local_experts": experts,
            "num_experts_per_tok": 4,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
            "vocab_size": 201_088,
            "max_position_embeddings": 131_072,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
        }
    )


GPT_OSS_120B, GPT_OSS_20B = _gpt_oss(36, 128), _gpt_oss(24, 32)


def _qwen3_5(layers: int, kv_heads: int, value_heads: int, **more: object) -> ModelLayers:
    config: dict[str, object] = {
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    return model_layers(config | more)


QWEN3_5_27B = _qwen3_5(
    64, 4, 48, model_type="qwen3_5_text", hidden_size=5120, num_attention_heads=24, intermediate_size=17_408
)
"""Qwen3.6-27B and Qwen3.8-27B have the same shapes."""

QWEN3_5_35B = _qwen3_5(
    40,
    2,
    32,
    model_type="qwen3_5_moe_text",
    hidden_size=2048,
    num_attention_heads=16,
    num_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)


def model_of(*layers: KvLayer, query_heads: int = 8, positions_max: int = 131_072) -> ModelLayers:
    """A small model with these layers."""
    return ModelLayers(
        model_type="any",
        layers=layers,
        hidden_size=64,
        query_heads=query_heads,
        head_dim=8,
        intermediate_size=128,
        vocab_size=300,
        positions_max=Tokens(positions_max),
        dtype="bfloat16",
        weight_bits=None,
        parameters=Parameters(total=100_000, active=100_000, embedding=19_200),
    )


FULL = AttentionLayer(kv_heads=2, head_dim_k=8, head_dim_v=8)


def machine_of(gib: float, *, link: float | None = 64e9) -> Machine:
    """An accelerator with so much memory, and figures of today's for the rest."""
    return Machine(
        name="any",
        bytes_total=Bytes(int(gib * GIB)),
        bytes_per_s=4.8e12,
        flops_bf16=989e12,
        flops_fp8=1979e12,
        host_link_bytes_per_s=link,
    )
