"""Runs an app on a socket until it is told to stop, and then lets it finish.

    SIGTERM or SIGINT ─▶ drain: new requests get 503, running ones go on
        all have left, or the drain's time is over, or a second signal ─▶ the rest is aborted, and says so to its client
            all have left ─▶ the sockets close, `serve` returns

Knows sockets and signals; does not know what the app serves.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator

import uvicorn
import uvloop
from fastapi import FastAPI

from kvist.base.errors import ConfigError
from kvist.server.app import lifecycle_of

_log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
KEEP_ALIVE_S = 65
"""Longer than most clients keep an idle connection, so that none closes just as a request is sent on it."""

ABORT_GRACE_S = 5
"""How long aborted requests may take to say so to their clients."""


OnListening = Callable[[str, int], None]


def serve(app: FastAPI, listener: socket.socket, drain_s: float, on_listening: OnListening) -> None:
    """Serves until SIGTERM or SIGINT, drains, and returns.

    Args:
        app: made by `create_app`.
        listener: made by `listen`; closed in the end.
        drain_s: how long running requests may go on after a signal.
        on_listening: called once on the event loop with the address, when requests are taken.
    """
    server = DrainingServer(app, drain_s, on_listening)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve(sockets=[listener]))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on one address; who connects waits until `serve` takes it.

    Args:
        host: name or address of one interface; nothing else is listened on.
        port: 0 lets the system choose.

    Raises:
        ConfigError: no such address, no right to it, or someone else has it.
    """
    if not host:
        raise ConfigError("the host is empty; name the interface to listen on, such as 127.0.0.1 or 0.0.0.0")
    if not 0 <= port < 2**16:
        # Some systems take such a number modulo 65536 and listen where nobody asked for it.
        raise ConfigError(f"port {port} is not one of 0 to 65535; 0 lets the system choose")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _unusable(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise _unusable(host, port, error) from error
    return listener


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",  # bounds what a header may take; httptools, which is faster, does not
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # What a client says of itself is not believed.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=ABORT_GRACE_S,
    )


def _unusable(host: str, port: int, error: Exception) -> ConfigError:
    return ConfigError(f"can not listen on {host!r} port {port}: {error}; choose another host or port")


class DrainingServer(uvicorn.Server):
    """Uvicorn's server, with a drain between the signal and the shutdown."""

    def __init__(self, app: FastAPI, drain_s: float, on_listening: OnListening) -> None:
        """Prepares; `serve(sockets=[...])` then runs it on the current event loop until `stop` or a signal."""
        super().__init__(_config(app))
        self._lifecycle = lifecycle_of(app)
        self._drain_s = drain_s
        self._on_listening = on_listening
        self._hurry = asyncio.Event()
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts uvicorn and says so."""
        await super().startup(sockets=sockets)
        for listener in sockets or ():
            self._on_listening(*listener.getsockname()[:2])

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Turns signals into `stop` while it runs, where that is possible: on the main thread."""
        # In place of uvicorn's, which ends at once and dies of the signal in the end: a drained server exits with 0.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for each in SIGNALS:
            loop.add_signal_handler(each, self.stop)
        try:
            yield
        finally:
            for each in SIGNALS:
                loop.remove_signal_handler(each)

    def stop(self) -> None:
        """Begins to drain; called again, ends the drain."""
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._drain_and_exit())
        else:
            self._hurry.set()

    async def _drain_and_exit(self) -> None:
        self._lifecycle.drain()
        _log.info("draining: %d requests run, for at most %g s", self._lifecycle.running, self._drain_s)
        if not await self._becomes_idle(self._drain_s):
            _log.warning("aborting %d requests that still run", self._lifecycle.running)
            self._lifecycle.abort_all()
            self._hurry.clear()
            await self._becomes_idle(ABORT_GRACE_S)
        self.should_exit = True

    async def _becomes_idle(self, within_s: float) -> bool:
        """Waits until nothing runs, or the time is over, or someone hurries; says whether nothing runs."""
        idle, hurry = (asyncio.ensure_future(each) for each in (self._lifecycle.wait_idle(), self._hurry.wait()))
        await asyncio.wait((idle, hurry), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for each in (idle, hurry):
            each.cancel()
        await asyncio.gather(idle, hurry, return_exceptions=True)
        return self._lifecycle.running == 0
