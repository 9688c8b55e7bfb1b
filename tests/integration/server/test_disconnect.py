"""A client that goes away, in whatever state and by whatever means, leaves nothing in the engine."""

import json
import socket
import struct

import pytest

from fakes.engine import Script
from fakes.served import Served

WAITING, PREFILL, DECODE = Script(waits=True), Script(stalls_after=0), Script(stalls_after=3)


def connect_and_ask(served: Served, **fields: object) -> socket.socket:
    body = json.dumps({"model": served.model, "prompt": "x", "max_tokens": 100} | fields).encode()
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=30)
    lines = ["POST /v1/completions HTTP/1.1", "host: kvist", "content-type: application/json"]
    connection.sendall("\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body)
    return connection


def vanish(connection: socket.socket) -> None:
    """Closes with a reset, as a process that was killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [socket.socket.close, vanish])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [WAITING, PREFILL, DECODE])
def test_its_sequences_are_aborted(serve, script: Script, stream: bool, leave) -> None:
    served = serve(script)
    connection = connect_and_ask(served, stream=stream, n=3)
    drawn = 3 * (script.stalls_after or 0)
    served.engine.wait_for(lambda each: each.running + each.waiting == 3 and each.tokens_output == drawn)
    if stream and script is DECODE:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    leave(connection)
    after = served.engine.wait_for(lambda each: each.running + each.waiting == 0)
    assert (after.aborts, after.finished) == (3, 3)


def test_others_are_not_disturbed(serve) -> None:
    served = serve(DECODE)
    leaving, staying = (connect_and_ask(served) for _ in range(2))
    served.engine.wait_for(lambda each: each.tokens_output == 6)
    leaving.close()
    assert served.engine.wait_for(lambda each: each.running == 1).aborts == 1
    served.engine.release()
    with staying:
        assert staying.recv(65536).startswith(b"HTTP/1.1 200")
    assert served.engine.statistics().aborts == 1
