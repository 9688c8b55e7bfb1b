import pytest

from fakes.engine import Script, text_script
from fakes.serving import app_of, ask, chat, events_of
from fakes.tokenizer import ByteTokenizer

PATH = "/v1/chat/completions"


def test_an_answer_has_openais_shape(start) -> None:
    engine = start(text_script("Hej!", tokens_cached=4))
    response = ask(app_of(engine, ByteTokenizer()), PATH, chat())
    answer = response.json()
    assert response.status_code == 200
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hej!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len(engine.requests[0].prompt)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 5,
        "total_tokens": prompt + 5,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_a_stream_begins_each_choice_with_its_role(start) -> None:
    app = app_of(start(text_script("ab")), ByteTokenizer())
    response = ask(app, PATH, chat(stream=True, n=2))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, done = events_of(response.text)
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for index in range(2):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [each["delta"] for each in mine] == [{"role": "assistant", "content": "a"}, {"content": "b"}, {}]
        assert [each["finish_reason"] for each in mine] == [None, None, "stop"]


def test_scores_come_with_both_kinds_of_answer(start) -> None:
    app = app_of(start(text_script("ab")), ByteTokenizer())
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 2}
    content = ask(app, PATH, chat(**fields)).json()["choices"][0]["logprobs"]["content"]
    assert [(each["token"], each["bytes"], len(each["top_logprobs"])) for each in content] == [
        ("a", [97], 1),
        ("b", [98], 1),
    ]
    chunks = events_of(ask(app, PATH, chat(**fields, stream=True)).text)[:-1]
    assert [each for chunk in chunks for each in chunk["choices"][0]["logprobs"]["content"]] == content


@pytest.mark.parametrize("stream", [False, True])
def test_an_empty_answer_is_an_empty_text(start, stream: bool) -> None:
    response = ask(app_of(start(text_script("")), ByteTokenizer()), PATH, chat(stream=stream))
    if stream:
        [chunk, _] = events_of(response.text)
        assert chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert chunk["choices"][0]["finish_reason"] == "stop"
    else:
        assert response.json()["choices"][0]["message"]["content"] == ""


def test_a_stop_string_is_never_shown(start) -> None:
    app = app_of(start(Script(tokens=tuple(b"one two "))), ByteTokenizer())
    answer = ask(app, PATH, chat(stop=["two"])).json()
    assert answer["choices"][0]["message"]["content"] == "one "
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"n": 10_000}, "n"),
        ({"prompt": "x"}, "prompt"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 501}, "max_tokens"),
    ],
)
def test_what_can_not_be_honoured_is_a_400_by_name(start, fields: dict, param: str) -> None:
    response = ask(app_of(start(), ByteTokenizer()), PATH, chat(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_neutral_values_are_fine(start) -> None:
    fields = {
        "presence_penalty": 0,
        "n": 1,
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "prompt_cache_key": "k",
    }
    assert ask(app_of(start(text_script("x")), ByteTokenizer()), PATH, chat(**fields)).status_code == 200
