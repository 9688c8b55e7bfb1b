"""Useful bytes of tokens and sequences."""

from kvist.base.units import Tokens
from kvist.geometry.layers import AttentionLayer, LatentLayer, PlainLayer, RecurrentLayer, SharedLayer, StateTensor
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.useful import bytes_fixed, bytes_per_token, bytes_per_token_beyond_windows, reach, useful_bytes

FORM = KvFormat(kv=kv_dtype("bfloat16"))
FULL = AttentionLayer(kv_heads=1, head_dim_k=4, head_dim_v=4)  # 16 B per token
WINDOW = AttentionLayer(kv_heads=1, head_dim_k=4, head_dim_v=4, window=Tokens(10))
CHUNK = AttentionLayer(kv_heads=1, head_dim_k=4, head_dim_v=4, chunk=Tokens(20))
LATENT = LatentLayer(latent=3, rope=1)  # 8 B per token
STATE = RecurrentLayer(tensors=(StateTensor(name="ssm", shape=(5, 10)),))  # 100 B
MODEL = (FULL, WINDOW, CHUNK, LATENT, STATE, SharedLayer(source=0), PlainLayer())


def test_reach_is_the_window_or_the_chunk() -> None:
    assert [reach(layer) for layer in MODEL] == [None, 10, 20, None, None, None, None]


def test_each_layer_counts_as_far_as_it_keeps() -> None:
    assert bytes_per_token(MODEL, FORM) == 3 * 16 + 8
    assert bytes_per_token_beyond_windows(MODEL, FORM) == 16 + 8
    assert bytes_fixed(MODEL, FORM) == (10 + 20) * 16 + 100
    assert [useful_bytes(MODEL, FORM, tokens) for tokens in (0, 1, 15, 1000)] == [
        0,
        56 + 100,
        15 * 24 + 10 * 16 + 15 * 16 + 100,
        1000 * 24 + 30 * 16 + 100,
    ]


def test_a_model_without_anything_takes_nothing() -> None:
    assert (bytes_per_token((), FORM), bytes_fixed((), FORM), useful_bytes((), FORM, 10)) == (0, 0, 0)
