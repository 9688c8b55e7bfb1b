"""A vLLM of a benchmark's own: `bench/peers/vllm_cpu serve`, with Kvist under it or without."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from own_server import OwnServer, free_port

from kvist.app.clock import SystemClock
from kvist.app.locate import locate
from kvist.base.errors import ConfigError

BLOCK_TOKENS = 32
_PEER = Path(__file__).parents[1] / "peers" / "vllm_cpu"
_SETTLE_S = 120.0
_FIGURES_S = 0.3
"""Kvist's figures under vLLM are sent with a step, and no more often."""

_RESTING = 0.1
"""Of one core, at most, while at rest."""

_BUSY = ("kvist_stores_running", "kvist_requests_held", "kvist_loads_running", "vllm:kv_cache_usage_perc")


class OwnVllm(OwnServer):
    """One vLLM.

    Attributes:
        name: what requests call the model.
    """

    name = "m"

    def figures(self) -> dict[str, float]:
        """One reading by name and those labels that do not say which engine it was."""
        own = f'engine="0",model_name="{self.name}"'
        found = self.metrics().items()
        return {key.replace(f"{own},", "").replace(f"{{{own}}}", ""): value for key, value in found}

    def settle_below(self) -> None:
        """Returns when nothing is on its way to or from the tiers.

        Raises:
            ConfigError: it goes on for too long.
        """
        clock, pause, quiet = SystemClock(), threading.Event(), 0
        deadline_s = clock.now_s() + _SETTLE_S
        while quiet < 3:
            if clock.now_s() > deadline_s:
                raise ConfigError(f"{self.url} did not settle within {_SETTLE_S} s")
            # Figures come with steps; so short a prompt fills no block and is never stored.
            self._post("/v1/completions", {"model": self.name, "prompt": [7, 8, 9], "max_tokens": 2})
            found = self.figures()
            quiet = 0 if any(found.get(name, 0.0) for name in _BUSY) else quiet + 1
            pause.wait(_FIGURES_S)

    def rest(self) -> None:
        """Returns when it no longer uses a core: vLLM's workers spin for a while before they sleep.

        Raises:
            ConfigError: it goes on for too long.
        """
        clock, pause = SystemClock(), threading.Event()
        deadline_s = clock.now_s() + _SETTLE_S
        used_s = self.cpu_s()
        while not pause.wait(_FIGURES_S) and (now_used_s := self.cpu_s()) > used_s + _RESTING * _FIGURES_S:
            used_s = now_used_s
            if clock.now_s() > deadline_s:
                raise ConfigError(f"{self.url} did not come to rest within {_SETTLE_S} s")

    def forget(self) -> None:
        """Empties vLLM's own prefix cache, once everything is in the tiers.

        Raises:
            ConfigError: it would not.
        """
        self.settle_below()
        if not self._post("/reset_prefix_cache", {}).get("success"):
            raise ConfigError(f"{self.url} did not reset its prefix cache")

    def _post(self, path: str, body: object) -> dict[str, object]:
        response = httpx.post(f"{self.url}{path}", json=body, timeout=_SETTLE_S)
        if response.status_code != httpx.codes.OK:
            raise ConfigError(f"{self.url}{path} answered {response.status_code}: {response.text[:200]}")
        found: dict[str, object] = response.json()
        return found


@contextlib.contextmanager
def own_vllm(model: str, tiers: Sequence[str] = (), flags: Sequence[str] = ()) -> Iterator[OwnVllm]:
    """A vLLM for the time of a `with`.

    Args:
        model: a fetched model's name, or a directory.
        tiers: of Kvist, as after `--tier`; none: without Kvist.
        flags: more of vLLM's.

    Raises:
        ConfigError: it did not start.
        ModelError: there is no such model.
    """
    port = free_port()
    command = [str(_PEER), "serve", str(locate(model).directory), "--served-model-name", OwnVllm.name]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--enforce-eager"]
    command += ["--max-model-len", "8192", "--max-num-seqs", "8", "--block-size", str(BLOCK_TOKENS)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--no-enable-log-requests"]
    command += ["--kv-cache-memory-bytes", str(2**30), *flags]
    if tiers:
        command += ["--kv-transfer-config", json.dumps(transfer_config(tiers))]
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # it has `/reset_prefix_cache` only then
        "VLLM_CPU_OMP_THREADS_BIND": cores_of_workers(),
        # With small ones, how memory happens to lie makes one process a fifth faster than another.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    server = OwnVllm(command, "Application startup complete", f"http://127.0.0.1:{port}", environment)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=6)) as client:
            client.get(f"{server.url}/health")  # it listens only shortly after saying that it has started
        yield server
    finally:
        server.stop()


def cores_of_workers() -> str:
    """All cores but the last: by itself vLLM would compute on others with a connector than without."""
    cores = sorted(os.sched_getaffinity(0))
    return ",".join(map(str, cores[:-1] or cores))


def transfer_config(tiers: Sequence[str]) -> dict[str, object]:
    """What vLLM is told so that it uses Kvist with these tiers."""
    return {
        "kv_connector": "KvistConnector",
        "kv_connector_module_path": "kvist.app.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kvist_tiers": list(tiers)},
    }
