"""Servers from start to ready, and to their first answer, in turn."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence

import httpx
from engines import Process

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError

_ASK_S = 0.02


@contextlib.contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], url: str, start_s: float
) -> Iterator[tuple[Process, float]]:
    """A server for the time of a `with`, and the seconds from its start until it says that it is well.

    Raises:
        ConfigError: it ended, or was not ready within `start_s`; what it said.
    """
    clock = SystemClock()
    begun_s = clock.now_s()
    process = Process(command, environment)
    try:
        process.drain(output=True)
        _wait(process, url, begun_s + start_s)
        yield process, clock.now_s() - begun_s
    finally:
        process.stop()


def first_answer_s(url: str) -> float:
    """Seconds until a server has answered a tiny prompt.

    Raises:
        ConfigError: it does not answer.
    """
    clock = SystemClock()
    begun_s = clock.now_s()
    try:
        with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body = {"model": model, "prompt": [107, 108, 109], "max_tokens": 1}
            client.post("/v1/completions", json=body).raise_for_status()
    except httpx.HTTPError as error:
        raise ConfigError(f"{url} is ready and does not answer: {error}") from error
    return clock.now_s() - begun_s


def _wait(process: Process, url: str, deadline_s: float) -> None:
    clock, pause = SystemClock(), threading.Event()
    with httpx.Client(timeout=5, trust_env=False) as client:
        while not pause.wait(_ASK_S):
            with contextlib.suppress(httpx.HTTPError):
                if client.get(f"{url}/health").status_code == httpx.codes.OK:
                    return
            if process.has_ended or clock.now_s() > deadline_s:
                raise ConfigError(f"{process.command} did not start: {process.said}")
