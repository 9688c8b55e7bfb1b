"""Servers of a benchmark's own, from start to end, and what they cost: `kvist serve`, `redis-server`, and others."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import psutil

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError

START_S = 120.0
SETTLE_S = 60.0


class OwnServer:
    """One server, in a process of its own or several.

    Attributes:
        url: where it listens.
    """

    def __init__(
        self, command: Sequence[str], ready: str, url: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts it; returns when it takes requests.

        Args:
            command: what starts it.
            ready: matches the line that says so; its first group is the URL, unless that is known.
            url: where it listens, if known.
            environment: what it is told beside what this process was told.

        Raises:
            ConfigError: it did not start; what it said.
        """
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"} | dict(environment or {}),
            start_new_session=True,  # so that whatever it starts ends with it
        )
        self._lines: list[str] = []
        self._found = threading.Event()
        self._ready, self._known, self.url = re.compile(ready), url, ""
        threading.Thread(target=self._read, daemon=True).start()
        if not self._found.wait(START_S) or not self.url:
            self._kill()
            raise ConfigError(f"{' '.join(command)} did not start: {''.join(self._lines)}")
        self._meter = psutil.Process(self._process.pid)
        self._clock = SystemClock()

    def cpu_s(self) -> float:
        """Seconds of processor time so far, user and system, of all its processes."""
        times = [each.cpu_times() for each in (self._meter, *self._meter.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def main_thread_s(self) -> float:
        """Seconds of processor time that the main thread of its first process had so far; Linux alone counts this."""
        pid = self._process.pid
        counted = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(counted[0]) / 1e9  # proc(5): time on a processor, in nanoseconds

    def settle(self, is_settled: Callable[[dict[str, float]], bool]) -> None:
        """Reads the metrics until nothing is going on in the background.

        Raises:
            ConfigError: it goes on for too long.
        """
        deadline_s = self._clock.now_s() + SETTLE_S
        pause = threading.Event()
        while not is_settled(self.metrics()):
            if self._clock.now_s() > deadline_s:
                raise ConfigError(f"{self.url} did not settle within {SETTLE_S} s")
            pause.wait(0.02)

    def metrics(self) -> dict[str, float]:
        """One reading, by name and labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def stop(self) -> None:
        """Lets it drain and end."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if found := self._ready.search(line):
                self.url = self._known or found.group(1)
                self._found.set()
        self._found.set()


@contextlib.contextmanager
def own_server(*flags: str) -> Iterator[OwnServer]:
    """`kvist serve` with these flags, for the time of a `with`."""
    command = [str(Path(sys.executable).with_name("kvist")), "serve", "--port", "0", *flags]
    server = OwnServer(command, r"Serving on (http://[\d.:]+)/v1")
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port on loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def own_redis() -> Iterator[str]:
    """A Redis server that keeps nothing on disk; its URL.

    Raises:
        ConfigError: there is no redis-server.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise ConfigError("redis-server is not installed; on Debian: apt-get install redis-server")
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "Ready to accept connections" in line:
                break
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def stores_are_done(metrics: dict[str, float]) -> bool:
    """Whether everything offered to the tiers has been written; true of a server without tiers."""
    return metrics.get("kvist_stores_running", 0.0) == 0
