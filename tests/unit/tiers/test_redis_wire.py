"""Replies are read whatever way they are cut, and whatever is no reply is refused within bounds of time and memory."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse, OutOfMemoryError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from fakes.clock import HandClock
from kvist.app.clock import SystemClock
from kvist.base.clock import Clock
from kvist.tiers.redis_wire import RedisWire

TIMEOUT_S = 30.0


@contextmanager
def wired(clock: Clock | None = None) -> Iterator[tuple[RedisWire, socket.socket]]:
    """A wire, and the server's end of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = RedisWire(clock or SystemClock(), TIMEOUT_S)
        wire.on_connect(SimpleNamespace(_sock=ours))
        yield wire, theirs


@contextmanager
def told(*pieces: bytes) -> Iterator[RedisWire]:
    """A wire to a server that says some pieces, one after the other, and hangs up."""
    with wired() as (wire, theirs):

        def tell() -> None:
            with suppress(OSError):  # the test has seen enough, and hung up
                for piece in pieces:
                    theirs.sendall(piece)
                theirs.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=tell)
        thread.start()
        try:
            yield wire
        finally:
            wire.abort()
            thread.join()


Replies = st.one_of(
    st.integers(-(10**18), 10**18),
    st.text("ab:$ ", max_size=9),
    st.binary(max_size=300),
    st.none(),
    st.just(b"x" * 16_384),
)


def written(reply: int | str | bytes | None) -> bytes:
    """A reply as a server writes it: a text as a line, bytes as a string."""
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case str():
            return b"+%b\r\n" % reply.encode()
        case _:
            return b"$%d\r\n%b\r\n" % (len(reply), reply)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, cut at some places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    starts = [0, *ends[:-1]]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


@given(st.lists(Replies, max_size=8), st.lists(st.integers(0, 100_000), max_size=8))
def test_replies_may_be_cut_anywhere(replies: list, places: list[int]) -> None:
    with told(*cut(b"".join(map(written, replies)), places)) as wire:
        wanted = [reply.encode() if isinstance(reply, str) else reply for reply in replies]
        assert [wire.receive() for _ in replies] == wanted
        with pytest.raises(RedisConnectionError, match="closed"):
            wire.receive()


@given(st.lists(st.integers(-3, 10**15), max_size=3000), st.lists(st.integers(0, 100_000), max_size=8))
def test_numbers_may_be_cut_anywhere(numbers: list[int], places: list[int]) -> None:
    with told(*cut(b"".join(map(written, numbers)), places)) as wire:
        assert wire.receive_integers(len(numbers)) == numbers


@given(st.binary(max_size=100_000), st.lists(st.integers(0, 200_000), max_size=5), st.integers(0, 100_000))
def test_a_string_lands_in_the_buffers_of_the_caller(data: bytes, places: list[int], parted: int) -> None:
    with told(*cut(written(data) + written(7), places)) as wire:
        length = wire.receive_length()
        assert length == len(data)
        room = bytearray(b"\xaa" * (len(data) + 2))
        middle = 1 + min(parted, len(data))
        wire.take_into(memoryview(room)[1:middle])
        wire.take_into(memoryview(room)[middle : 1 + len(data)])
        wire.end_string()
        assert bytes(room) == b"\xaa" + data + b"\xaa"
        assert wire.receive() == 7


@given(st.lists(st.binary(max_size=100), max_size=40), st.lists(st.integers(0, 10_000), max_size=5))
def test_an_array_of_strings_is_read(strings: list[bytes], places: list[int]) -> None:
    data = b"*%d\r\n" % len(strings) + b"".join(map(written, strings))
    with told(*cut(data + written(1), places)) as wire:
        assert wire.receive_array(100_000) == strings
        assert wire.receive() == 1


def test_pieces_are_sent_in_order_from_where_they_are() -> None:
    with wired() as (wire, theirs):
        record = memoryview(bytearray(range(256)))
        wire.send([b"head", record, b"", record[10:12], b"tail"])
        assert theirs.recv(1000) == b"head" + bytes(record) + b"\x0a\x0btail"


def receive(wire: RedisWire) -> object:
    return wire.receive()


def receive_string(wire: RedisWire) -> None:
    length = wire.receive_length()
    assert isinstance(length, int)
    wire.take_into(memoryview(bytearray(length)))
    wire.end_string()


def receive_array(wire: RedisWire) -> object:
    return wire.receive_array(1000)


@pytest.mark.parametrize(
    ("call", "data"),
    [
        (receive, b"\r\n"),
        (receive, b"hello\r\n"),
        (receive, b"HTTP/1.1 400 Bad Request\r\n"),
        (receive, b":\r\n"),
        (receive, b":1x\r\n"),
        (receive, b":--1\r\n"),
        (receive, b":" + b"9" * 30 + b"\r\n"),
        (receive, "\N{ARABIC-INDIC DIGIT ONE}".join((":", "\r\n")).encode()),
        (receive, b"$\r\n"),
        (receive, b"$16385\r\n"),
        (receive, b"$99999999999\r\n"),
        (receive, b"$2\r\nabc\r\n"),
        (receive, b"*1\r\n:1\r\n"),
        (receive, b"-MOVED nonsense\r\n"),
        (receive, b"-ASK 1 host:port\r\n"),
        (receive, b"x" * 20_000),
        (receive, b"+" + b"\r" * 20_000),
        (receive_string, b":1\r\n"),
        (receive_string, b"$1\r\nabc"),
        (receive_array, b"$1\r\na\r\n"),
        (receive_array, b"*1\r\n$-1\r\n"),
        (receive_array, b"*1\r\n:1\r\n"),
        (receive_array, b"*1\r\n$1001\r\n"),
        (receive_array, b"*99999999999\r\n" + b"$0\r\n\r\n" * 1000),
        (lambda wire: wire.receive_array_head(2), b"*3\r\n"),
        (lambda wire: wire.receive_array_head(2), b":2\r\n"),
        (lambda wire: wire.receive_integers(2), b":1\r\n:1\r\n:1\r\n"),
        (lambda wire: wire.receive_integers(2), b":1\r\n$1\r\n1\r\n"),
        (lambda wire: wire.receive_integers(1), b"x" * 20_000),
    ],
)
def test_what_is_no_reply_is_refused(call: Callable[[RedisWire], object], data: bytes) -> None:
    with told(data) as wire, pytest.raises(InvalidResponse):
        call(wire)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"-ERR unknown command", ResponseError),
        (b"-OOM command not allowed", OutOfMemoryError),
        (b"-WRONGTYPE Operation", ResponseError),
        (b"-", ResponseError),
        (b"-\xff\xfe", ResponseError),
    ],
)
def test_an_error_of_one_command_is_its_answer(line: bytes, kind: type[ResponseError]) -> None:
    with told(line + b"\r\n:1\r\n") as wire:
        assert type(wire.receive()) is kind
        assert wire.receive() == 1
    with told(line + b"\r\n:1\r\n") as wire:
        first, second = wire.receive_integers(2)
        assert (type(first), second) == (kind, 1)
    with told(line + b"\r\n") as wire:
        assert type(wire.receive_length()) is kind


@pytest.mark.parametrize(
    ("line", "kind"), [(b"-NOAUTH Authentication required.", AuthenticationError), (b"-LOADING wait", BusyLoadingError)]
)
def test_an_error_of_the_connection_is_raised(line: bytes, kind: type[Exception]) -> None:
    with told(line + b"\r\n") as wire, pytest.raises(kind):
        wire.receive()


class StepClock(HandClock):
    """Goes on a second whenever somebody looks."""

    def now_s(self) -> float:
        self.advance(1.0)
        return super().now_s()


def test_a_server_that_drips_does_not_outlast_the_deadline() -> None:
    with wired(StepClock()) as (wire, theirs):
        wire.begin(0)
        theirs.sendall(b"$1000\r\n")
        assert wire.receive_length() == 1000
        taken = []

        def drip() -> None:
            for _ in range(1000):
                theirs.sendall(b"x")
                wire.take_into(memoryview(bytearray(1)))
                taken.append(True)

        with pytest.raises(TimeoutError, match="no whole answer within"):
            drip()
        assert 10 < len(taken) < TIMEOUT_S


def test_more_bytes_have_more_time() -> None:
    clock = HandClock()
    with wired(clock) as (wire, theirs):
        theirs.sendall(b"+a\r\n")
        wire.begin(16 * 2**20)
        clock.advance(TIMEOUT_S + 0.9)
        assert wire.receive() == b"a"
        clock.advance(0.2)
        with pytest.raises(TimeoutError):
            wire.receive()


def test_a_reader_that_waits_is_woken_by_abort() -> None:
    with wired() as (wire, _), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wire.receive)
        wire.abort()
        wire.abort()
        assert isinstance(waiting.exception(timeout=10), RedisConnectionError)


def test_what_comes_unasked_is_noticed() -> None:
    with wired() as (wire, theirs):
        assert not wire.can_read()
        theirs.sendall(b"+a\r\n+b\r\n")
        assert wire.can_read(10)
        assert wire.receive() == b"a"
        assert wire.can_read()
        assert wire.receive() == b"b"
        assert not wire.can_read()
        theirs.close()
        assert wire.can_read(10)


def test_a_wire_without_a_connection_says_so() -> None:
    with wired() as (wire, _):
        wire.on_disconnect()
        wire.abort()
        for call in (wire.receive, wire.can_read, lambda: wire.send([b"x"])):
            with pytest.raises(RedisConnectionError, match="not connected"):
                call()
