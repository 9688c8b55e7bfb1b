"""What one of several accelerators keeps."""

import pytest

from kvist.base.errors import ConfigError
from kvist.base.units import Tokens
from kvist.geometry.layers import (
    AttentionLayer,
    LatentLayer,
    PlainLayer,
    RecurrentLayer,
    SharedLayer,
    StateTensor,
)
from kvist.planner.sharding import Parallel, rank_layers, sharded, stage_layers
from planned_models import FULL, model_of

STATE = RecurrentLayer(
    tensors=(StateTensor(name="conv", shape=(8, 3)), StateTensor(name="ssm", shape=(4, 2), sharded=False))
)


def test_heads_are_divided_and_then_repeated() -> None:
    layer = AttentionLayer(kv_heads=4, head_dim_k=8, head_dim_v=4, window=Tokens(16))
    heads = [rank_layers(model_of(layer), Parallel(tensor=tensor), 0)[0] for tensor in (1, 2, 4, 8)]
    assert [each.kv_heads for each in heads if isinstance(each, AttentionLayer)] == [4, 2, 1, 1]
    assert all(isinstance(each, AttentionLayer) and each.window == 16 for each in heads)


def test_latents_are_repeated_and_states_divided_where_they_can_be() -> None:
    latent = LatentLayer(latent=8, rope=2)
    layers = sharded(model_of(latent, STATE, PlainLayer(), SharedLayer(source=0)), Parallel(tensor=4))
    conv, ssm = StateTensor(name="conv", shape=(2, 3)), StateTensor(name="ssm", shape=(4, 2), sharded=False)
    assert layers == (latent, RecurrentLayer(tensors=(conv, ssm)), PlainLayer(), SharedLayer(source=0))


@pytest.mark.parametrize(
    ("layers", "pipeline", "sizes"),
    [(80, 4, [20, 20, 20, 20]), (61, 4, [15, 15, 16, 15]), (62, 4, [15, 16, 16, 15]), (63, 4, [16, 16, 16, 15])],
)
def test_what_is_over_goes_before_the_last_stage(layers: int, pipeline: int, sizes: list[int]) -> None:
    stages = stage_layers(layers, pipeline)
    assert [len(stage) for stage in stages] == sizes
    assert [index for stage in stages for index in stage] == list(range(layers))


def test_a_stage_has_its_layers_and_what_they_read() -> None:
    model = model_of(PlainLayer(), FULL, FULL, SharedLayer(source=2))
    assert rank_layers(model, Parallel(pipeline=2), 0) == (PlainLayer(), FULL)
    assert rank_layers(model, Parallel(pipeline=2), 1) == (FULL, SharedLayer(source=0))


def test_kv_of_another_stage_can_not_be_read() -> None:
    model = model_of(FULL, FULL, SharedLayer(source=0), FULL)
    with pytest.raises(ConfigError, match=r"layer 2 reads the KV of layer 0, .* use tensor parallelism"):
        rank_layers(model, Parallel(pipeline=2), 1)


def test_what_does_not_divide_is_refused_with_what_does() -> None:
    with pytest.raises(ConfigError, match="3 does not divide the model's 8 query heads; take one of 1, 2, 4, 8"):
        sharded(model_of(FULL), Parallel(tensor=3))
    three = AttentionLayer(kv_heads=3, head_dim_k=8, head_dim_v=8)
    with pytest.raises(
        ConfigError, match=r"4 neither divides the model's 3 KV heads .* take one of 1, 3, or a multiple"
    ):
        sharded(model_of(three, query_heads=12), Parallel(tensor=4))
    with pytest.raises(ConfigError, match="16 does not divide the 8 rows of the conv state"):
        sharded(model_of(STATE, query_heads=16), Parallel(tensor=16))
    with pytest.raises(ConfigError, match="pipeline parallelism of 3 is more than the model's 2 layers"):
        rank_layers(model_of(FULL, FULL), Parallel(pipeline=3), 0)


def test_context_parallelism_takes_the_place_of_repeated_heads() -> None:
    model = model_of(FULL, LatentLayer(latent=8, rope=2), STATE)
    assert sharded(model, Parallel(tensor=4, context=2)) == sharded(model, Parallel(tensor=4))
    with pytest.raises(ConfigError, match="with tensor parallelism of 4 and 2 KV heads there are 2"):
        sharded(model, Parallel(tensor=4, context=4))
    window = AttentionLayer(kv_heads=1, head_dim_k=8, head_dim_v=8, window=Tokens(4))
    with pytest.raises(ConfigError, match="context parallelism of 2 does not divide layers that see a window only"):
        sharded(model_of(window), Parallel(tensor=2, context=2))
    with pytest.raises(ConfigError, match="context parallelism of 3 does not divide tensor parallelism of 4"):
        Parallel(tensor=4, context=3)


@pytest.mark.parametrize("value", [0, -1, 65_537, 2.0, True, None, "2"])
@pytest.mark.parametrize("name", ["tensor", "pipeline", "context"])
def test_degrees_are_whole_and_positive(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} parallelism of {value!r} is not in 1..65536"):
        Parallel(**{name: value})  # type: ignore[arg-type]  # what a caller must not pass


def test_accelerators_are_tensor_times_pipeline() -> None:
    assert Parallel(tensor=8, pipeline=2, context=4).ranks == 16
