import asyncio
from collections.abc import Iterable

import pytest
from starlette.requests import ClientDisconnect, Request

from fakes.serving import MODEL
from kvist.base.units import Bytes
from kvist.server.body import DISCARD_FACTOR, parse_object, read_body
from kvist.server.errors import ApiError
from kvist.server.settings import ServerSettings

SETTINGS = ServerSettings(model=MODEL, body_bytes_max=Bytes(100))
JSON = {"content-type": "application/json; charset=utf-8"}


class Sender:
    """A client that sends parts and can say how many were taken."""

    def __init__(self, parts: Iterable[bytes], *, leaves: bool = False, hangs: bool = False) -> None:
        self._parts = iter(parts)
        self._leaves = leaves
        self._hangs = hangs
        self.taken = 0

    async def receive(self) -> dict:
        part = next(self._parts, None)
        if part is None and self._hangs:
            await asyncio.get_running_loop().create_future()
        if part is None and self._leaves:
            return {"type": "http.disconnect"}
        self.taken += 1
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}


def read(sender: Sender, headers: dict[str, str] = JSON, settings: ServerSettings = SETTINGS) -> bytes:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return asyncio.run(read_body(Request({"type": "http", "headers": raw}, sender.receive), settings))


def refusal(sender: Sender, headers: dict[str, str] = JSON, settings: ServerSettings = SETTINGS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(sender, headers, settings)
    return caught.value


def test_parts_become_one_body() -> None:
    assert read(Sender([b"ab", b"", b"c"])) == b"abc"
    assert read(Sender([b"x" * 100])) == b"x" * 100


def test_a_body_one_byte_too_long_is_read_to_its_end_and_refused() -> None:
    sender = Sender([b"x" * 50, b"x" * 51, b"x" * 100])
    error = refusal(sender)
    assert (error.family.status, error.code) == (413, "request_too_large")
    assert "100 bytes" in str(error)
    assert sender.taken == 4


def test_a_body_without_end_is_given_up() -> None:
    sender = Sender(b"x" * 10 for _ in range(10**6))
    assert refusal(sender).family.status == 413
    assert sender.taken <= DISCARD_FACTOR * 10 + 1


@pytest.mark.parametrize("more", [{"content-length": "10000"}, {"content-length": "101", "expect": "100-continue"}])
def test_a_body_announced_as_far_too_long_is_not_read_at_all(more: dict[str, str]) -> None:
    sender = Sender([b"x"])
    assert refusal(sender, JSON | more).family.status == 413
    assert sender.taken == 0


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    impatient = ServerSettings(model=MODEL, body_seconds_max=0.01)
    assert refusal(Sender([b"{"], hangs=True), settings=impatient).family.status == 408


def test_a_client_that_leaves_meanwhile_ends_it() -> None:
    with pytest.raises(ClientDisconnect):
        read(Sender([b"{"], leaves=True))


@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/jsonx"}])
def test_a_body_that_does_not_say_it_is_json_is_refused(headers: dict[str, str]) -> None:
    assert refusal(Sender([b"{}"]), headers).family.status == 415


def test_an_object_is_parsed() -> None:
    assert parse_object('{"a": [1, 2.5, "é", null]}'.encode()) == {"a": [1, 2.5, "é", None]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"a": 1} {}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\ud800x"}',
        b'{"a": "\\udc00"}',
        b'\xef\xbb\xbf{"a": 1}',
        b'\xff\xfe{\x00"\x00a\x00"\x00:\x001\x00}\x00',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00" * 100,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.family.status, caught.value.code) == (400, "invalid_json")
    assert len(str(caught.value)) < 200
