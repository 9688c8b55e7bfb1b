"""Gemma 3n: who reads whose keys and values."""

from typing import Any

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.layers import AttentionLayer, SharedLayer, storing
from kvist.geometry.published import model_layers
from tiny_families import own_fields, tiny_config


def read(**changes: Any) -> Any:
    return model_layers(dict(own_fields("gemma3n_text")) | changes)


def test_the_last_layers_read_the_last_before_them_of_their_kind() -> None:
    model = read()
    assert model.layers[4:] == (SharedLayer(source=2), SharedLayer(source=3))
    assert storing(model.layers) == (0, 1, 2, 3)
    assert model.layers[:2] == (
        AttentionLayer(kv_heads=2, head_dim_k=16, head_dim_v=16, window=32),
        AttentionLayer(kv_heads=2, head_dim_k=16, head_dim_v=16),
    )
    modes = tiny_config("gemma3n_text").kv_sharing_modes
    assert [mode == "reuse" for mode in modes] == [isinstance(layer, SharedLayer) for layer in model.layers]
    assert [index for index, mode in enumerate(modes) if mode == "store"] == [2, 3]


def test_each_fifth_layer_sees_everything_unless_told() -> None:
    layers = read(layer_types=None, num_kv_shared_layers=0).layers
    assert [layer.window for layer in layers] == [32, 32, 32, 32, None, 32]


def test_layers_own_embeddings_are_looked_up() -> None:
    parameters = read().parameters
    assert parameters.embedding == 300 * 48 + 200 * 6 * 8
    assert parameters.total - parameters.active == 200 * 6 * 8


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6; it must be an integer from 0 to 5"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers 5 leaves a kind of layer in layer_types without one"),
        ({"intermediate_size": [40] * 5}, "intermediate_size is a list of 5; it must be an integer, or a list of 6"),
        ({"intermediate_size": [40] * 5 + [0]}, r"intermediate_size\[5\] is 0"),
        ({"altup_num_inputs": 0}, "altup_num_inputs is 0"),
        ({"laurel_rank": "64"}, "laurel_rank is '64'"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        read(**changes)
