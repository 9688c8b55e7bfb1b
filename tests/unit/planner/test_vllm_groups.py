"""vLLM's groups: blocks of one size, about as many layers in each."""

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.geometry.layers import (
    AttentionLayer,
    KvLayer,
    LatentLayer,
    PlainLayer,
    RecurrentLayer,
    SharedLayer,
    StateTensor,
)
from kvist.planner.kv_dtype import KvFormat, kv_dtype
from kvist.planner.vllm_groups import VllmGroup, padding_layers, vllm_groups

FORM = KvFormat(kv=kv_dtype("bfloat16"), ssm="float32")
FULL = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64)
WINDOW = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64, window=Tokens(128))
CHUNK = AttentionLayer(kv_heads=4, head_dim_k=64, head_dim_v=64, chunk=Tokens(8192))
LATENT = LatentLayer(latent=512, rope=64)
STATE = RecurrentLayer(tensors=(StateTensor(name="ssm", shape=(16, 128, 128)),))  # 1 MiB in float32


def groups_of(*layers: KvLayer, block_tokens: int = 16) -> tuple[VllmGroup, ...]:
    return vllm_groups(layers, FORM, block_tokens)


def layers_of(groups: tuple[VllmGroup, ...]) -> list[tuple[int, ...]]:
    return [group.layers for group in groups]


def test_layers_that_keep_the_same_tokens_are_one_group_whatever_their_sizes() -> None:
    wide = AttentionLayer(kv_heads=3, head_dim_k=192, head_dim_v=128)
    (group,) = groups_of(FULL, wide, LATENT, FULL)
    assert (group.layers, group.kind, group.block_tokens) == ((0, 1, 2, 3), "full", 16)
    assert group.bytes_of(range(4)) == 16 * (2 * 1024 + 3 * 320 * 2 + 1152)
    assert group.bytes_of(range(1, 2)) == 16 * 3 * 320 * 2
    (windows,) = groups_of(WINDOW, WINDOW)
    assert (windows.kind, windows.reach) == ("window", 128)


def test_layers_without_kv_of_their_own_are_in_no_group() -> None:
    assert layers_of(groups_of(PlainLayer(), FULL, SharedLayer(source=1), FULL)) == [(1, 3)]
    assert groups_of(PlainLayer()) == ()


def test_the_rarer_kind_says_how_many_layers_a_group_has() -> None:
    layers = [FULL if index % 6 == 5 else WINDOW for index in range(18)]
    assert layers_of(groups_of(*layers)) == [
        (0, 6, 12),
        (1, 7, 13),
        (2, 8, 14),
        (3, 9, 15),
        (4, 10, 16),
        (5, 11, 17),
    ]


def test_kinds_of_about_as_many_layers_are_a_group_each() -> None:
    groups = groups_of(*[FULL] * 3, *[WINDOW] * 4)
    assert layers_of(groups) == [(0, 1, 2), (3, 4, 5, 6)]
    assert padding_layers(groups) == 1
    assert layers_of(groups_of(*[FULL] * 2, *[WINDOW] * 3)) == [(0, 1), (2, 4), (3,)]
    assert layers_of(groups_of(FULL, CHUNK, CHUNK)) == [(0,), (1,), (2,)]


def test_smaller_blocks_hold_more_tokens_until_they_are_of_one_size() -> None:
    narrow = AttentionLayer(kv_heads=1, head_dim_k=64, head_dim_v=64)
    full, window = groups_of(narrow, WINDOW)
    assert (full.block_tokens, window.block_tokens) == (64, 16)
    assert full.bytes_of(range(2)) == window.bytes_of(range(2)) == 16 * 1024


def test_blocks_that_do_not_divide_are_padded_unless_they_are_of_latents() -> None:
    odd = AttentionLayer(kv_heads=3, head_dim_k=64, head_dim_v=64)
    full, window = groups_of(odd, WINDOW)
    assert full.blocks[0].bytes_used == 16 * 768
    assert full.bytes_of(range(2)) == window.bytes_of(range(2)) == 16 * 1024
    with pytest.raises(ConfigError, match="those of 18432 B of the latent layers do not divide 131072 B of others"):
        groups_of(LATENT, AttentionLayer(kv_heads=32, head_dim_k=64, head_dim_v=64, chunk=Tokens(64)))


def test_windows_beside_latents_that_can_not_grow_are_kept_whole() -> None:
    wide = AttentionLayer(kv_heads=32, head_dim_k=64, head_dim_v=64, window=Tokens(64))
    (group,) = groups_of(LATENT, wide, LATENT)
    assert (group.kind, group.reach, group.layers) == ("full", None, (0, 1, 2))
    assert group.bytes_of(range(3)) == 16 * (2 * 1152 + 8192)


def test_attention_blocks_beside_states_are_as_large_as_a_state() -> None:
    full, first, second, third = groups_of(FULL, STATE, STATE, STATE)
    assert (full.kind, full.block_tokens) == ("full", 1024)
    assert all(group.kind == "state" and group.bytes_of(range(4)) == 2**20 for group in (first, second, third))
    more = groups_of(FULL, RecurrentLayer(tensors=(StateTensor(name="ssm", shape=(16, 128, 129)),)))
    assert [group.bytes_of(range(2)) for group in more] == [1040 * 1024] * 2
    assert more[1].blocks[0].bytes_used == 16 * 128 * 129 * 4


def test_larger_blocks_that_were_asked_for_stay_and_latents_take_steps_of_128() -> None:
    assert {group.block_tokens for group in groups_of(FULL, STATE, block_tokens=768)} == {1536}
    assert {group.block_tokens for group in groups_of(LATENT, STATE)} == {1024}


def test_a_model_of_states_only_is_one_group() -> None:
    (group,) = groups_of(STATE, STATE)
    assert (group.kind, group.bytes_of(range(2))) == ("state", 2 * 2**20)
