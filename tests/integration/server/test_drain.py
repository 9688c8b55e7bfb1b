"""A signal ends the server gently: nothing new, the rest within its time, exit code 0."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fakes import served as program
from fakes.serving import MODEL

TESTS = Path(program.__file__).parents[1]
ASK = {"model": MODEL.id, "prompt": "stall", "stream": True}


def test_what_runs_goes_on_and_nothing_new_comes_in(serve) -> None:
    served = serve()
    with httpx.stream("POST", f"{served.url}/v1/completions", json=ASK, timeout=30) as response:
        lines = response.iter_lines()
        assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"] == "s"
        served.stop()
        wait_until_draining(served.url)
        refused = httpx.post(f"{served.url}/v1/completions", json=ASK, timeout=30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        served.engine.release()
        rest = [line.removeprefix("data: ") for line in lines if line]
    assert rest[-1] == "[DONE]"
    assert "".join(json.loads(each)["choices"][0]["text"] for each in rest[:-1]) == "tall"
    served.join()
    assert served.engine.statistics().aborts == 0


def wait_until_draining(url: str) -> None:
    """Asks until the answer is no; a bounded number of times, each of which takes its while."""
    for _ in range(10_000):
        if httpx.get(f"{url}/ready", timeout=30).status_code == 503:
            return
    raise AssertionError("the drain did not begin")


@pytest.fixture
def start_program() -> Iterator[Callable[[float], tuple[subprocess.Popen[str], str]]]:
    """Starts the server as a process of its own; returns it with its address."""
    processes: list[subprocess.Popen[str]] = []

    def start(drain_s: float) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", program.__file__, str(drain_s)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
        )
        processes.append(process)
        assert process.stdout is not None
        word, port = process.stdout.readline().split()
        assert word == "listening"
        return process, f"http://127.0.0.1:{port}"

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_exits_with_0_at_once(start_program, which: signal.Signals) -> None:
    process, url = start_program(600)
    assert httpx.get(f"{url}/health").status_code == 200
    process.send_signal(which)
    assert process.wait(30) == 0
    assert process.stderr.read() == ""


def test_what_does_not_finish_in_time_is_aborted_and_told(start_program) -> None:
    process, url = start_program(0.2)
    with httpx.stream("POST", f"{url}/v1/completions", json=ASK, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line.removeprefix("data: ") for line in lines if line]
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "abort"
    assert rest[-1] == "[DONE]"
    assert process.wait(30) == 0


def test_a_second_signal_ends_the_drain(start_program) -> None:
    process, url = start_program(600)
    with httpx.stream("POST", f"{url}/v1/completions", json=ASK, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        process.send_signal(signal.SIGINT)
        rest = [line.removeprefix("data: ") for line in lines if line]
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "abort"
    assert process.wait(30) == 0
