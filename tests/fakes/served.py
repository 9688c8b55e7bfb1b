"""A server on a loopback socket: in a thread beside the test, or as a program of its own for the tests of signals.

    python tests/fakes/served.py DRAIN_S

serves `echo_program` on a free port of 127.0.0.1 and writes "listening PORT" when it does.
"""

import asyncio
import sys
import threading
from concurrent.futures import Future

from fakes.engine import Program, Script, ScriptedEngine, text_script
from fakes.serving import MODEL, SETTINGS
from fakes.tokenizer import ByteTokenizer
from kvist.app.clock import SystemClock
from kvist.engine.messages import EngineLimits
from kvist.engine.request import Request
from kvist.server.app import create_app
from kvist.server.listen import DrainingServer, listen, serve


def echo_program(request: Request) -> Script:
    """Says the prompt again; "stall" stalls after three tokens, and "wait" is never admitted."""
    prompt = bytes(token for token in request.prompt if token < 256)
    if prompt.endswith(b"wait"):
        return Script(waits=True)
    return text_script(prompt, stalls_after=3 if prompt.endswith(b"stall") else None)


class Served:
    """A context in which a scripted engine is served from a thread."""

    def __init__(self, program: Program | Script, limits: EngineLimits, drain_s: float = 30.0) -> None:
        self.engine = ScriptedEngine(program, limits)
        self._listening: Future[tuple[asyncio.AbstractEventLoop, int]] = Future()
        app = create_app(self.engine, ByteTokenizer(), SETTINGS, SystemClock())
        self._server = DrainingServer(app, drain_s, self._on_listening)
        self._thread = threading.Thread(target=self._run, name="served")

    def _on_listening(self, _host: str, port: int) -> None:
        self._listening.set_result((asyncio.get_running_loop(), port))

    def _run(self) -> None:
        listener = listen("127.0.0.1", 0)
        asyncio.run(self._server.serve(sockets=[listener]))

    def __enter__(self) -> "Served":
        self._thread.start()
        self.loop, self.port = self._listening.result(30)
        self.url = f"http://127.0.0.1:{self.port}"
        self.model = MODEL.id
        return self

    def stop(self) -> None:
        """What a signal does."""
        if self._thread.is_alive() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._server.stop)

    def join(self) -> None:
        """Waits for the server's end."""
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server did not end"

    def __exit__(self, *_: object) -> None:
        self.engine.release()
        self.stop()
        self.join()
        self.engine.close()


def main() -> None:
    engine = ScriptedEngine(echo_program)
    app = create_app(engine, ByteTokenizer(), SETTINGS, SystemClock())
    listener, drain_s = listen("127.0.0.1", 0), float(sys.argv[1])
    try:
        serve(app, listener, drain_s, lambda _, port: print(f"listening {port}", flush=True))  # noqa: T201  # the test reads it
    finally:
        engine.close()


if __name__ == "__main__":
    main()
