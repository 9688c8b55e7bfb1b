"""`kvist cache` against a real server with all its tiers, and against what that server leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import gt
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvist.app.private_socket import VARIABLE, socket_path
from real.redis import RedisProcess
from real.server import WAIT_S, RealServer
from tiny_directory import write_tiny_directory

pytestmark = pytest.mark.slow

FLAGS = ("--dtype", "float32", "--kv-memory", "8MiB", "--step-tokens", "128", "--sequences-max", "8", "--threads", "1")
WORDS = "The ferry left the harbour a little after six, when the fog still lay on the water. " * 2
BLOCK_TOKENS = 16
DEFAULT = ("--default-tenant",)
FULL_BLOCKS = len(WORDS) // BLOCK_TOKENS
"""Of a prompt of these words, in each KV group: a token is a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A model, a Redis, a directory, a secret, and where sockets are."""

    folder: Path
    runtime: Path
    redis: RedisProcess

    @property
    def disk(self) -> str:
        return f"disk={self.runtime / 'kv'}:64MiB"

    @property
    def secret(self) -> str:
        return str(self.runtime / "secret")

    def server(self, *more: str) -> RealServer:
        tiers = ("--tier", "dram=16MiB", "--tier", self.disk, "--tier", f"pool=redis://127.0.0.1:{self.redis.port}")
        secret = ("--cache-secret-file", self.secret)
        return RealServer("--model", str(self.folder), *FLAGS, *tiers, *secret, "--load-when", "always", *more)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", "gemma3")
    redis_folder = tmp_path_factory.mktemp("redis")
    with (
        TemporaryDirectory(prefix="kvist-") as runtime,
        RedisProcess(redis_folder) as redis,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(VARIABLE, runtime)
        yield Site(folder=folder, runtime=Path(runtime), redis=redis)


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[RealServer]:
    with site.server() as server:
        yield server


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [str(Path(sys.executable).with_name("kvist")), "cache", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)


def cache(*arguments: str, status: int = 0) -> dict[str, object]:
    done = command(*arguments, "--json")
    assert done.returncode == status, done
    found: dict[str, object] = json.loads(done.stdout)
    return found


def hashes(*arguments: str) -> dict[str, set[str]]:
    """What is listed, by tier."""
    found: dict[str, set[str]] = {}
    for block in cache("list", "--limit", "100000", *arguments)["blocks"]:
        found.setdefault(block["tier"], set()).add(block["hash"])
    return found


def ask(server: RealServer, salt: str | None, text: str = WORDS) -> dict[str, object]:
    """One answer, and its blocks in all tiers."""
    before = stored(server.metrics())
    salted = {} if salt is None else {"cache_salt": salt}
    answer = server.complete(text, max_tokens=1, **salted)
    server.metrics_when(
        lambda now: now["kvist_stores_running"] == 0 and all(map(gt, stored(now), before)),
    )
    return answer


def stored(metrics: dict[str, float]) -> list[float]:
    """Blocks stored so far, by tier; nothing is told before the first step."""
    sample = "kvist_tier_blocks_total{"
    found = {name: value for name, value in metrics.items() if name.startswith(sample) and '"stored"' in name}
    return [sum(value for name, value in found.items() if f'"{tier}"' in name) for tier in ("dram", "disk", "pool")]


def done(answer: dict[str, object]) -> dict[str, int]:
    """How many were done, by tier."""
    return {row["tier"]: row["done"] for row in answer["tiers"]}


def test_tenants_are_listed_and_purged_apart(server: RealServer) -> None:
    for salt in ("team-blue", "team-red", None):
        ask(server, salt)
    blue, red, rest = (hashes(*flags) for flags in (["--tenant", "team-blue"], ["--tenant", "team-red"], DEFAULT))
    for tier in ("dram", "disk", "pool"):
        assert len(blue[tier]) == len(red[tier]) == len(rest[tier]) == FULL_BLOCKS
        assert blue[tier].isdisjoint(red[tier] | rest[tier])
        assert red[tier].isdisjoint(rest[tier])
    assert blue["dram"] == blue["disk"] == blue["pool"]
    purged = cache("purge", "--tenant", "team-blue")
    assert min(done(purged).values()) >= FULL_BLOCKS
    assert hashes("--tenant", "team-blue") == {}
    assert (hashes("--tenant", "team-red"), hashes(*DEFAULT)) == (red, rest)
    assert all(block["tenant"] for block in cache("list")["blocks"])


def test_a_prompt_is_explained_without_being_loaded(server: RealServer, tmp_path: Path) -> None:
    ask(server, "team-white")
    path = tmp_path / "prompt"
    path.write_text(WORDS)
    before = cache("tiers")["tiers"]
    told = cache("explain", "--prompt", str(path), "--tenant", "team-white")
    assert told["tokens"] == len(WORDS)
    assert sum(source["tokens"] for source in told["sources"]) == FULL_BLOCKS * BLOCK_TOKENS
    assert sum(source["tokens"] for source in cache("explain", "--prompt", str(path), "--tenant", "x")["sources"]) == 0
    assert [tier["loaded"] for tier in cache("tiers")["tiers"]] == [tier["loaded"] for tier in before]


def test_a_prompt_names_its_blocks_of_its_tenant(server: RealServer, tmp_path: Path) -> None:
    text = f"{WORDS}And of the yellow team."
    ask(server, "team-yellow", text)
    path = tmp_path / "prompt"
    path.write_text(text)
    assert set(done(cache("pin", "--prompt", str(path), "--tenant", "nobody")).values()) == {0}
    pinned = done(cache("pin", "--prompt", str(path), "--tenant", "team-yellow"))
    assert min(pinned.values()) >= (len(text)) // BLOCK_TOKENS
    blocks = cache("list", "--tenant", "team-yellow", "--limit", "1000")["blocks"]
    assert sum(block["pinned"] for block in blocks) == sum(pinned.values())
    assert done(cache("unpin", "--tenant", "team-yellow")) == pinned


def test_blocks_are_moved_copied_fetched_back_and_verified(server: RealServer) -> None:
    ask(server, "team-green")
    tenant = ("--tenant", "team-green")
    before = hashes(*tenant)
    (row,) = cache("move", "--from", "dram", "--to", "disk", *tenant)["tiers"]
    assert (row["chosen"], row["done"], row["left"]) == (row["done"], row["chosen"], 0)
    assert row["done"] >= FULL_BLOCKS
    assert "dram" not in hashes(*tenant)
    assert cache("prefetch", "--to", "dram", *tenant)["tiers"][0]["from"] == "disk"
    assert hashes(*tenant) == before
    cache("purge", "--tier", "pool", *tenant)
    assert "pool" not in hashes(*tenant)
    cache("copy", "--from", "disk", "--to", "pool", *tenant)
    assert hashes(*tenant) == before
    verified = cache("verify", *tenant)["tiers"]
    assert [(row["damaged"], row["absent"], row["left"]) for row in verified] == [(0, 0, 0)] * 3
    shown = cache("show", min(before["disk"])[:12])["blocks"]
    assert {block["tier"] for block in shown} == {"dram", "disk", "pool"}


def test_the_ledger_of_each_tier_adds_up(server: RealServer) -> None:
    for tier in cache("tiers")["tiers"]:
        gone = sum(tier[name] for name in ("evicted", "expired", "purged", "quarantined", "lost"))
        assert tier["stored"] == tier["resident"] + gone, tier
        assert tier["queried"] == tier["hit"] + tier["miss"], tier
        assert tier["breaker"] == "closed"


def test_tables_and_mistakes_are_for_people(server: RealServer) -> None:
    shown = command("tiers")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "dram" in shown.stdout
    for arguments in (["purge"], ["list", "--tier", "cellar"], ["move", "--all", "--from", "disk", "--to", "disk"]):
        failed = command(*arguments)
        assert (failed.returncode, failed.stdout, len(failed.stderr.splitlines())) == (2, "", 1), failed


def test_a_directory_in_use_is_not_opened_beside_its_server(server: RealServer, site: Site) -> None:
    failed = command("--tier", site.disk, "list")
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1


def test_what_a_killed_server_leaves_is_found_without_one_and_by_the_next(site: Site, server: RealServer) -> None:
    ask(server, "team-black")
    tenant = ("--tenant", "team-black")
    before = hashes(*tenant)
    port = int(server.url.rpartition(":")[2])
    server.process.kill()
    server.process.wait()
    socket = socket_path(os.environ, port)
    assert socket.exists()
    failed = command("tiers")
    assert (failed.returncode, "no server with tiers runs here" in failed.stderr) == (2, True)
    failed = command("--port", str(port), "tiers")
    assert (failed.returncode, "nobody answers" in failed.stderr) == (1, True)
    offline = ("--tier", site.disk, "--cache-secret-file", site.secret)
    blocks = cache(*offline, "list", *tenant)["blocks"]
    assert {block["hash"] for block in blocks} == before["disk"]
    assert cache(*offline, "verify", *tenant)["tiers"][0]["done"] == len(blocks)
    with site.server("--port", str(port)) as again:  # takes the dead one's place
        assert hashes(*tenant).keys() == {"disk", "pool"}
        warm = again.complete(WORDS, max_tokens=1, cache_salt="team-black")
        assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == FULL_BLOCKS * BLOCK_TOKENS
        again.terminate()
        assert again.process.wait(WAIT_S) == 0
    assert not socket.exists()


def test_a_pool_that_hangs_is_told_of_and_the_other_tiers_are_done(site: Site) -> None:
    tenant = ("--tenant", "team-grey")
    with site.server() as server:
        ask(server, "team-grey")
        site.redis.pause()
        try:
            listed = cache("list", *tenant, status=1)
            purged = cache("purge", *tenant, "--timeout", "10", status=1)
        finally:
            site.redis.resume()
    assert {block["tier"] for block in listed["blocks"]} == {"dram", "disk"}
    assert [error["tier"] for error in listed["errors"]] == ["pool"]
    dram, disk, pool = purged["tiers"]
    assert min(dram["done"], disk["done"]) >= FULL_BLOCKS
    assert "error" in pool or pool["left"]
