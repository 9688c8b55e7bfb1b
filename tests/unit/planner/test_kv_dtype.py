"""Bytes of keys and values in every format, against figures worked out by hand."""

import pytest

from kvist.base.errors import ConfigError
from kvist.geometry.layers import AttentionLayer, LatentLayer, PlainLayer, RecurrentLayer, SharedLayer, StateTensor
from kvist.planner.kv_dtype import KV_DTYPES, NOT_IN_VLLM, KvFormat, kv_dtype, vllm_has_kernels

HEAD = AttentionLayer(kv_heads=8, head_dim_k=128, head_dim_v=128)
LATENT = LatentLayer(latent=512, rope=64)


@pytest.mark.parametrize(
    ("name", "numbers", "bits_each"),
    [
        ("float32", 128, 32),
        ("bfloat16", 128, 16),
        ("fp8", 128, 8),
        ("int8_per_token_head", 128, 8.25),
        ("int8_per_token_head", 64, 8.5),
        ("int4_per_token_head", 128, 4.25),
        ("nvfp4", 128, 4.5),
        ("int4_g64", 128, 4.5),
        ("int4_g32", 128, 5.0),
        ("kivi2_g32", 128, 3.0),
    ],
)
def test_bits_of_one_number_with_its_share_of_the_scales(name: str, numbers: int, bits_each: float) -> None:
    assert kv_dtype(name).vector_bytes(numbers) * 8 / numbers == bits_each


def test_a_vector_takes_whole_groups_and_whole_bytes() -> None:
    assert kv_dtype("nvfp4").vector_bytes(17) == 9 + 2  # 68 bits and 16
    assert kv_dtype("int4_per_token_head").vector_bytes(3) == 2 + 4


def test_keys_and_values_each_have_their_scales() -> None:
    wide = AttentionLayer(kv_heads=2, head_dim_k=192, head_dim_v=128, window=16)
    assert kv_dtype("bfloat16").token_bytes(wide) == 2 * 320 * 2
    assert kv_dtype("fp8_per_token_head").token_bytes(wide) == 2 * (320 + 8)
    assert kv_dtype("int8_per_token_head").token_bytes(HEAD) == 8 * 256 + 2 * 8 * 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bfloat16", 1152),
        ("fp8", 576),
        ("fp8_per_token_head", 584),
        ("int4_per_token_head", 296),
        ("fp8_ds_mla", 512 + 16 + 128),
        ("nvfp4_ds_mla", 256 + 32 + 64),
    ],
)
def test_latent_vectors(name: str, expected: int) -> None:
    assert kv_dtype(name).token_bytes(LATENT) == expected


@pytest.mark.parametrize("name", sorted(KV_DTYPES))
def test_each_format_is_for_attention_or_for_latents_and_says_what_else_there_is(name: str) -> None:
    form = kv_dtype(name)
    assert form.for_attention or form.for_latents
    for layer, takes in ((HEAD, form.for_attention), (LATENT, form.for_latents)):
        if takes:
            assert form.token_bytes(layer) > 0
            continue
        with pytest.raises(ConfigError, match=f"KV dtype {name} is .* use one of .*bfloat16"):
            form.token_bytes(layer)


def test_layers_that_keep_no_tokens_take_no_bytes_per_token() -> None:
    state = RecurrentLayer(tensors=(StateTensor(name="conv", shape=(8, 3)), StateTensor(name="ssm", shape=(2, 4, 4))))
    form = KvFormat(kv=kv_dtype("fp8"), conv="bfloat16", ssm="float32")
    assert [form.token_bytes(layer) for layer in (state, SharedLayer(source=0), PlainLayer())] == [0, 0, 0]
    assert form.state_bytes(state) == 24 * 2 + 32 * 4
    assert [form.state_bytes(layer) for layer in (HEAD, LATENT, SharedLayer(source=0), PlainLayer())] == [0, 0, 0, 0]


@pytest.mark.parametrize("name", ["", "auto", "FP8", "bf16", "x" * 10_000])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match="is not known; it is one of float32, bfloat16") as raised:
        kv_dtype(name)
    assert len(str(raised.value)) < 400


def test_what_vllm_lacks_is_among_those_that_are_known() -> None:
    assert set(KV_DTYPES) > NOT_IN_VLLM


def test_what_vllm_plans_memory_for_and_then_cannot_read_is_known() -> None:
    narrow = AttentionLayer(kv_heads=8, head_dim_k=64, head_dim_v=64)
    of_128, of_64, of_latents = (
        {name for name, dtype in KV_DTYPES.items() if not vllm_has_kernels(dtype, [layer, PlainLayer()])}
        for layer in (HEAD, narrow, LATENT)
    )
    assert of_128 == set()
    assert of_64 == {"nvfp4"}
    assert of_latents >= {"int8_per_token_head", "int4_per_token_head", "nvfp4", "fp8_ds_mla", "nvfp4_ds_mla"}
    assert not of_latents & {"bfloat16", "float16", "fp8", "fp8_e4m3"}
