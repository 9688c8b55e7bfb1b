import pytest

from kvist.server.errors import ApiError
from kvist.server.neutral import CHAT, COMPLETION, without_neutral


def test_what_asks_for_nothing_is_taken_out() -> None:
    given = {
        "model": "m",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "user": "u",
        "tools": None,
    }
    assert without_neutral(given, CHAT) == {"model": "m"}


def test_what_is_unknown_stays_for_the_schema() -> None:
    assert without_neutral({"suffix": None, "tools": []}, COMPLETION) == {"tools": []}


@pytest.mark.parametrize("name", sorted(CHAT.keys() | COMPLETION.keys()))
def test_each_is_neutral_at_null_and_at_its_listed_values_alone(name: str) -> None:
    table = CHAT if name in CHAT else COMPLETION
    for value in (None, *table[name]):
        assert without_neutral({name: value}, table) == {}
    with pytest.raises(ApiError) as caught:
        without_neutral({name: "something else"}, table)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert f"'{name}'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("presence_penalty", 0.1),
        ("presence_penalty", False),
        ("store", True),
        ("store", 0),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("parallel_tool_calls", 1),
        ("echo", True),
    ],
)
def test_what_asks_for_something_is_refused(name: str, value: object) -> None:
    with pytest.raises(ApiError, match=name):
        without_neutral({name: value}, CHAT)


def test_labels_may_say_anything_of_their_type() -> None:
    labels = {"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}}
    assert without_neutral(labels, CHAT) == {}
    for name in labels:
        with pytest.raises(ApiError, match=name):
            without_neutral({name: 3}, CHAT)
