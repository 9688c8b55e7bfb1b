"""What a model's layers keep."""

from kvist.geometry.layers import AttentionLayer, LatentLayer, PlainLayer, RecurrentLayer, SharedLayer, storing


def test_layers_that_read_anothers_keys_or_have_none_store_nothing() -> None:
    full = AttentionLayer(kv_heads=1, head_dim_k=2, head_dim_v=2)
    layers = (PlainLayer(), full, SharedLayer(source=1), LatentLayer(latent=4, rope=2), RecurrentLayer(tensors=()))
    assert storing(layers) == (1, 3, 4)
    assert storing(()) == ()
