from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvist.lab.failure import CallError
from kvist.lab.sse import SseEvent, SseParser

LINES = [
    "data: a",
    "data:b",
    "data",
    "data:  two",
    ": comment",
    ":",
    "event: error",
    "id: 7",
    "retry: 9",
    "",
    "",
    "data: ü€",
]


def naive(stream: bytes) -> list[SseEvent]:
    """Parses a whole stream at once, as the standard tells it."""
    text = stream.decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events, name, data = [], "", []
    for line in lines:
        if line == "":
            if data:
                events.append(SseEvent(name=name or "message", data="\n".join(data)))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    return events


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.sampled_from(LINES), max_size=25))
    ends = draw(st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=len(lines), max_size=len(lines)))
    start = draw(st.sampled_from([b"", "\ufeff".encode()]))
    tail = draw(st.sampled_from([b"", b"data: cut off", "data: ü".encode()[:-1]]))
    return start + b"".join(line.encode() + end for line, end in zip(lines, ends, strict=True)) + tail


def chunked(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[begin:end] for begin, end in pairwise(places)]


def parse(chunks: list[bytes], **bounds: int) -> list[SseEvent]:
    parser = SseParser(**bounds)
    return [event for chunk in chunks for event in parser.feed(chunk)]


@given(stream=streams(), cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_cut_of_a_stream_gives_the_events_of_the_whole(stream: bytes, cuts: list[int]) -> None:
    assert parse(chunked(stream, cuts)) == naive(stream)


@given(stream=st.binary(max_size=200) | st.text(alphabet="\r\n:da t\ufeff\x0b\x85", max_size=80).map(str.encode))
def test_any_bytes_at_all_are_parsed_alike_whole_and_byte_by_byte(stream: bytes) -> None:
    single = [stream[place : place + 1] for place in range(len(stream))]
    assert parse(single) == parse([stream]) == naive(stream)


def test_an_event_has_a_name_and_joined_data() -> None:
    assert parse([b"event: error\ndata: one\ndata: two\n\ndata: three\n\n"]) == [
        SseEvent(name="error", data="one\ntwo"),
        SseEvent(name="message", data="three"),
    ]


def test_an_event_comes_as_soon_as_its_blank_line_does() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [SseEvent(name="message", data="x")]
    assert parser.feed(b"\ndata: y\n\n") == [SseEvent(name="message", data="y")]


def test_comments_blank_lines_and_cut_off_events_are_no_events() -> None:
    assert parse([b": ping\n\n\n\n: ping\n\nid: 4\n\nevent: x\n\ndata: never ended\n"]) == []


def test_broken_utf8_does_not_end_the_stream() -> None:
    assert parse([b"data: \xff\xfe\n\ndata: ok\n\n"])[1].data == "ok"


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 100, b"data: xxxxxxxxx\n" * 20, b"data\n" * 101])
def test_an_event_beyond_the_bound_is_an_error_whole_or_in_pieces(stream: bytes) -> None:
    for size in (1, 7, len(stream)):
        chunks = [stream[place : place + size] for place in range(0, len(stream), size)]
        with pytest.raises(CallError, match="longer than 100 bytes") as caught:
            parse(chunks, event_bytes_max=100)
        assert caught.value.kind == "oversized"


def test_many_events_within_the_bound_are_no_error() -> None:
    parser = SseParser(event_bytes_max=100)
    assert len(parser.feed(b"data: xxxxxxxxxx\n\n" * 1000)) == 1000
