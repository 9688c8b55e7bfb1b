"""Bytes of KV, checked against figures published or measured for real models."""

import pytest

from kvist.base.units import Tokens
from kvist.geometry.groups import KvGroup, ModelGeometry


def group(layers: int, heads: int, head_dim: int, window: int | None = None) -> KvGroup:
    return KvGroup(
        layers=tuple(range(layers)),
        kv_heads=heads,
        head_dim_k=head_dim,
        head_dim_v=head_dim,
        window=None if window is None else Tokens(window),
    )


@pytest.mark.parametrize(
    ("layers", "heads", "head_dim", "expected"),
    [
        (32, 8, 128, 131_072),  # Llama 3.1 8B
        (80, 8, 128, 327_680),  # Llama 3 70B, Qwen2.5 72B
        (126, 8, 128, 516_096),  # Llama 3.1 405B
        (30, 3, 64, 23_040),  # SmolLM2 135M
        (3, 1, 256, 3_072),  # Gemma 3 270M, full attention
        (15, 1, 256, 15_360),  # Gemma 3 270M, sliding windows
    ],
)
def test_bytes_per_token_follow_from_the_shapes(layers: int, heads: int, head_dim: int, expected: int) -> None:
    one = group(layers, heads, head_dim)
    assert one.bytes_per_token("bfloat16") == one.bytes_per_token("float16") == expected
    assert one.bytes_per_token("float32") == 2 * expected


def test_keys_and_values_may_differ_in_size() -> None:
    one = KvGroup(layers=(0,), kv_heads=2, head_dim_k=10, head_dim_v=6)
    assert one.bytes_per_token("float32") == 2 * (10 + 6) * 4


def test_a_model_takes_what_its_groups_take() -> None:
    model = ModelGeometry(
        architecture="Gemma3ForCausalLM",
        layers=18,
        query_heads=4,
        hidden_size=640,
        vocab_size=262_144,
        positions_max=Tokens(32_768),
        groups=(group(3, 1, 256), group(15, 1, 256, window=512)),
        rope=(),
        dtype="bfloat16",
    )
    assert model.bytes_per_token("bfloat16") == 18_432
