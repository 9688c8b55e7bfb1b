"""A bounded number of connections to one Redis server, borrowed for one call each.

Nothing is tried twice: a connection that died while nobody used it is replaced before it is used again, and one that
fails in use is dropped with the call.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from kvist.base.clock import Clock
from kvist.base.errors import TierUnavailableError
from kvist.tiers.redis_errors import translated
from kvist.tiers.redis_settings import RedisSettings
from kvist.tiers.redis_wire import RedisWire


class _Opened:
    """A connection of the package, and our wire on its socket."""

    def __init__(self, settings: RedisSettings, clock: Clock) -> None:
        self.wire = RedisWire(clock, settings.timeout_s)
        self._connection = _connection(settings, self.wire)

    def connect(self) -> None:
        """Connects, encrypts and authenticates, in at most the two time-outs together."""
        self._connection.connect()

    def is_fresh(self) -> bool:
        """Whether the connection is up and nothing has come that nobody asked for."""
        return self._connection.is_connected and not self.wire.can_read()

    def disconnect(self) -> None:
        """Ends it."""
        self._connection.disconnect()


class RedisConnections:
    """Opens connections when they are needed, and keeps them."""

    def __init__(self, name: str, settings: RedisSettings, clock: Clock) -> None:
        """Connects to nothing yet, so that a server which is down stops nobody's start.

        Args:
            name: of the tier, for errors.
            settings: where and how.
            clock: for deadlines.
        """
        self._name = name
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[_Opened] = []
        self._used: set[_Opened] = set()
        self._is_closed = False

    def check_open(self) -> None:
        """Raises `TierUnavailableError` after `close`."""
        if self._is_closed:
            raise TierUnavailableError("it is closed", tier=self._name)

    @contextmanager
    def borrow(self) -> Iterator[RedisWire]:
        """A connection for one call; whatever fails meanwhile is an error of the tier, and drops the connection.

        Raises:
            TierTimeoutError: none became free, or the server did not answer, in time.
            TierFullError, TierUnavailableError: as the server said, or because it cannot be reached.
        """
        with translated(tier=self._name, server=str(self._settings.server)):
            opened = self._take()
            is_whole = False
            try:
                if not opened.is_fresh():
                    opened.disconnect()
                    self.check_open()  # `close` ends connections, so it may be why this one is of no use
                    opened.wire.begin(0)
                    opened.connect()
                self.check_open()
                yield opened.wire
                is_whole = True
            finally:
                self._give_back(opened, is_whole=is_whole)

    def close(self) -> None:
        """Ends all connections, also under those who use them; may be repeated.

        Who is just connecting ends at the latest when that has timed out.
        """
        with self._changed:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for opened in self._used:
                opened.wire.abort()
            self._changed.notify_all()
        for opened in idle:
            opened.disconnect()

    def _take(self) -> _Opened:
        deadline_s = self._clock.now_s() + self._settings.timeout_s
        with self._changed:
            while True:
                self.check_open()
                if self._idle or len(self._used) < self._settings.connections_max:
                    opened = self._idle.pop() if self._idle else _Opened(self._settings, self._clock)
                    self._used.add(opened)
                    return opened
                remaining_s = deadline_s - self._clock.now_s()
                if remaining_s <= 0:
                    raise TimeoutError(f"all {self._settings.connections_max} connections are in use")
                self._changed.wait(remaining_s)

    def _give_back(self, opened: _Opened, *, is_whole: bool) -> None:
        with self._changed:
            self._used.discard(opened)
            if is_whole and not self._is_closed:
                self._idle.append(opened)
                self._changed.notify()
                return
            self._changed.notify()
        opened.disconnect()


def _connection(settings: RedisSettings, wire: RedisWire) -> Any:  # noqa: ANN401  the package types none of its methods
    """The package's connection, with our wire as its parser."""
    server = settings.server
    kind: Any = Connection
    options: dict[str, object] = {
        "db": server.database,
        "username": server.username,
        "password": server.password,
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.connect_timeout_s,
        "protocol": 2,
        "parser_class": lambda **_: wire,
        "driver_info": None,  # would ask for the right to CLIENT SETINFO
    }
    if server.socket_path is not None:
        kind = UnixDomainSocketConnection
        options |= {"path": server.socket_path}
    else:
        options |= {"host": server.host, "port": server.port}
    if server.tls:
        kind = SSLConnection
        options |= {
            "ssl_ca_certs": _text(settings.ca_file),
            "ssl_certfile": _text(settings.certificate_file),
            "ssl_keyfile": _text(settings.key_file),
            "ssl_password": "",  # an encrypted key is refused; without this, OpenSSL asks for a password at a terminal
        }
    return kind(**options)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
