"""A server that says whatever it is told to say, to see what a client does about it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class RedisPeer:
    """Listens on loopback; answers the first bytes of each connection with `reply`, then with `more` for ever.

    Attributes:
        port: where it listens.
        connections: how many came.
    """

    def __init__(self, reply: bytes, more: bytes = b"") -> None:
        self._reply, self._more = reply, more
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        serving = []
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            self.connections += 1
            self._open.append(connection)
            serving.append(threading.Thread(target=self._serve, args=(connection,)))
            serving[-1].start()
        for each in serving:
            each.join()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client goes when it has seen enough
            if connection.recv(65536):
                connection.sendall(self._reply)
            while self._more:
                connection.sendall(self._more)
            while connection.recv(65536):
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with suppress(OSError):  # it has gone by itself
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@contextmanager
def redis_peer(reply: bytes, more: bytes = b"") -> Iterator[RedisPeer]:
    """One for the length of a `with`."""
    peer = RedisPeer(reply, more)
    try:
        yield peer
    finally:
        peer.close()
