from typing import Any

import pytest

from kvist.server.errors import ApiError
from kvist.server.schemas import ChatBody, CompletionBody, validated

HELLO = [{"role": "user", "content": "Hello"}]


def chat(**fields: Any) -> ChatBody:
    return validated(ChatBody, {"model": "m", "messages": HELLO} | fields)


def completion(**fields: Any) -> CompletionBody:
    return validated(CompletionBody, {"model": "m", "prompt": "Hello"} | fields)


def fault_of(make, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        make(**fields)
    assert caught.value.family.status == 400
    assert len(str(caught.value)) < 400
    return caught.value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("text", ["text"]),
        (["one", "two"], ["one", "two"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [""]),
        ([[]], [[]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: object, prompts: list) -> None:
    assert completion(prompt=prompt).prompt == prompts


@pytest.mark.parametrize(
    "prompt",
    [None, 3, [], [True], [1.0], ["a", 1], [["a"]], [[1], "a"], [[[1]]], {}, ["a"] * 129, [[1]] * 129, [float("nan")]],
    ids=lambda prompt: repr(prompt)[:20],
)
def test_no_other(prompt: object) -> None:
    assert fault_of(completion, prompt=prompt).param == "prompt"


def test_content_is_text_or_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "ab"
    assert chat(messages=[{"role": "system", "content": ""}]).messages[0].content == ""


def test_an_answer_can_be_sent_back_as_it_came() -> None:
    answer = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    assert chat(messages=[*HELLO, answer]).messages[1].content == "Hi"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[1].content"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "tool", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text", "text": 3}]}, "messages[1].content"),
        ({"role": "user", "content": ["x"]}, "messages[1].content"),
        ({"role": "user", "content": "x", "name": "bob"}, "messages[1].name"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "user", "content": "x", "extra": 1}, "messages[1].extra"),
        ("text", "messages[1]"),
    ],
)
def test_a_wrong_message_is_named(message: object, param: str) -> None:
    assert fault_of(chat, messages=[*HELLO, message]).param == param


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 3),
        ("model", None),
        ("messages", []),
        ("messages", "Hello"),
        ("n", 0),
        ("n", -1),
        ("n", 129),
        ("n", 10_000),
        ("n", True),
        ("n", 1.0),
        ("n", "1"),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", -1),
        ("top_k", -2),
        ("top_k", 2**31),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", 2**63),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", False),
        ("max_completion_tokens", 0),
        ("stop", 3),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 5),
        ("stop", [1]),
        ("stop", "x" * 1001),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", -1),
        ("stream", 1),
        ("stream", "true"),
        ("cache_salt", ""),
        ("cache_salt", "x" * 257),
        ("cache_salt", 3),
        ("prompt_cache_key", "x" * 257),
        ("ignore_eos", 1),
        ("max_token", 3),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    fault = fault_of(chat, **{name: value})
    assert fault.param == name
    assert f"'{name}'" in str(fault)


@pytest.mark.parametrize("options", [{"include_usage": 1}, {"include_obfuscation": True}, {"other": 1}, 3])
def test_a_wrong_stream_option_is_named(options: object) -> None:
    assert str(fault_of(chat, stream=True, stream_options=options).param).startswith("stream_options")


@pytest.mark.parametrize(("name", "value"), [("logprobs", True), ("logprobs", 21), ("best_of", 0), ("top_logprobs", 1)])
def test_a_completion_has_fields_of_its_own(name: str, value: object) -> None:
    assert fault_of(completion, **{name: value}).param == name


def test_null_is_the_same_as_nothing() -> None:
    names = ["n", "stop", "seed", "temperature", "top_p", "max_tokens", "stream", "stream_options", "cache_salt"]
    assert chat(**dict.fromkeys(names)) == chat()


def test_a_single_stop_string_is_a_list_of_one() -> None:
    assert chat(stop="a").stop == ["a"]
    assert chat(stop=[]).stop == []


def test_a_whole_number_passes_for_a_fraction() -> None:
    assert chat(temperature=1, top_p=1, min_p=0).temperature == 1.0


def test_an_invented_name_is_not_repeated_at_length() -> None:
    fault = fault_of(chat, **{"x" * 10**6: 1})
    assert fault.code == "unknown_parameter"
    assert len(fault.param or "") <= 100


def test_a_required_field_is_missed_by_name() -> None:
    with pytest.raises(ApiError, match="'model' is required"):
        validated(CompletionBody, {"prompt": "x"})
