"""What families are put together from."""

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.families.parts import Decoder, Part, Sizes, layer_list, needed, read_sizes, stacked
from kvist.geometry.fields import Fields
from kvist.geometry.heads import HeadRules, Heads
from kvist.geometry.layers import PlainLayer
from kvist.geometry.weights import linear, vectors

SIZES = Sizes(layers=2, hidden=10, positions=64, heads=Heads(query=2, kv=1, dim=5))


def of(**values: object) -> Fields:
    return Fields(values={"model_type": "any"} | values, source="config.json")


def test_a_decoder_adds_up_parts_norms_and_the_last_norm() -> None:
    decoder = Decoder(sizes=SIZES, norms=3)
    decoder.add(PlainLayer(), Part(weights=linear(10, 7), width=7))
    decoder.add(PlainLayer(), Part(weights=linear(10, 9), width=9), Part(weights=vectors(1)))
    description = decoder.done(vectors(1000), tied=True)
    assert description.weights.total == 70 + 90 + 1 + 2 * 3 * 10 + 10 + 1000
    assert (description.layers, description.widest, description.tied) == ((PlainLayer(), PlainLayer()), 9, True)


def test_layers_that_share_a_mixer_need_one_feed_each() -> None:
    one = Part(weights=vectors(1))
    assert stacked(SIZES, [PlainLayer()] * 2, one, [one] * 2, norms=0).done().weights.total == 4 + 10
    with pytest.raises(ValueError, match="shorter"):
        stacked(SIZES, [PlainLayer()] * 2, one, [one])


def test_all_missing_sizes_are_named_at_once() -> None:
    with pytest.raises(ModelError, match="lacks num_hidden_layers, hidden_size, vocab_size, which any needs"):
        read_sizes(of(num_attention_heads=4, max_position_embeddings=64), HeadRules())


def test_a_number_may_have_several_names() -> None:
    assert needed(of(b=3), "a", "b") == 3
    assert needed(of(a=2, b=3), "a", "b") == 2
    with pytest.raises(ModelError, match="lacks a, which any needs"):
        needed(of(), "a", "b")


def test_a_list_of_layers_holds_integers() -> None:
    assert layer_list(of(some=[3, 1]), "some") == (3, 1)
    assert layer_list(of(), "some") == layer_list(of(some=None), "some") == ()
    for wrong in ([True], ["1"], [1.0], [None]):
        with pytest.raises(ModelError, match="some is a list of 1; it must be a list of layers"):
            layer_list(of(some=wrong), "some")
