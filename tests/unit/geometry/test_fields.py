"""Reading values that anybody may have written."""

import json
import math

import pytest

from kvist.base.errors import ModelError
from kvist.geometry.fields import Fields, show


def of(**values: object) -> Fields:
    return Fields(values=values, source="config.json", names={"heads": "their.heads"})


@pytest.mark.parametrize(
    "value", [0, -1, 2**31, 10**5000, True, 4.0, math.nan, math.inf, "4", None, [4], {"a": 4}], ids=show
)
def test_an_integer_is_refused_with_its_name_and_value(value: object) -> None:
    with pytest.raises(ModelError, match=r"config\.json: their\.heads is .*an integer from 1 to 2147483647") as error:
        of(heads=value).integer("heads")
    assert show(value) in str(error.value)
    assert len(str(error.value)) < 200


def test_integers_keep_to_their_bounds() -> None:
    assert of(heads=0).integer("heads", least=0) == 0
    assert of(heads=7).integer("heads", most=7) == 7
    assert of().integer("heads", default=3) == 3
    with pytest.raises(ModelError):
        of(heads=8).integer("heads", most=7)
    with pytest.raises(ModelError, match=r"their\.heads is null"):
        of().integer("heads")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, -math.inf, 10**400, True, "1e4", None, [1.0]], ids=show)
def test_a_number_is_refused_with_its_name_and_value(value: object) -> None:
    with pytest.raises(ModelError, match=r"config\.json: their\.heads is .*number above 0") as error:
        of(heads=value).number("heads")
    assert show(value) in str(error.value)


def test_numbers_may_be_integers_and_have_a_bound() -> None:
    assert of(heads=10_000).number("heads") == 10_000.0
    assert of().number("heads", default=2.5) == 2.5
    with pytest.raises(ModelError, match="above 1"):
        of(heads=1.0).number("heads", above=1.0)


@pytest.mark.parametrize("value", [0, 1, "true", None, [], math.nan])
def test_a_flag_is_true_or_false(value: object) -> None:
    assert of(heads=True).flag("heads", default=False)
    assert of().flag("heads", default=True)
    with pytest.raises(ModelError, match="true or false"):
        of(heads=value).flag("heads", default=False)


@pytest.mark.parametrize("value", [1, None, ["llama"], b"llama"])
def test_text_is_text(value: object) -> None:
    assert of(heads="llama").text("heads") == "llama"
    with pytest.raises(ModelError, match="a string"):
        of(heads=value).text("heads")


def test_lists_of_numbers_are_checked_each() -> None:
    assert of(heads=[1, 2.5]).numbers("heads", count=2) == (1.0, 2.5)
    for wrong in ([1], [1, 2, 3], "12", None, 12):
        with pytest.raises(ModelError, match=r"their\.heads"):
            of(heads=wrong).numbers("heads", count=2)
    with pytest.raises(ModelError, match=r"their\.heads\[1\] is nan"):
        of(heads=[1, math.nan]).numbers("heads", count=2)


def test_fields_within_fields_carry_their_path() -> None:
    inner = of(heads={"factor": 0}).nested("heads")
    with pytest.raises(ModelError, match=r"their\.heads\.factor is 0"):
        inner.number("factor")
    assert of(heads=None).nested("heads").values == {}
    assert of().nested("heads").values == {}
    for wrong in ([], "x", 3, False):
        with pytest.raises(ModelError, match="a mapping of fields"):
            of(heads=wrong).nested("heads")


def test_all_missing_fields_are_named_at_once() -> None:
    with pytest.raises(ModelError, match=r"config\.json: lacks their\.heads, layers, which Llama needs"):
        of(size=1).require(["heads", "size", "layers"], "Llama")
    of(heads=None).require(["heads"], "Llama")


def test_absent_and_null_are_told_apart() -> None:
    assert (of().has("heads"), of().is_null("heads"), of().is_set("heads")) == (False, False, False)
    assert (of(heads=None).has("heads"), of(heads=None).is_null("heads")) == (True, True)
    assert of(heads=0).is_set("heads")


def test_values_are_shown_at_a_bounded_length() -> None:
    deep = json.loads("[" * 500 + "]" * 500)
    for value in ("x" * 10**6, 10**100_000, deep, {"a": deep}, 1.5, object()):
        assert len(show(value)) < 80
    assert (show(True), show(-3), show("a\nb")) == ("true", "-3", r"'a\nb'")
