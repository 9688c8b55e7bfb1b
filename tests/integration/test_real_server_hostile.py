"""`kvist serve` over SmolLM2 against hostile input, clients that leave, a crowd, a signal: it goes on and says why."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterator

import httpx
import pytest

from real.prompts import PROSE
from real.server import WAIT_S, Metrics, RealServer

pytestmark = [pytest.mark.model, pytest.mark.slow]

POOL_TOKENS = 7280
CONNECTIONS = 200
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USED = 'kvist_kv_blocks{group="0",state="used"}'
COMPUTED, OUTPUT = 'kvist_tokens_total{source="computed"}', 'kvist_tokens_total{source="output"}'

BAD_COMPLETIONS: dict[str, tuple[dict[str, object], int, str]] = {
    "empty text": ({"prompt": ""}, 400, "'prompt' is empty"),
    "no tokens": ({"prompt": []}, 400, "prompt"),
    "an empty list of tokens": ({"prompt": [[]]}, 400, "'prompt' is empty"),
    "a text longer than the model": ({"prompt": PROSE * 140}, 400, "takes at most"),
    "ids longer than the model": ({"prompt": [5] * 8193}, 400, "8193 tokens"),
    "a prompt that leaves no room": ({"prompt": [5] * POOL_TOKENS}, 400, "takes at most 7279"),
    "an output that can never fit": ({"max_tokens": POOL_TOKENS + 1}, 400, "context is 7280 tokens"),
    "an output beyond counting": ({"max_tokens": 10**30}, 400, "max_tokens"),
    "an id out of range": ({"prompt": [5, 49152]}, 400, "49152"),
    "a negative id": ({"prompt": [-1]}, 400, "-1"),
    "an id of 70 bits": ({"prompt": [2**70]}, 400, "11805"),
    "half a surrogate pair": ({"prompt": "\ud800"}, 400, "not valid JSON"),
    "an unknown model": ({"model": "gpt-5"}, 404, "gpt-5"),
    "a negative temperature": ({"temperature": -0.1}, 400, "temperature"),
    "a negative top_p": ({"top_p": -1}, 400, "top_p"),
    "a negative top_k": ({"top_k": -7}, 400, "top_k"),
    "a min_p above one": ({"min_p": 1.5}, 400, "min_p"),
    "a negative bound": ({"max_tokens": -5}, 400, "max_tokens"),
    "negative logprobs": ({"logprobs": -1}, 400, "logprobs"),
    "NaN": ({"temperature": float("nan")}, 400, "not valid JSON"),
    "infinity": ({"top_p": float("inf")}, 400, "not valid JSON"),
    "ten thousand choices": ({"n": 10_000}, 400, "'n'"),
    "no choices": ({"n": 0}, 400, "'n'"),
    "a number as text": ({"max_tokens": "12"}, 400, "max_tokens"),
    "a penalty that is not honoured": ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
    "an unknown parameter": ({"temprature": 1}, 400, "temprature"),
}

BAD_BODIES: dict[str, tuple[str, bytes, int, str]] = {
    "invalid UTF-8": (COMPLETIONS, b'{"model": "SmolLM2-135M-Instruct", "prompt": "\xff\xfe"}', 400, "not valid JSON"),
    "invalid UTF-8 in a conversation": (CHAT, b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', 400, "JSON"),
    "ten megabytes": (COMPLETIONS, json.dumps({"prompt": "a " * 5 * 2**20}).encode(), 413, "larger than 8.0 MiB"),
    "a long text within the bound": (
        COMPLETIONS,
        json.dumps({"model": "SmolLM2-135M-Instruct", "prompt": "a b " * 500_000}).encode(),
        400,
        "takes at most",
    ),
    "nesting": (COMPLETIONS, b'{"prompt": ' + b"[" * 100_000, 400, "not valid JSON"),
    "no JSON": (COMPLETIONS, b"prompt=hello", 400, "not valid JSON"),
    "no object": (CHAT, b'["hello"]', 400, "must be a JSON object"),
    "nothing": (CHAT, b"", 400, "not valid JSON"),
    "no messages": (CHAT, b'{"model": "SmolLM2-135M-Instruct", "messages": []}', 400, "messages"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer("--model", "smollm2", "--kv-memory", "160MiB", "--step-tokens", "256") as server:
        yield server


@pytest.fixture
def unharmed(server: RealServer) -> Iterator[None]:
    """Whatever a test does, the server then answers, holds no block and has had no fault."""
    yield
    assert server.complete("The lamp is")["usage"]["completion_tokens"] == 4
    found = server.metrics_when(lambda each: each["kvist_requests_running"] == 0)
    assert found[USED] == 0
    assert found["kvist_failures_total"] == found["kvist_out_of_memory_total"] == 0
    assert "Traceback" not in server.output()


def check_refusal(response: httpx.Response, status: int, words: str) -> None:
    """An error of OpenAI's shape that names what was wrong."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert words in error["message"]
    assert len(error["message"]) < 500


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("name", BAD_COMPLETIONS)
def test_a_bad_completion_is_refused(server: RealServer, name: str) -> None:
    fields, status, words = BAD_COMPLETIONS[name]
    body = {"model": server.model, "prompt": "The lamp is", "max_tokens": 4} | fields
    check_refusal(server.post(COMPLETIONS, json.dumps(body).encode()), status, words)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_refused(server: RealServer, name: str) -> None:
    path, body, status, words = BAD_BODIES[name]
    check_refusal(server.post(path, body), status, words)


def connect_and_ask(server: RealServer, **fields: object) -> socket.socket:
    """A request on a connection of its own, sent and not yet answered."""
    body = json.dumps({"model": server.model, "temperature": 0} | fields).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: kvist\r\ncontent-type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=WAIT_S)
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def vanish(connection: socket.socket) -> None:
    """Closes with a reset, as the kernel does for a process that was killed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def long_prompt(seed: int) -> list[int]:
    return [(seed + index * 7919) % 49_000 + 100 for index in range(5000)]


def abandon(server: RealServer, connection: socket.socket, leave: Callable[[socket.socket], None]) -> Metrics:
    """Leaves, and returns the first reading after the engine ended what was asked; checks that it took one step."""
    before = server.metrics()
    leave(connection)
    left = server.metrics()
    after = server.metrics_when(lambda each: each["kvist_aborts_total"] > before["kvist_aborts_total"])
    assert after[USED] == 0
    assert after["kvist_requests_running"] == after["kvist_requests_waiting"] == 0
    # The step under way when the client left, and one more if it ended before the server heard of it.
    assert after["kvist_steps_total"] - left["kvist_steps_total"] <= 2
    return after


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("leave", [socket.socket.close, vanish])
def test_a_client_that_leaves_during_prefill_frees_its_blocks_within_a_step(server: RealServer, leave) -> None:
    before = server.metrics()
    asked = long_prompt(seed=1 if leave is vanish else 2)
    connection = connect_and_ask(server, prompt=asked, max_tokens=50)
    underway = server.metrics_when(lambda each: each[COMPUTED] > before[COMPUTED])
    assert underway[USED] > 0
    after = abandon(server, connection, leave)
    assert after[COMPUTED] - before[COMPUTED] < len(asked)
    assert after[OUTPUT] == before[OUTPUT]


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_during_decoding_frees_its_blocks_within_a_step(server: RealServer, stream: bool) -> None:
    before = server.metrics()
    fields = {"prompt": PROSE, "max_tokens": 3000, "stream": stream, "ignore_eos": True}
    connection = connect_and_ask(server, **fields)
    if stream:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    underway = server.metrics_when(lambda each: each[OUTPUT] > before[OUTPUT] + 3)
    assert underway[USED] > 0
    after = abandon(server, connection, socket.socket.close)
    assert after[OUTPUT] - before[OUTPUT] < 3000


@pytest.mark.usefixtures("unharmed")
def test_a_client_that_leaves_does_not_disturb_another(server: RealServer) -> None:
    before = server.metrics()
    staying = connect_and_ask(server, prompt=PROSE[:200], max_tokens=150, stream=True, ignore_eos=True)
    leaving = connect_and_ask(server, prompt=PROSE[100:], max_tokens=3000, stream=True, ignore_eos=True)
    server.metrics_when(lambda each: each["kvist_requests_running"] == 2 and each[OUTPUT] > before[OUTPUT] + 3)
    leaving.close()
    server.metrics_when(lambda each: each["kvist_aborts_total"] > before["kvist_aborts_total"])
    with staying, staying.makefile("rb") as answer:
        events = [line for line in answer_lines(answer) if line.startswith(b"data: ")]
    last = json.loads(events[-2].removeprefix(b"data: "))
    assert last["choices"][0]["finish_reason"] == "length"


def answer_lines(answer) -> Iterator[bytes]:
    """The lines of a streamed answer, up to its last event."""
    for line in answer:
        yield line
        if line.strip() == b"data: [DONE]":
            return


async def crowd(server: RealServer) -> list[dict[str, object]]:
    """Two hundred connections, all open before the first request is sent, all sent before the first answer is read."""
    port = int(server.url.rsplit(":", 1)[1])
    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)))
    for index, (_, writer) in enumerate(opened):
        fields = {"prompt": f"{index} lamps and {index + 1} boats", "max_tokens": 3, "ignore_eos": True}
        body = json.dumps({"model": server.model, "temperature": 0} | fields).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: kvist\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    answers = await asyncio.gather(*(reader.read() for reader, _ in opened))
    for _, writer in opened:
        writer.close()
        await writer.wait_closed()
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    return [json.loads(answer.partition(b"\r\n\r\n")[2]) for answer in answers]


@pytest.mark.usefixtures("unharmed")
def test_two_hundred_connections_at_once_are_all_answered(server: RealServer) -> None:
    before = server.metrics()
    answers = asyncio.run(crowd(server))
    assert len({answer["id"] for answer in answers}) == CONNECTIONS
    assert all(answer["usage"]["completion_tokens"] == 3 for answer in answers)
    finished = server.metrics()["kvist_finished_total"] - before["kvist_finished_total"]
    assert finished == CONNECTIONS


def test_a_signal_lets_a_stream_finish_and_the_server_ends_well() -> None:
    with RealServer("--model", "smollm2", "--kv-memory", "64MiB", "--drain-seconds", str(WAIT_S)) as server:
        body = {"model": server.model, "prompt": PROSE, "max_tokens": 120, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{server.url}{COMPLETIONS}", json=body, timeout=WAIT_S) as response:
            lines = (line.removeprefix("data: ") for line in response.iter_lines() if line)
            texts = [json.loads(next(lines))["choices"][0]["text"]]
            server.terminate()
            server.metrics_when(lambda each: each["kvist_ready"] == 0)
            check_refusal(server.post(COMPLETIONS, body), 503, "draining")
            assert server.metrics()["kvist_requests_running"] == 1
            rest = list(lines)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "length"
        texts += [json.loads(each)["choices"][0]["text"] for each in rest[:-1]]
        assert len(texts) > 60
        assert server.process.wait(WAIT_S) == 0
        assert "Traceback" not in server.output()
