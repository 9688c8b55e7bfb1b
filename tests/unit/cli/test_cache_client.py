"""Asking a server over its socket: which one, and every way in which it may not answer."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fakes.operated import TEXT, operator, served
from fakes.serving import SETTINGS
from kvist.app.private_socket import VARIABLE, private_listener, socket_path
from kvist.base.errors import ConfigError, KvistError, WireError
from kvist.cli.cache_client import asker, find_server
from kvist.server.administration import create_administration


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with TemporaryDirectory(prefix="kvist-") as folder:
        yield {VARIABLE: folder}


@contextmanager
def saying(path: Path, reply: bytes) -> Iterator[None]:
    """Something at a socket that reads a little, says this, and hangs up."""
    with private_listener(path) as listener:

        def answer() -> None:
            listener.accept()[0].close()  # the first only looks whether somebody is there
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def http(status: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_a_running_server_does_what_it_is_asked(environment: dict[str, str]) -> None:
    with operator() as there:
        hashes = there.store(TEXT)
        with served(create_administration(there.verbs, SETTINGS), 8000, environment):
            ask = asker(find_server(None, None, environment))
            assert [block["hash"] for block in ask("list", {})["blocks"]] == hashes
            assert ask("purge", {"all": True})["unknown"] == []
            assert ask("list", {})["blocks"] == []


def test_what_the_server_refuses_is_told_in_its_words(environment: dict[str, str]) -> None:
    with operator() as there, served(create_administration(there.verbs, SETTINGS), 8000, environment) as path:
        with pytest.raises(ConfigError, match="no tier 'cellar'"):
            asker(path)("list", {"tier": "cellar"})
        with pytest.raises(ConfigError, match="Nothing is chosen"):
            asker(path)("purge", {})


def test_the_only_server_is_found_and_of_several_one_must_be_named(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no server with tiers runs here"):
        find_server(None, None, environment)
    first, second = (socket_path(environment, port) for port in (8000, 8001))
    with private_listener(first):
        assert find_server(None, None, environment) == first
        with private_listener(second):
            with pytest.raises(ConfigError, match="--port 8000, 8001"):
                find_server(None, None, environment)
            assert find_server(None, 8001, environment) == second
            assert find_server(str(second), None, environment) == second


@pytest.mark.parametrize("port", [0, -1, 65536, 10**30])
def test_a_port_that_is_none_is_refused(port: int, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--port"):
        find_server(None, port, environment)


@pytest.mark.parametrize(
    ("path", "complaint"),
    [("", "is no path"), ("a\0b", "is no path"), ("no-such.sock", "no server"), ("x" * 5000, "more than the 107")],
)
def test_a_path_that_is_none_is_refused(path: str, complaint: str, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=complaint):
        find_server(path, None, environment)


def test_a_file_is_no_server(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a socket"):
        find_server(str(tmp_path / "file"), None, environment)


def test_a_dead_socket_is_an_error_that_says_so(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(os.fspath(path))
    with pytest.raises(WireError, match="nobody answers"):
        asker(find_server(None, 8000, environment))("tiers", {})
    with pytest.raises(ConfigError, match="no server with tiers runs here"):
        find_server(None, None, environment)
    with private_listener(socket_path(environment, 8001)) as listener:
        assert str(find_server(None, None, environment)) == listener.getsockname()


@pytest.mark.parametrize(
    ("reply", "kind", "complaint"),
    [
        (b"", WireError, "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{", WireError, "broke off"),
        (b"+PONG\r\n", WireError, "broke off"),
        (http("200 OK", b"<html>"), WireError, "no server of Kvist"),
        (http("200 OK", b"[]"), WireError, "no server of Kvist"),
        (http("200 OK", b"[" * 100_000), WireError, "no server of Kvist"),
        (http("404 Not Found", b'{"detail": "Not Found"}'), WireError, "status 404"),
        (http("404 Not Found", b'{"error": {"message": 7}}'), WireError, "status 404"),
        (http("302 Found", b"{}"), WireError, "status 302"),
        (http("500 Oh", b'{"error": {"message": "its own fault"}}'), KvistError, "its own fault"),
        (http("400 No", b'{"error": {"message": "ours"}}'), ConfigError, "ours"),
    ],
)
def test_a_server_that_dies_or_is_another_s_is_an_error(
    reply: bytes, kind: type[KvistError], complaint: str, environment: dict[str, str]
) -> None:
    path = socket_path(environment, 8000)
    with saying(path, reply), pytest.raises(kind, match=complaint) as caught:
        asker(path)("purge", {"all": True})
    assert type(caught.value) is kind
