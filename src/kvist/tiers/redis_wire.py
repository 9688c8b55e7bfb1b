"""Sends commands and receives replies over a connection that the `redis` package has opened, copying nothing twice.

The package connects, encrypts, authenticates and names errors; this is the parser it is given. Records go from and into
the caller's memory: measured at 0.3-4 MiB, that takes 0.12-0.24 seconds of processor time per GB, against 0.18-1.6 with
the package's own parsers and packers (bench/micro/redis_tier.py).

Laws:
    * Nothing takes longer than the deadline, however the server drips.
    * Nothing that a server sends makes memory grow beyond a line, the caller's buffer, or the bound of an array.
    * A reply that is not what the protocol allows raises `InvalidResponse`; the connection is then of no use.
"""

import select
import socket
from collections.abc import Sequence
from typing import Any

from redis.connection import AbstractConnection, DefaultParser
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

from kvist.base.clock import Clock

Reply = int | bytes | ResponseError | None
"""What a server says in one line, or a short string; None: there is nothing of that name."""

_PARSER: Any = DefaultParser  # knows the names of errors; the package gives its methods no types
_YES_OR_NO = {b":0": 0, b":1": 1}
_BUFFER_BYTES = 16 * 1024
_SLOWEST_BYTES_PER_S = 16 * 2**20
_CLOSED = "the server closed the connection"


class RedisWire:
    """One connection's two directions; used by one thread at a time, `abort` excepted."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        """Waits for the package to call `on_connect`; its own handshake is the first round trip."""
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline_s = clock.now_s() + timeout_s
        self._socket: socket.socket | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # of what was received and not read

    # What the package asks of a parser.

    def on_connect(self, connection: AbstractConnection) -> None:
        """Takes over the socket of a new connection."""
        self._socket = connection._sock  # noqa: SLF001  as the package's own parsers do; there is no other way
        self._start = self._end = 0

    def on_disconnect(self) -> None:
        """Forgets the socket, which the package closes."""
        self._socket = None

    def can_read(self, timeout: float = 0) -> bool:
        """Whether something is there unasked, such as the end of the connection."""
        poll = select.poll()
        poll.register(self._connected(), select.POLLIN)
        return self._start < self._end or bool(poll.poll(timeout * 1000))

    def read_response(self, *, disable_decoding: bool = False, timeout: object = None) -> Reply:
        """One reply of the handshake; decoding and time-outs are not the package's to choose."""
        del disable_decoding, timeout
        return self.receive()

    # What the tier asks.

    def begin(self, nbytes: int) -> None:
        """Starts a round trip of about so many bytes, both ways together."""
        self._deadline_s = self._clock.now_s() + self._timeout_s + nbytes / _SLOWEST_BYTES_PER_S

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Sends all of the pieces, in order, from where they are."""
        sock = self._connected()
        for piece in pieces:
            sock.settimeout(self._remaining_s())
            sock.sendall(piece)

    def receive(self) -> Reply:
        """The next reply, which is a line or a string of at most 16 KiB."""
        line = self._line()
        match line[:1]:
            case b"+":
                return line[1:]
            case b"$":
                length = _integer(line)
                return None if length < 0 else self._short(length)
            case _:
                return self._number(line)

    def receive_integers(self, count: int) -> list[int | ResponseError]:
        """The next replies, each of which is a number; thousands of them cost a fraction of `receive`."""
        found: list[int | ResponseError] = []
        while len(found) < count:
            end = self._buffer.rfind(b"\r\n", self._start, self._end)
            if end < 0:
                self._fill()
                continue
            lines = bytes(self._view[self._start : end]).split(b"\r\n")
            self._start = end + 2
            found += [_YES_OR_NO[line] if line in _YES_OR_NO else self._number(line) for line in lines]
        if len(found) > count:
            raise InvalidResponse(f"more than {count} replies came to {count} commands")
        return found

    def receive_length(self) -> int | ResponseError | None:
        """The length of the string that is the next reply; its bytes are then to be taken, and `end_string` called."""
        line = self._line()
        if line[:1] != b"$":
            return self._error(line)
        length = _integer(line)
        return None if length < 0 else length

    def take_into(self, into: memoryview) -> None:
        """Fills a buffer with the next bytes of a string."""
        have = min(self._end - self._start, into.nbytes)
        into[:have] = self._view[self._start : self._start + have]
        self._start += have
        rest = into[have:]
        while rest.nbytes:
            rest = rest[self._receive_into(rest) :]

    def end_string(self) -> None:
        """Takes what the protocol puts after the last byte of a string."""
        self._mark()

    def receive_array(self, bytes_max: int) -> list[bytes]:
        """The strings of the next reply, an array of them, of no more than so many bytes together."""
        line = self._line()
        if line[:1] != b"*":
            raise self._error(line)
        found: list[bytes] = []
        for _ in range(_integer(line)):
            length = self.receive_length()
            if not isinstance(length, int):
                raise InvalidResponse("an array of strings held something else")
            bytes_max -= length + 16
            if bytes_max < 0:
                raise InvalidResponse("an array of strings was longer than anything asked for")
            found.append(self._long(length))
        return found

    def receive_array_head(self, length: int) -> None:
        """The beginning of an array that must have so many elements."""
        line = self._line()
        if line[:1] != b"*":
            raise self._error(line)
        if _integer(line) != length:
            raise InvalidResponse(f"{line[:40]!r} begins an array of another length than {length}")

    def abort(self) -> None:
        """Ends the connection under whoever is waiting for it; from any thread."""
        sock = self._socket
        if sock is not None:
            try:
                # Not the method of a TLS socket, which would send the waiting thread on unencrypted.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise RedisConnectionError("not connected")
        return self._socket

    def _remaining_s(self) -> float:
        remaining_s = self._deadline_s - self._clock.now_s()
        if remaining_s <= 0:
            raise TimeoutError(f"no whole answer within {self._timeout_s} s")
        return remaining_s

    def _receive_into(self, into: memoryview) -> int:
        sock = self._connected()
        sock.settimeout(self._remaining_s())
        received = sock.recv_into(into)
        if not received:
            raise RedisConnectionError(_CLOSED)
        return received

    def _line(self) -> bytes:
        """The next line, without its end."""
        while True:
            end = self._buffer.find(b"\r\n", self._start, self._end)
            if end >= 0:
                line = bytes(self._view[self._start : end])
                self._start = end + 2
                return line
            self._fill()

    def _fill(self) -> None:
        """Receives what fits behind what is there."""
        if self._start:
            have = self._end - self._start
            self._view[:have] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, have
        if self._end == _BUFFER_BYTES:
            raise InvalidResponse(f"a line of more than {_BUFFER_BYTES} bytes: {bytes(self._view[:40])!r}...")
        self._end += self._receive_into(self._view[self._end :])

    def _mark(self) -> None:
        while self._end - self._start < 2:
            self._fill()
        if self._buffer[self._start : self._start + 2] != b"\r\n":
            raise InvalidResponse("a string was longer than the server said")
        self._start += 2

    def _short(self, length: int) -> bytes:
        if length > _BUFFER_BYTES:
            raise InvalidResponse(f"a string of {length} bytes where a short one was asked for")
        return self._long(length)

    def _long(self, length: int) -> bytes:
        taken = bytearray(length)
        self.take_into(memoryview(taken))
        self._mark()
        return bytes(taken)

    def _number(self, line: bytes) -> int | ResponseError:
        return _integer(line) if line[:1] == b":" else self._error(line)

    def _error(self, line: bytes) -> ResponseError:
        """The error that a line is; raised at once when it concerns the connection, or is none at all."""
        if line[:1] != b"-":
            raise InvalidResponse(f"{line[:40]!r} is no reply to what was asked")
        try:
            error = _PARSER.parse_error(line[1:].decode("utf-8", "replace"))
        except (ValueError, IndexError) as malformed:
            raise InvalidResponse(f"{line[:40]!r} is no error that a server sends") from malformed
        if isinstance(error, ResponseError):
            return error
        raise error


def _integer(line: bytes) -> int:
    """The number after the first letter of a line."""
    digits = line[1:]
    if not (1 <= len(digits) <= 20 and digits.removeprefix(b"-").isdigit()):
        raise InvalidResponse(f"{line[:40]!r} has no number")
    return int(digits)
