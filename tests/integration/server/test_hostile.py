"""Whatever comes over the wire is answered clearly or cut, and the server goes on."""

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fakes.served import Served

PATH = "/v1/completions"


@pytest.fixture
def served(serve) -> Iterator[Served]:
    """A server that must be well after each test."""
    served = serve()
    yield served
    answer = httpx.post(served.url + PATH, json={"model": served.model, "prompt": "well"}, timeout=30)
    assert answer.json()["choices"][0]["text"] == "well"
    assert httpx.get(served.url + "/health").status_code == 200


def exchange(served: Served, *parts: bytes) -> bytes:
    """Sends parts over one connection and reads to its end, or to the end of the first answer."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> bytes:
    data = b""
    while not is_whole(data):
        part = connection.recv(65536)
        if not part:
            break
        data += part
    return data


def is_whole(data: bytes) -> bool:
    head, separator, body = data.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return bool(separator) and bool(lengths) and len(body) >= lengths[0]


def status_and_error(data: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def head(*lines: str) -> bytes:
    start = [f"POST {PATH} HTTP/1.1", "host: kvist", "content-type: application/json"]
    return "\r\n".join([*start, *lines, "", ""]).encode()


def posted(served: Served, body: bytes) -> tuple[int, dict[str, Any]]:
    return status_and_error(exchange(served, head(f"content-length: {len(body)}"), body))


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_ten_megabytes_are_a_clear_413(served: Served) -> None:
    body = json.dumps({"model": served.model, "prompt": "x" * 10_000_000}).encode()
    assert posted(served, body) == (
        413,
        {
            "message": "The body is larger than 8.0 MiB (8388608 bytes), the most this server takes.",
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        },
    )
    assert served.engine.requests == []


def test_the_same_in_chunks_of_unknown_number(served: Served) -> None:
    parts = [chunk(b"x" * 1_000_000) for _ in range(10)]
    status, error = status_and_error(exchange(served, head("transfer-encoding: chunked"), *parts, chunk(b"")))
    assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "lines", [["content-length: 10000000000"], ["content-length: 9000000", "expect: 100-continue"]]
)
def test_a_body_announced_too_large_is_refused_before_it_is_sent(served: Served, lines: list[str]) -> None:
    status, error = status_and_error(exchange(served, head(*lines)))
    assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe\xfd",
        b'{"model": "owner/model", "prompt": "\xff"}',
        b'{"model": "owner/model", "prompt": "\\ud800"}',
        b'{"model": "owner/model", "prompt": "x", "temperature": NaN}',
        b'{"model": "owner/model", "prompt": "x", "temperature": 1e999}',
        b'{"model": "owner/model", "prompt": "x", "temperature": -1}',
        b'{"model": "owner/model", "prompt": "x", "n": 10000}',
        b'{"model": "owner/model", "prompt": "x", "seed": ' + b"9" * 4000 + b"}",
        b'{"model": "owner/model", "prompt": "x", "max_tokens": ' + b"9" * 4000 + b"}",
        b'{"model": "owner/model", "prompt": ""}',
        b'{"model": "owner/model", "prompt": [260]}',
        b'{"model": "owner/model", "prompt": [-1]}',
        b'{"model": "owner/model", "prompt": [' + b"1," * 1_000_000 + b"1]}",
        b'{"model": "owner/model", "prompt": [' + b"[]," * 1_000_000 + b"[]]}",
        b'{"model": "owner/model", "prompt": "' + b"x" * 8_000_000 + b'"}',
        b'{"a":' * 1_000_000,
        b"[" * 8_000_000,
        b'{"model": "owner/model", "prompt": "x", "stop": ["' + b"x" * 1_000_000 + b'"]}',
    ],
    ids=lambda body: f"{len(body)}:{body[:60]!r}",
)
def test_a_bad_body_is_a_400(served: Served, body: bytes) -> None:
    status, error = posted(served, body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert 0 < len(error["message"]) < 500
    assert served.engine.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 200_000,
        head("transfer-encoding: chunked") + b"not a size\r\n",
        head("content-length: five"),
        head("content-length: -1"),
        head("content-length: 5", "content-length: 6"),
        b"\x00" * 10_000,
    ],
    ids=lambda data: repr(data[:30]),
)
def test_what_is_not_http_is_refused_or_cut(served: Served, data: bytes) -> None:
    try:
        answer = exchange(served, data)
    except ConnectionResetError:
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("sent", [0, 1, 20])
def test_a_body_cut_short_asks_the_engine_for_nothing(served: Served, sent: int) -> None:
    body = json.dumps({"model": served.model, "prompt": "x"}).encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(head(f"content-length: {len(body)}") + body[:sent])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert httpx.get(served.url + "/ready").status_code == 200
    assert served.engine.requests == []


def test_several_requests_on_one_connection_are_answered_in_order(served: Served) -> None:
    bodies = [json.dumps({"model": served.model, "prompt": text}).encode() for text in ("first", "second")]
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(b"".join(head(f"content-length: {len(body)}") + body for body in bodies))
        answers = read_answer(connection)
        while answers.count(b"HTTP/1.1 200") < 2 or not answers.endswith(b"}"):
            part = connection.recv(65536)
            assert part, "the connection ended before the second answer"
            answers += part
    assert answers.index(b'"text":"first"') < answers.index(b'"text":"second"')
