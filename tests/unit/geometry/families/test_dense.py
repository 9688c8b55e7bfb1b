"""Families of attention and one feed-forward part."""

import pytest

from kvist.geometry.architectures import SUPPORTED
from kvist.geometry.families.dense import DENSE
from kvist.geometry.layers import AttentionLayer
from kvist.geometry.published import model_layers
from tiny_families import own_fields


def test_all_that_the_engine_serves_can_be_planned_for() -> None:
    assert {known.model_type for known in SUPPORTED} <= set(DENSE)


@pytest.mark.parametrize(
    ("variant", "windows"),
    [
        ("llama", (None,) * 6),
        ("mistral", (64,) * 6),
        ("gemma2", (64, None) * 3),
        ("gemma3_text", (64,) * 5 + (None,)),
        ("cohere2", (64, 64, 64, None, 64, 64)),
    ],
)
def test_layers_slide_where_the_family_does(variant: str, windows: tuple[int | None, ...]) -> None:
    layers = model_layers(own_fields(variant)).layers
    assert tuple(layer.window for layer in layers if isinstance(layer, AttentionLayer)) == windows


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    layer = model_layers(dict(own_fields("mistral")) | {"sliding_window": 512}).layers[0]
    assert layer == AttentionLayer(kv_heads=2, head_dim_k=20, head_dim_v=20)


def test_heads_left_unsaid_are_those_of_the_family() -> None:
    gemma = {key: value for key, value in own_fields("gemma").items() if key not in ("head_dim", "num_key_value_heads")}
    assert model_layers(gemma | {"num_attention_heads": 16}).layers[0] == AttentionLayer(
        kv_heads=16, head_dim_k=256, head_dim_v=256
    )
    command_r = dict(own_fields("cohere")) | {"num_key_value_heads": None}
    assert model_layers(command_r).layers[0] == AttentionLayer(kv_heads=4, head_dim_k=12, head_dim_v=12)
