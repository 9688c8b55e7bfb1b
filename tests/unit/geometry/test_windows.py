"""Which layers slide, said in the words of each model family."""

import pytest

from kvist.base.errors import ModelError
from kvist.geometry import windows
from kvist.geometry.fields import Fields

F, S = "full_attention", "sliding_attention"


def of(**values: object) -> Fields:
    return Fields(values=values, source="config.json")


def test_llama_never_slides_whatever_else_is_there() -> None:
    assert windows.never(of(sliding_window=8), 3) == (None, None, None)
    assert windows.never(of(layer_types=[F, F]), 2) == (None, None)
    with pytest.raises(ModelError, match="layer_types contradicts"):
        windows.never(of(layer_types=[F, S]), 2)


def test_mistral_and_phi_slide_everywhere_or_nowhere() -> None:
    assert windows.everywhere(4096)(of(), 2) == (4096, 4096)
    assert windows.everywhere(None)(of(), 2) == (None, None)
    assert windows.everywhere(4096)(of(sliding_window=None), 2) == (None, None)
    assert windows.everywhere(None)(of(sliding_window=7, layer_types=[S, S]), 2) == (7, 7)
    with pytest.raises(ModelError, match="layer_types contradicts"):
        windows.everywhere(4096)(of(layer_types=[F, S]), 2)


def test_qwen_slides_from_some_layer_on_if_it_says_so() -> None:
    rule = windows.from_some_layer_on
    assert rule(of(sliding_window=8, max_window_layers=1), 3) == (None, None, None)
    assert rule(of(use_sliding_window=True, sliding_window=8, max_window_layers=1), 3) == (None, 8, 8)
    assert rule(of(use_sliding_window=True, sliding_window=8, max_window_layers=0), 2) == (8, 8)
    assert rule(of(use_sliding_window=True), 30) == (None,) * 28 + (4096, 4096)
    assert rule(of(use_sliding_window=True, sliding_window=None, max_window_layers=0), 2) == (None, None)
    assert rule(of(use_sliding_window=True, sliding_window=8, layer_types=[S, F]), 2) == (8, None)


def test_gemma_two_slides_every_other_layer_beginning_with_the_first() -> None:
    assert windows.every_other_layer(of(), 5) == (4096, None, 4096, None, 4096)
    assert windows.every_other_layer(of(sliding_window=9, layer_types=[F, F]), 2) == (None, None)


def test_gemma_three_slides_in_all_layers_but_each_nth() -> None:
    rule = windows.all_but_every_nth
    assert rule(of(sliding_window=512), 7) == (512,) * 5 + (None, 512)
    assert rule(of(sliding_window=5, sliding_window_pattern=2), 4) == (5, None, 5, None)
    assert rule(of(sliding_window=5, sliding_window_pattern=1), 2) == (None, None)
    assert rule(of(sliding_window=5, sliding_window_pattern=1, layer_types=[S, S]), 2) == (5, 5)


def test_others_slide_in_all_layers_but_each_nth_of_their_own() -> None:
    assert windows.all_but_each(2, window=128)(of(sliding_window_pattern=3), 4) == (128, None, 128, None)
    assert windows.all_but_each(5, window=512)(of(sliding_window=9, layer_types=[F, S]), 2) == (None, 9)
    rule = windows.all_but_each(4, nth_key="sliding_window_pattern")
    assert rule(of(), 4) == (4096, 4096, 4096, None)
    assert rule(of(sliding_window_pattern=2), 4) == (4096, None, 4096, None)


def test_mixtures_of_qwen_slide_only_if_they_say_so() -> None:
    rule = windows.everywhere_if_used
    assert rule(of(sliding_window=8), 2) == (None, None)
    assert rule(of(sliding_window=8, use_sliding_window=True), 2) == (8, 8)
    assert rule(of(sliding_window=None, use_sliding_window=True), 2) == (None, None)
    rule = windows.every_other_up_to_some_layer
    assert rule(of(sliding_window=8), 4) == (None,) * 4
    assert rule(of(sliding_window=8, use_sliding_window=True), 4) == (8, None, 8, None)
    assert rule(of(sliding_window=8, use_sliding_window=True, max_window_layers=1), 4) == (8, None, None, None)


def test_kinds_of_layers_are_those_that_a_family_knows() -> None:
    kinds = ("conv", F)
    assert windows.layer_kinds(of(layer_types=["conv", F]), 2, kinds) == ("conv", F)
    assert windows.layer_kinds(of(), 2, kinds) == windows.layer_kinds(of(layer_types=None), 2, kinds) == ()
    for wrong in ([S, F], ["conv"], ["conv", F, F], ["conv", 1], ["conv", ["conv"]]):
        with pytest.raises(ModelError, match="it must be a list of 2 items, each one of conv, full_attention"):
            windows.layer_kinds(of(layer_types=wrong), 2, kinds)


def test_smollm_slides_where_nothing_rotates_if_it_says_so() -> None:
    rule = windows.where_nothing_rotates
    assert rule(of(sliding_window=8), 4) == (None,) * 4
    assert rule(of(use_sliding_window=True), 4) == (None,) * 4
    assert rule(of(use_sliding_window=True, sliding_window=8), 5) == (None, None, None, 8, None)
    assert rule(of(use_sliding_window=True, sliding_window=8, no_rope_layers=[0, 1, 0]), 2) == (8, None)


@pytest.mark.parametrize("marks", [[1], [], [1, 2], [1, -1], [1, "1"], [1, None], [1, 0.0], "11", 3])
def test_layers_without_rotation_are_marked_by_zeros(marks: object) -> None:
    assert windows.layers_without_rope(of(no_rope_layers=[1, 0, 0]), 2) == (1,)
    assert windows.layers_without_rope(of(no_rope_layers=None, no_rope_layer_interval=2), 4) == (1, 3)
    with pytest.raises(ModelError, match="no_rope_layers"):
        windows.layers_without_rope(of(no_rope_layers=marks), 2)


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (windows.from_some_layer_on, {"layer_types": [F, S]}),
        (windows.from_some_layer_on, {"layer_types": [F, S], "use_sliding_window": True, "sliding_window": None}),
        (windows.where_nothing_rotates, {"layer_types": [F, S], "sliding_window": 8}),
    ],
)
def test_a_sliding_layer_without_a_window_is_refused(rule: windows.WindowRule, values: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="layer_types asks for sliding_attention, but there is no window"):
        rule(of(**values), 2)


@pytest.mark.parametrize("types", [[F], [F, S, F], [F, "chunked_attention"], [F, None], [F, 1], "ff", {}, [[F], [S]]])
def test_layer_types_that_are_none_are_refused(types: object) -> None:
    with pytest.raises(ModelError, match="layer_types is"):
        windows.every_other_layer(of(layer_types=types), 2)


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (windows.every_other_layer, {"sliding_window": None}),
        (windows.all_but_every_nth, {"sliding_window": None}),
        (windows.everywhere(4096), {"sliding_window": 0}),
        (windows.everywhere(None), {"sliding_window": "4096"}),
        (windows.from_some_layer_on, {"use_sliding_window": True, "sliding_window": -4}),
        (windows.from_some_layer_on, {"use_sliding_window": None}),
        (windows.from_some_layer_on, {"use_sliding_window": True, "max_window_layers": -1}),
        (windows.all_but_every_nth, {"sliding_window_pattern": 0}),
        (windows.all_but_every_nth, {"sliding_window_pattern": None}),
        (windows.where_nothing_rotates, {"no_rope_layer_interval": 0}),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_its_name(rule: windows.WindowRule, values: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=f"config.json: {list(values)[-1]} is"):
        rule(of(**values), 2)
