import pytest

from fakes.engine import Script, text_script
from fakes.serving import app_of, ask, completion, events_of
from fakes.tokenizer import ByteTokenizer

PATH = "/v1/completions"


def test_an_answer_has_openais_shape(start) -> None:
    answer = ask(app_of(start(text_script("Hej!")), ByteTokenizer()), PATH, completion()).json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "Hej!", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("prompt", ["ab", ["ab", "cd"], [97, 98], [[97, 98], [99, 100]]])
@pytest.mark.parametrize("stream", [False, True])
def test_every_form_of_prompt_is_answered_in_order(start, prompt: object, stream: bool) -> None:
    app = app_of(start(lambda request: text_script(bytes(request.prompt[-2:]))), ByteTokenizer())
    response = ask(app, PATH, completion(prompt=prompt, stream=stream))
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    texts = [""] * count
    answers = events_of(response.text)[:-1] if stream else [response.json()]
    for choice in (choice for answer in answers for choice in answer["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == ["ab", "cd"][:count]


def test_scores_have_one_entry_per_counted_token(start) -> None:
    answer = ask(app_of(start(text_script("aé")), ByteTokenizer()), PATH, completion(logprobs=2)).json()
    scores = answer["choices"][0]["logprobs"]
    assert scores["tokens"] == ["a", "\ufffd", "\ufffd", "<end>"]
    assert scores["text_offset"] == [0, 1, 1, 2]
    assert answer["usage"]["completion_tokens"] == 4
    assert {len(scores[name]) for name in ("token_logprobs", "top_logprobs")} == {4}


def test_no_bound_means_sixteen_tokens(start) -> None:
    answer = ask(app_of(start(Script()), ByteTokenizer()), PATH, completion()).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 16


def test_going_on_after_the_end(start) -> None:
    app = app_of(start(text_script("ab")), ByteTokenizer())
    answer = ask(app, PATH, completion(ignore_eos=True, max_tokens=7)).json()
    assert answer["choices"][0]["text"] == "ababa"
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "empty_prompt"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": "x" * 2000}, "prompt", "context_length_exceeded"),
        ({"prompt": [260]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3}, "best_of", "unsupported_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"prompt": [1] * 400, "max_tokens": 450}, "max_tokens", "context_length_exceeded"),
    ],
)
def test_what_can_not_be_honoured_is_a_400_by_name(start, fields: dict, param: str, code: str) -> None:
    error = ask(app_of(start(), ByteTokenizer()), PATH, completion(**fields)).json()["error"]
    assert (error["param"], error["code"]) == (param, code)
