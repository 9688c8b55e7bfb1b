"""`kvist serve` over a real model, as a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from kvist.app.clock import SystemClock

START_S = 300.0
WAIT_S = 300.0
"""Deadlines for a machine that has much else to do; nothing waits longer than what it waits for."""

Metrics = dict[str, float]


class RealServer:
    """A server from its start to its end, within a `with`.

    Attributes:
        url: where it listens.
        model: what requests call the model.
        process: of the server.
    """

    def __init__(self, *flags: str) -> None:
        """Starts `kvist serve` with these flags on a port that the system chooses; returns when it takes requests."""
        command = [str(Path(sys.executable).with_name("kvist")), "serve", "--port", "0", *flags]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
        )
        self._clock = SystemClock()
        self._output: list[str] = []
        self._url = ""
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()
        if not (self._settled.wait(START_S) and self._url):
            self.process.kill()
            raise AssertionError(f"kvist serve did not start: {self.output()}")
        self.url = self._url
        self.model: str = self.get("/v1/models").json()["data"][0]["id"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def output(self) -> str:
        """All that the server has written so far."""
        return "".join(self._output)

    def get(self, path: str) -> httpx.Response:
        """One GET request."""
        return httpx.get(f"{self.url}{path}", timeout=WAIT_S)

    def post(self, path: str, body: object) -> httpx.Response:
        """One POST request: bytes as they are, anything else as JSON."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return httpx.post(f"{self.url}{path}", headers={"content-type": "application/json"}, timeout=WAIT_S, **content)

    def complete(self, prompt: object, **fields: object) -> dict[str, object]:
        """One completion that must succeed; greedy unless told otherwise."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        found: dict[str, object] = response.json()
        return found

    def metrics(self) -> Metrics:
        """The samples of one reading, by name and labels."""
        lines = self.get("/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def metrics_when(self, holds: Callable[[Metrics], bool]) -> Metrics:
        """The first reading that fulfils a condition."""
        deadline_s = self._clock.now_s() + WAIT_S
        while not holds(found := self.metrics()):
            assert self.process.poll() is None, f"the server ended: {self.output()}"
            assert self._clock.now_s() < deadline_s, f"not within {WAIT_S} s: {found}"
        return found

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._output.append(line)
            if found := re.search(r"Serving on (http://[\d.:]+)/v1", line):
                self._url = found.group(1)
                self._settled.set()
        self._settled.set()
