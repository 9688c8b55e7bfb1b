"""The engines of the comparison: each a process of its own that is asked, rests, and ends.

Two kinds that are asked alike: `Child` speaks over pipes to the scripts beside this one, `Served` over HTTP to
`kvist serve` and to vLLM's server. All get the same environment, threads and cores. Whoever has answered is waited for
until it no longer uses a core, because threads of OpenMP and vLLM's processes spin for a while before they sleep.
"""

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import psutil
from metrics import Reply

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError
from kvist.lab.answer import Answer
from kvist.lab.client import Target, open_client
from kvist.lab.dialect import Completions, choose_model, negotiate
from kvist.lab.draw import Span

HERE = Path(__file__).parent
PEER = HERE / "vllm_cpu"
ANSWER_S = 300.0
"""How long an answer may take."""

RESERVED = " reserved"
"""The mode of a vLLM whose worker leaves one core to its server, as it would by itself."""

_REST_S = 60.0
_LOOK_S = 0.15
_RESTING = 0.1
"""Of one core, at most, while at rest; processor time is counted in hundredths of a second."""

_PIECES = 3
"""Of an answer, at least: a server sends several tokens as one to a client that is slow to read."""

_SAID = 60
"""Lines of an engine's log that an error shows."""


class Engine(Protocol):
    """Something that answers prompts."""

    def ask(self, prompts: Sequence[Sequence[int]], output: int) -> Reply: ...
    def rest(self) -> None: ...


def environment_of(name: str, threads: int, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every engine is told: the same threads, cores and memory.

    Args:
        name: of the engine, with its mode.
        threads: of one operation.
        more: for this start alone.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_", "KMP_"))}
    cores = sorted(os.sched_getaffinity(0))[:threads]
    if name.endswith(RESERVED):
        cores = cores[:-1] or cores
    return (
        kept
        | {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            # With small pages, how memory happens to lie makes one process a fifth faster than another.
            "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
            "COLUMNS": "200",
        }
        | dict(more or {})
    )


class Process:
    """A process with all that it starts, and the end of what it writes to its log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, stdin: int | None = None) -> None:
        """Starts it in a session of its own, so that whatever it starts ends with it."""
        self.command = " ".join(command)
        self._process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment),
            start_new_session=True,
        )
        self._log: list[str] = []
        self._meter = psutil.Process(self._process.pid)

    @property
    def said(self) -> str:
        """The end of its log."""
        return "".join(self._log[-_SAID:])

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def pipes(self) -> tuple[IO[str], IO[str]]:
        """Its standard input and output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def drain(self, *, output: bool) -> None:
        """Reads its log to the end, from now on and on threads of their own; `output`: its output is a log too."""
        for stream in (self._process.stderr, self._process.stdout if output else None):
            if stream is not None:
                threading.Thread(target=self._log.extend, args=(stream,), daemon=True).start()

    def rest(self) -> None:
        """Returns when it no longer uses a core.

        Raises:
            ConfigError: it goes on for too long.
        """
        clock, pause, used_s = SystemClock(), threading.Event(), self._cpu_s()
        deadline_s = clock.now_s() + _REST_S
        while not pause.wait(_LOOK_S) and (now_s := self._cpu_s()) > used_s + _RESTING * _LOOK_S:
            used_s = now_s
            if clock.now_s() > deadline_s:
                raise ConfigError(f"{self.command} did not come to rest within {_REST_S:g} s")

    def stop(self) -> None:
        """Asks it to end, then ends it and everything that it started."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _cpu_s(self) -> float:
        total = 0.0
        for each in (self._meter, *self._meter.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
        return total


class Child:
    """An engine in a child process that speaks in lines; see `child`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], start_s: float) -> None:
        """Starts it and waits until it is ready.

        Raises:
            ConfigError: it did not get ready; what it said.
        """
        self.process = Process(command, environment, stdin=subprocess.PIPE)
        self._input, output = self.process.pipes()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process.drain(output=False)
        threading.Thread(target=self._read, args=(output,), daemon=True).start()
        try:
            self.about: dict[str, Any] = self._line(start_s)["ready"]
        except ConfigError:
            self.process.stop()
            raise

    def ask(self, prompts: Sequence[Sequence[int]], output: int) -> Reply:
        """Answers to prompts that come at once.

        Raises:
            ConfigError: it failed.
        """
        print(json.dumps({"prompts": [list(prompt) for prompt in prompts], "output": output}), file=self._input)
        try:
            self._input.flush()
        except BrokenPipeError as error:
            raise ConfigError(f"{self.process.command} is gone: {self.process.said}") from error
        found = self._line(ANSWER_S)
        times_s = tuple(map(tuple, found["times_s"]))
        if any(len(times) != output for times in times_s):
            raise ConfigError(f"{self.process.command}: {list(map(len, times_s))} tokens, not {output} each")
        return Reply(tokens=output, times_s=times_s, cached=tuple(found["cached"]))

    def rest(self) -> None:
        """Returns when it no longer uses a core."""
        self.process.rest()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put(None)

    def _line(self, within_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            line = None
        if line is None:
            raise ConfigError(f"{self.process.command} said nothing within {within_s:g} s: {self.process.said}")
        found: dict[str, Any] = json.loads(line)
        return found


class Served:
    """An engine behind HTTP, asked as any client would, streaming."""

    def __init__(self, process: Process, url: str, runner: asyncio.Runner, completions: Completions) -> None:
        self.process = process
        self.url = url
        self._runner = runner
        self._completions = completions

    def ask(self, prompts: Sequence[Sequence[int]], output: int) -> Reply:
        """Answers to prompts that come at once.

        Raises:
            CallError: the server failed.
            ConfigError: an answer has another length than was asked for.
        """
        answers = self._runner.run(self._ask(prompts, output))
        if any(answer.output_tokens != output for answer in answers):
            raise ConfigError(f"{self.url}: answers of {[a.output_tokens for a in answers]} tokens, not {output}")
        begun_s = min(answer.started_s for answer in answers)
        times_s = tuple(tuple(answer.started_s - begun_s + at_s for at_s in answer.token_times_s) for answer in answers)
        if min(map(len, times_s)) < min(output, _PIECES):
            raise ConfigError(f"{self.url}: {output} tokens came in as few pieces as {min(map(len, times_s))}")
        cached = tuple((answer.usage.cached_tokens or 0) if answer.usage else 0 for answer in answers)
        return Reply(tokens=output, times_s=times_s, cached=cached)

    def rest(self) -> None:
        """Returns when it no longer uses a core."""
        self.process.rest()

    async def _ask(self, prompts: Sequence[Sequence[int]], output: int) -> list[Answer]:
        return await asyncio.gather(*(self._completions.ask(prompt, output) for prompt in prompts))


@contextlib.contextmanager
def child(command: Sequence[str], environment: Mapping[str, str], start_s: float) -> Iterator[Child]:
    """A child process for the time of a `with`; see `Child`."""
    found = Child(command, environment, start_s)
    try:
        yield found
    finally:
        found.process.stop()


@contextlib.contextmanager
def served(url: str, process: Process, id_max: int) -> Iterator[Served]:
    """A server that has started, with a client of it; see `Served`."""

    async def opened(stack: contextlib.AsyncExitStack) -> Completions:
        client = await stack.enter_async_context(open_client(Target(url=url, timeout_s=ANSWER_S), SystemClock()))
        return await negotiate(client, await choose_model(client, None), Span(low=100, high=id_max))

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        try:
            yield Served(process, url, runner, runner.run(opened(stack)))
        finally:
            runner.run(stack.aclose())


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every engine is started with.

    Attributes:
        model, directory: the model, as Kvist is told, and where its files are.
        threads: of one operation.
        dtype: of weights, activations and KV.
        kv_mib: size of the KV pool.
    """

    model: str
    directory: str
    threads: int
    dtype: str
    kv_mib: int

    @property
    def own(self) -> list[str]:
        """Kvist's flags."""
        return ["--model", self.model, "--threads", str(self.threads), "--dtype", self.dtype]

    @property
    def kv_bytes(self) -> str:
        """Of the pool."""
        return str(self.kv_mib * 2**20)


def child_commands(setting: Setting) -> dict[str, list[str]]:
    """How each engine is started as a child, by its name and mode."""
    vllm = [str(PEER), "run", "--", str(HERE / "child_vllm.py")]
    vllm += ["--directory", setting.directory, "--dtype", setting.dtype, "--kv-bytes", setting.kv_bytes]
    kvist = [sys.executable, str(HERE / "child_kvist.py"), *setting.own, "--kv-bytes", setting.kv_bytes]
    return {
        "kvist": kvist,
        "vllm eager": vllm,
        "vllm compiled": [*vllm, "--compiled"],
        "transformers": [sys.executable, str(HERE / "child_transformers.py"), *setting.own],
    }


def server_commands(setting: Setting, port: int) -> dict[str, list[str]]:
    """How each server is started, by its name and mode."""
    kvist = [str(Path(sys.executable).with_name("kvist")), "serve", "--port", str(port)]
    kvist += [*setting.own, "--kv-memory", f"{setting.kv_mib}MiB"]
    vllm = [str(PEER), "serve", setting.directory, "--served-model-name", "m", "--host", "127.0.0.1"]
    vllm += ["--port", str(port), "--dtype", setting.dtype, "--max-model-len", "8192", "--max-num-seqs", "64"]
    vllm += ["--block-size", "32", "--enable-prefix-caching", "--kv-cache-memory-bytes", setting.kv_bytes]
    vllm += ["--enable-prompt-tokens-details", "--no-enable-log-requests"]
    eager = [*vllm, "--enforce-eager"]
    return {"kvist": kvist, "vllm eager": eager, "vllm compiled": vllm, "vllm reserved": eager}
