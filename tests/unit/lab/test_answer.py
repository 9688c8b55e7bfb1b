import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.answer import AnswerReader, Endpoint, Usage, error_text, read_usage
from kvist.lab.failure import CallError

ENDPOINTS: tuple[Endpoint, ...] = ("completions", "chat/completions")
DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def delta(content: dict[str, object], finish: str | None = None) -> bytes:
    return event({"choices": [{"delta": content, "finish_reason": finish}]})


def reader(endpoint: Endpoint = "completions", token_events_max: int = 100) -> AnswerReader:
    return AnswerReader(endpoint, started_s=10.0, token_events_max=token_events_max)


def test_a_completion_is_timed_event_by_event() -> None:
    reading = reader()
    reading.feed(token("a"), 11.0)
    reading.feed(token("") + token("b"), 12.5)  # half a character has no text yet and is a token all the same
    reading.feed(token("", "length"), 13.0)
    reading.feed(event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}) + DONE, 14.0)
    answer = reading.finish(99.0)
    assert (answer.text, answer.ttft_s, answer.token_times_s, answer.latency_s) == ("ab", 1.0, (1.0, 2.5, 2.5), 4.0)
    assert (answer.finish_reason, answer.output_tokens) == ("length", 3)
    assert answer.usage == Usage(prompt_tokens=9, output_tokens=3, cached_tokens=None)


def test_the_first_token_of_a_chat_is_the_first_text_and_not_the_role() -> None:
    reading = reader("chat/completions")
    reading.feed(delta({"role": "assistant", "content": ""}), 11.0)
    reading.feed(delta({"reasoning_content": "hm"}), 12.0)
    reading.feed(delta({"content": "a"}), 13.0)
    reading.feed(delta({}, "stop") + DONE, 14.0)
    answer = reading.finish(14.0)
    assert (answer.text, answer.token_times_s, answer.output_tokens) == ("hma", (2.0, 3.0), 2)


def test_a_closing_event_is_the_first_token_when_none_came_before() -> None:
    reading = reader()
    reading.feed(token("", "stop") + DONE, 11.0)
    assert reading.finish(12.0).token_times_s == (1.0,)


def test_a_finish_reason_without_an_end_mark_is_complete() -> None:
    reading = reader()
    reading.feed(token("a", "stop"), 11.0)
    assert not reading.is_done
    assert reading.finish(12.0).latency_s == 2.0


def test_bytes_after_the_end_mark_are_ignored() -> None:
    reading = reader()
    reading.feed(token("a") + DONE + b"data: {not json\n\n", 11.0)
    reading.feed(token("b"), 12.0)
    assert reading.is_done
    assert reading.finish(13.0).text == "a"


@given(cuts=st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_of_the_stream_gives_the_same_answer(cuts: list[int]) -> None:
    stream = b": hello\n\n" + token("grå ") + token("häst") + token("", "length") + DONE
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    reading = reader()
    for begin, end in pairwise(places):
        reading.feed(stream[begin:end], 11.0)
    assert reading.finish(12.0).text == "grå häst"


@pytest.mark.parametrize(
    ("stream", "kind", "complaint"),
    [
        (event({"error": {"message": "out of blocks"}}), "stream_error", "out of blocks"),
        (event({"error": "plain"}), "stream_error", "plain"),
        (b'event: error\ndata: {"detail": "gone"}\n\n', "stream_error", "gone"),
        (b'event: error\ndata: {"x": 1}\n\n', "stream_error", '{"x": 1}'),
        (b"data: {oops\n\n", "malformed", "not JSON: {oops"),
        (b"data: \n\n", "malformed", "nothing at all"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "malformed", "not JSON"),
        (b"data: " + b"9" * 5000 + b"\n\n", "malformed", "not JSON"),
        (event([1]), "malformed", "not a JSON object"),
        (event({"choices": 7}), "malformed", "choices is not a list"),
        (event({"choices": [7]}), "malformed", "not an object"),
        (event({"choices": [{"text": 7}]}), "malformed", "not a string"),
        (event({"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 0}}), "malformed", "prompt_tokens"),
        (token("x") * 101, "oversized", "more than 100 tokens"),
    ],
)
def test_a_fault_in_the_stream_is_named(stream: bytes, kind: str, complaint: str) -> None:
    with pytest.raises(CallError) as caught:
        reader().feed(stream, 11.0)
    assert caught.value.kind == kind
    assert complaint in str(caught.value)


@pytest.mark.parametrize(("stream", "kind"), [(b"", "truncated"), (token("a"), "truncated"), (DONE, "empty")])
def test_an_incomplete_answer_is_no_answer(stream: bytes, kind: str) -> None:
    reading = reader()
    reading.feed(stream, 11.0)
    with pytest.raises(CallError) as caught:
        reading.finish(12.0)
    assert caught.value.kind == kind


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
names = st.sampled_from(["choices", "text", "delta", "content", "usage", "prompt_tokens", "finish_reason", "error"])
bodies = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)


@given(events=st.lists(bodies.map(event) | st.binary(max_size=60), max_size=6), endpoint=st.sampled_from(ENDPOINTS))
def test_whatever_a_server_sends_ends_in_an_answer_or_a_failed_call(events: list[bytes], endpoint: Endpoint) -> None:
    reading, said = reader(endpoint), ""
    try:
        for chunk in events:
            reading.feed(chunk, 11.0)
        assert reading.finish(12.0).ttft_s == 1.0
    except CallError as error:
        said = str(error)
    assert said.isprintable()


def test_usage_holds_cached_tokens_when_the_server_says_so() -> None:
    counts = {"prompt_tokens": 40, "completion_tokens": 2}
    assert read_usage(counts | {"prompt_tokens_details": {"cached_tokens": 32}}).cached_tokens == 32
    for silent in ({}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}}):
        assert read_usage(counts | silent).cached_tokens is None


@pytest.mark.parametrize(
    "usage",
    [
        7,
        {},
        {"prompt_tokens": 4},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": 4.5, "completion_tokens": 1},
        {"prompt_tokens": "4", "completion_tokens": 1},
        {"prompt_tokens": 10**30, "completion_tokens": 1},
        {"prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 5}},
        {"prompt_tokens": 4, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": -1}},
    ],
)
def test_impossible_counts_are_refused(usage: object) -> None:
    with pytest.raises(CallError, match="usage"):
        read_usage(usage)


def test_the_message_of_an_error_body_is_found_in_its_usual_places() -> None:
    for body in ({"error": {"message": "m"}}, {"error": "m"}, {"detail": "m"}, {"message": "m", "code": 4}):
        assert error_text(body) == "m"
    assert error_text({"error": {"code": 3}}) == ""
