"""vLLM's own server over a real model, in processes of its own, with Kvist or without."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from kvist.app.clock import SystemClock
from real.redis import free_port

START_S = 300.0
WAIT_S = 300.0
"""Deadlines for a machine that has much else to do; nothing waits longer than what it waits for."""

BLOCK_TOKENS = 32
LOGPROBS = 5

Metrics = dict[str, float]
Prompt = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back for one prompt.

    Attributes:
        tokens: of the output.
        logprobs: of each of them the most likely ones, by token.
        prompt_tokens, cached_tokens: of the prompt, as the server counts them.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...]
    prompt_tokens: int
    cached_tokens: int

    @property
    def drawn(self) -> tuple[object, ...]:
        """All that must be the same when the same KV is attended: tokens, and logprobs to the last bit."""
        return self.tokens, self.logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What a server is started with.

    Attributes:
        model: its directory.
        kvist: the connector's settings; None: without Kvist.
        kv_bytes: of vLLM's own KV space.
        dtype: of the model, and of its KV.
        flags: more of vLLM's, as on its command line.
        connector: the class that vLLM loads, and where it is.
    """

    model: Path
    kvist: Mapping[str, object] | None = None
    kv_bytes: int = 2**30
    dtype: str = "bfloat16"
    flags: tuple[str, ...] = ()
    connector: tuple[str, str] = ("KvistConnector", "kvist.app.vllm")

    def command(self, port: int) -> list[str]:
        """How to start it."""
        own = ["--model", str(self.model), "--served-model-name", "m", "--dtype", self.dtype, "--enforce-eager"]
        own += ["--host", "127.0.0.1", "--port", str(port), "--block-size", str(BLOCK_TOKENS)]
        own += ["--max-model-len", "8192", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(self.kv_bytes)]
        own += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--no-enable-log-requests"]
        own += ["--worker-extension-cls", "under_vllm.worker.KvAccess"]
        if self.kvist is not None:
            own += ["--kv-transfer-config", json.dumps(self._transfer(self.kvist))]
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *own, *self.flags]

    def _transfer(self, kvist: Mapping[str, object]) -> dict[str, object]:
        """What vLLM is told so that it uses Kvist."""
        return {
            "kv_connector": self.connector[0],
            "kv_connector_module_path": self.connector[1],
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": dict(kvist),
        }


class VllmServer:
    """A server from its start to its end, within a `with`.

    Attributes:
        url: where it listens.
        process: of the API server; the engine's and the workers' belong to its group.
    """

    def __init__(self, settings: VllmSettings) -> None:
        """Starts it; returns when it takes requests."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        tests = str(Path(__file__).parents[1])
        self.process = subprocess.Popen(
            settings.command(port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"PYTHONPATH": tests, "VLLM_SERVER_DEV_MODE": "1"},
            start_new_session=True,
        )
        self._client = httpx.Client(base_url=self.url, timeout=WAIT_S)
        self._clock = SystemClock()
        self._output: list[str] = []
        self._serves = False
        self._settled = threading.Event()
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()
        if not (self._settled.wait(START_S) and self._serves):
            self.kill()
            raise AssertionError(f"vLLM did not start: {self.output()}")
        self.until(self._answers, "it did not listen")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def output(self) -> str:
        """All that the server has written so far."""
        return "".join(self._output)

    def ask(self, prompt: Prompt, tokens: int = 16, **fields: object) -> Answer:
        """A completion that must succeed; greedy, and exactly so many tokens."""
        response = self.post("/v1/completions", self.body(prompt, tokens, **fields))
        assert response.status_code == 200, response.text
        return _answer(response.json())

    def ask_all(self, prompts: Sequence[Prompt], tokens: int = 16, **fields: object) -> list[Answer]:
        """Completions side by side."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: self.ask(prompt, tokens, **fields), prompts))

    @staticmethod
    def body(prompt: Prompt, tokens: int, **fields: object) -> dict[str, object]:
        """What asks for one completion."""
        own = {"model": "m", "prompt": list(prompt), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return own | {"logprobs": LOGPROBS, "return_tokens_as_token_ids": True} | fields

    def abandon(self, prompt: Prompt, *, after_s: float, **fields: object) -> None:
        """Asks, and hangs up before the answer is there."""
        try:
            httpx.post(f"{self.url}/v1/completions", json=self.body(prompt, 64, **fields), timeout=after_s)
        except httpx.TimeoutException:
            return
        raise AssertionError(f"answered within {after_s} s: nothing was abandoned")

    def post(self, path: str, body: object = None) -> httpx.Response:
        """One POST request; safe from several threads."""
        return self._client.post(path, json=body)

    def reset(self, *, everything: bool = False) -> None:
        """Empties vLLM's own prefix cache, and on demand the connector's."""
        path = f"/reset_prefix_cache?reset_external={str(everything).lower()}"
        self.until(lambda: self.post(path).json()["success"] is True, "the prefix cache was not reset")

    def on_worker(self, method: str, *words: str) -> list[object]:
        """What each worker answers."""
        response = self.post("/collective_rpc", {"method": method, "args": list(words)})
        assert response.status_code == 200, response.text
        return list(response.json()["results"])

    def metrics(self) -> Metrics:
        """One reading, by name and labels; the labels that say which engine it is are left out."""
        found: Metrics = {}
        for line in self._client.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'(engine|model_name)="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
                found[name] = float(value)
        return found

    def metrics_when(self, holds: Callable[[Metrics], bool]) -> Metrics:
        """The first reading that fulfils a condition."""
        found: list[Metrics] = []

        def holds_now() -> bool:
            found.append(self.metrics())
            return holds(found[-1])

        self.until(holds_now, "the metrics never said so")
        return found[-1]

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Asks again and again until something holds."""
        deadline_s, pause = self._clock.now_s() + WAIT_S, threading.Event()
        while not holds():
            assert self.process.poll() is None, f"the server ended: {self.output()}"
            assert self._clock.now_s() < deadline_s, f"{otherwise} within {WAIT_S} s: {self.output()}"
            pause.wait(0.05)

    def stop(self) -> None:
        """Lets it end as an operator would; what is left of it is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.kill()

    def kill(self) -> None:
        """Kills all of its processes at once, as a crash of the machine would; may be repeated."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        self._client.close()

    def _answers(self) -> bool:
        """Whether it listens, which it does only shortly after saying that it has started."""
        try:
            return self._client.get("/health").status_code == httpx.codes.OK
        except httpx.ConnectError:
            return False

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._output.append(line)
                if "Application startup complete" in line:
                    self._serves = True
                    self._settled.set()
        self._settled.set()


def _answer(found: Mapping[str, object]) -> Answer:
    choice, usage = found["choices"][0], found["usage"]
    tops = choice["logprobs"]["top_logprobs"]
    return Answer(
        tokens=tuple(map(_id, choice["logprobs"]["tokens"])),
        logprobs=tuple({_id(token): value for token, value in top.items()} for top in tops),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
    )


def _id(text: str) -> int:
    return int(text.removeprefix("token_id:"))
