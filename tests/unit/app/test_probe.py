"""What is asked of servers that answer badly, over real sockets: each ends as one error that names the URL."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fakes.told import told
from kvist.app.probe import BODY_BYTES_MAX, replies
from kvist.base.errors import WireError
from real.redis import free_port

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
NEVER_S = 60.0


@contextmanager
def saying(first: bytes, again: bytes = b"", gap_s: float = 0.0) -> Iterator[str]:
    """A server that says one thing and then, if there is another, that for ever with gaps between; else it hangs up."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(30)

    def say() -> None:
        try:
            with listener.accept()[0] as client:
                client.recv(4096)
                client.sendall(first)
                while again and not ended.wait(gap_s):
                    client.sendall(again)
        except OSError:
            return  # who asked had enough

    thread = threading.Thread(target=say)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        listener.close()


def test_answers_come_by_path_whatever_their_status() -> None:
    with told({"/a": (200, b'{"x": 1}'), "/b": (401, b"no")}) as url:
        found = replies(url, ("/a", "/b", "/c"))
    assert found["/a"].fields() == {"x": 1}
    assert [found[path].status for path in ("/a", "/b", "/c")] == [200, 401, 404]
    with pytest.raises(WireError, match="/b answers with status 401"):
        found["/b"].content()


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b"7", b"[" * 100_000, b"\xff\xfe{}"], ids=lambda body: body[:9]
)
def test_what_is_no_object_is_an_error_with_its_beginning(body: bytes) -> None:
    with told({"/a": (200, body)}) as url:
        reply = replies(url, ("/a",))["/a"]
    with pytest.raises(WireError, match="/a answers with no JSON") as caught:
        reply.fields()
    assert len(str(caught.value)) < 200


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(WireError, match="does not answer"):
        replies(f"http://127.0.0.1:{free_port()}", ("/a",))


@pytest.mark.parametrize(
    "first",
    [b"", b"\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x1b[2J" * 999 + b"\r\n\r\n", HEAD + b"content-length: 9\r\n\r\nx"],
    ids=["nothing", "a line", "another protocol", "escapes", "cut short"],
)
def test_what_is_not_http_is_an_error_that_a_terminal_can_show(first: bytes) -> None:
    with saying(first) as url, pytest.raises(WireError, match="does not answer") as caught:
        replies(url, ("/a",))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("first", "again", "gap_s"),
    [
        (b"", b"late", NEVER_S),
        (HEAD, b"late", NEVER_S),
        (HEAD, b"x-a: 1\r\n", 0.01),
        (CHUNKED, b"1\r\nx\r\n", 0.01),
    ],
    ids=["silence", "silence after a line", "headers that drip", "a body that drips"],
)
def test_whoever_is_slow_is_given_up(first: bytes, again: bytes, gap_s: float) -> None:
    with saying(first, again, gap_s) as url, pytest.raises(WireError, match=r"/a does not answer within 0\.3 s"):
        replies(url, ("/a",), seconds=0.3)


def test_a_body_without_an_end_is_given_up_at_its_bound() -> None:
    piece = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    with saying(CHUNKED, piece) as url, pytest.raises(WireError, match=f"more than {BODY_BYTES_MAX} bytes"):
        replies(url, ("/a",))
