"""A figure that somebody else wrote is a number within bounds, or refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.app.foreign_figures import Figures
from kvist.base.errors import WireError

WRONG = [
    "",
    "x",
    "-1",
    "0",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1_0",
    " 7",
    "\u0667",
    "9" * 41,
    "0x10",
    True,
    [],
    {},
    b"7",
    0,
    -3,
]


def of(value: object) -> Figures:
    return Figures({"x": value}, "there")


@pytest.mark.parametrize("value", ["7", 7, 7.0, "7.0", "0.7e1"])
def test_a_number_may_be_written_in_several_ways(value: object) -> None:
    assert of(value).whole("x") == 7
    assert of(value).needed("x") == 7
    assert of(value).fraction("x") == 7.0


@pytest.mark.parametrize("value", ["None", None])
def test_nothing_is_said_by_none(value: object) -> None:
    for figures in (of(value), Figures({}, "there")):
        assert figures.whole("x") is None
        assert figures.fraction("x") is None
        assert figures.flag("x") is None
        with pytest.raises(WireError, match="there does not say x"):
            figures.needed("x")


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:12])
def test_what_is_no_number_is_refused_by_name(value: object) -> None:
    for read in (of(value).whole, of(value).fraction, of(value).needed):
        with pytest.raises(WireError, match=r"there says x is .*, which cannot be") as caught:
            read("x")
        assert len(str(caught.value)) < 150


def test_parts_are_no_whole_numbers() -> None:
    assert of("0.5").fraction("x") == 0.5
    with pytest.raises(WireError, match=r"x is '0\.5'"):
        of("0.5").whole("x")
    assert of("0").whole("x", least=0) == 0


@pytest.mark.parametrize("value", ["", "x" * 41, "a\x1b[2J", 7, None])
def test_a_word_is_short_and_can_be_shown(value: object) -> None:
    with pytest.raises(WireError):
        of(value).text("x")
    assert of("fp8_e4m3").text("x") == "fp8_e4m3"


def test_flags_are_those_of_python() -> None:
    assert [of(value).flag("x") for value in ("True", "False", "true", "1")] == [True, False, None, None]


@given(value=st.text() | st.floats() | st.integers())
def test_whatever_comes_is_a_number_within_bounds_or_refused(value: object) -> None:
    try:
        found = of(value).whole("x")
    except WireError:
        return
    assert found is None or 1 <= found <= 2**50
