"""`kvist serve` over real tiers that outlive it, fail and return: warm where it may be, and always right.

The tiny model computes faster than a tier is expected to answer, so the servers load whatever is there.
"""

from pathlib import Path

import pytest

from real.redis import RedisProcess
from real.server import RealServer
from tiny_directory import write_tiny_directory

pytestmark = pytest.mark.slow

PROMPT = list(range(3, 203))
CACHED = 192
FLAGS = ("--dtype", "float32", "--kv-memory", "8MiB", "--step-tokens", "128", "--sequences-max", "8", "--threads", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_directory(tmp_path_factory.mktemp("models") / "tiny", "gemma3")


def serve(folder: Path, secret: Path, *tiers: str) -> RealServer:
    named = [part for tier in tiers for part in ("--tier", tier)]
    own = ("--cache-secret-file", str(secret), "--load-when", "always", "--audit")
    return RealServer("--model", str(folder), *FLAGS, *own, *named)


def answered(server: RealServer, prompt: list[int] = PROMPT, **fields: object) -> tuple[str, int]:
    """The text of an answer, and how many of the prompt's tokens were cached."""
    answer = server.complete(prompt, **{"max_tokens": 12, **fields})
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def stored(tier: str, metrics: dict[str, float]) -> bool:
    """Whether everything that was offered is in a tier."""
    done = metrics["kvist_stores_running"] == 0 and metrics['kvist_staging_bytes{state="used"}'] == 0
    return done and metrics[f'kvist_tier_blocks_total{{event="stored",tier="{tier}"}}'] > 0


def check_ledgers(metrics: dict[str, float]) -> None:
    """Law 6, for every tier."""
    for tier in {name.split('tier="')[1].rstrip('"}') for name in metrics if name.startswith("kvist_tier_blocks_resi")}:
        count = {
            event: metrics[f'kvist_tier_blocks_total{{event="{event}",tier="{tier}"}}']
            for event in ("stored", "evicted", "expired", "purged", "quarantined", "lost", "queried", "hit", "miss")
        }
        gone = sum(count[event] for event in ("evicted", "expired", "purged", "quarantined", "lost"))
        assert count["stored"] == metrics[f'kvist_tier_blocks_resident{{tier="{tier}"}}'] + gone, (tier, count)
        assert count["queried"] == count["hit"] + count["miss"], (tier, count)


def test_what_a_killed_server_had_written_starts_the_next_one_warm(folder: Path, tmp_path: Path) -> None:
    tiers = ("dram=8MiB", f"disk={tmp_path / 'tier'}:64MiB")
    with serve(folder, tmp_path / "secret", *tiers) as first:
        text, cached = answered(first)
        assert cached == 0
        assert answered(first) == (text, CACHED)
        resident = first.metrics_when(lambda found: stored("disk", found))['kvist_tier_blocks_resident{tier="disk"}']
    with serve(folder, tmp_path / "secret", *tiers) as second:  # the first was killed at the end of its block
        before = second.metrics()
        assert before['kvist_tier_blocks_resident{tier="disk"}'] == resident
        assert answered(second) == (text, CACHED)
        after = second.metrics()
        assert after['kvist_tokens_cached_total{tier="disk"}'] == CACHED
        assert answered(second, cache_salt="somebody else") == (text, 0)
        check_ledgers(second.metrics_when(lambda found: found["kvist_stores_running"] == 0))


def test_damage_on_the_disk_is_never_served(folder: Path, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    with serve(folder, tmp_path / "secret", f"disk={tier}:64MiB") as first:
        text, _ = answered(first)
        first.metrics_when(lambda found: stored("disk", found))
    for segment in tier.glob("segment-*"):
        content = bytearray(segment.read_bytes())
        for place in range(0, len(content), 4096):
            content[place + 2048] ^= 0x10
        segment.write_bytes(content)
    with serve(folder, tmp_path / "secret", f"disk={tier}:64MiB") as second:
        assert answered(second) == (text, 0)
        metrics = second.metrics_when(lambda found: found["kvist_stores_running"] == 0)
        assert metrics['kvist_tier_blocks_total{event="quarantined",tier="disk"}'] > 0
        assert metrics["kvist_loads_failed_total"] == 1
        check_ledgers(metrics)
        # What was computed instead has replaced it.
        assert answered(second) == (text, CACHED)


def test_a_pool_that_dies_and_returns_costs_no_answer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with (
        RedisProcess(tmp_path / "redis") as redis,
        serve(folder, tmp_path / "secret", f"pool=redis://127.0.0.1:{redis.port}") as server,
    ):
        text, _ = answered(server)
        server.metrics_when(lambda found: stored("pool", found))
        redis.stop()
        prompts = [[*PROMPT[:100], *range(10 + turn, 60 + turn)] for turn in range(6)]
        while_dead = [answered(server, prompt)[0] for prompt in prompts]
        redis.start()
        assert [answered(server, prompt)[0] for prompt in prompts] == while_dead
        # It is used again by itself: something new arrives there.
        before = server.metrics()['kvist_tier_blocks_total{event="stored",tier="pool"}']
        turn = iter(range(10**6))

        def stores_again(found: dict[str, float]) -> bool:
            answered(server, [4 + next(turn) % 200, *PROMPT], max_tokens=1)
            return found['kvist_tier_blocks_total{event="stored",tier="pool"}'] > before

        server.metrics_when(stores_again)
        assert answered(server) == (text, CACHED)
        check_ledgers(server.metrics_when(lambda found: found["kvist_stores_running"] == 0))


def test_no_pool_at_all_is_no_reason_not_to_serve(folder: Path, tmp_path: Path) -> None:
    with serve(folder, tmp_path / "secret", "pool=redis://127.0.0.1:1") as server:
        assert answered(server)[1] == 0
        assert answered(server)[1] == CACHED


REHEARSAL = """
[tiers.dram]
bytes = "1MiB"
faults = {one_in = 4, seed = 1, delay_s = 0.02}

[tiers.disk]
path = "%s"
bytes = "64MiB"
faults = {one_in = 4, seed = 2, delay_s = 0.02}

[tiers.pool]
url = "redis://127.0.0.1:%d"
faults = {one_in = 4, seed = 3, delay_s = 0.02}
"""


def test_tiers_that_fail_all_the_time_change_no_answer(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    prompts = [[*PROMPT[: 16 * turn], *range(20 + turn, 60 + turn)] for turn in range(2, 12)]
    with serve(folder, tmp_path / "plain") as plain:
        expected = [answered(plain, prompt)[0] for prompt in prompts]
    config = tmp_path / "kvist.toml"
    with RedisProcess(tmp_path / "redis") as redis:
        config.write_text(REHEARSAL % (tmp_path / "tier", redis.port))
        flags = ("--config", str(config), "--cache-secret-file", str(tmp_path / "secret"), "--load-when", "always")
        # Own memory holds two of the prompts at most, so that what is asked for again comes from tiers.
        small = ("--kv-memory", "700KiB", "--model-tokens-max", "256", "--audit")
        with RealServer("--model", str(folder), *FLAGS, *flags, *small) as server:
            for _ in range(4):
                assert [answered(server, prompt)[0] for prompt in prompts] == expected
            metrics = server.metrics_when(lambda found: found["kvist_stores_running"] == 0)
    assert metrics["kvist_failures_total"] == 0
    assert metrics["kvist_loads_total"] > 0, "nothing came from a tier, so nothing was tried"
    assert metrics["kvist_loads_failed_total"] > 0, "nothing failed, so nothing was tried"
    check_ledgers(metrics)
