"""The benchmark of the Redis tier runs over a real server, leaves nothing there, and what it writes adds up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from real.redis import shared_server

SCRIPT = Path(__file__).parents[3] / "bench" / "micro" / "redis_tier.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_every_round_is_in_the_report_and_behind_its_summary(tmp_path: Path) -> None:
    server, report = shared_server(), tmp_path / "report.json"
    server.ask("FLUSHALL")
    server.ask("SET", "stranger", "1")
    url = f"redis://127.0.0.1:{server.port}"
    done = run(url, "--record-bytes", "600", "70000", "--bytes", "140000", "--rounds", "6", "--json", str(report))
    assert done.returncode == 0, done.stderr
    assert server.ask("KEYS", "*") == [b"stranger"]
    content = json.loads(report.read_text())
    assert content["schema"] == "kvist.bench.redis_tier"
    cases = [(each["verb"], each["record_bytes"]) for each in content["summary"]]
    assert cases == [("write", 600), ("read", 600), ("write", 70_000), ("read", 70_000), ("find", 0)]
    for each in content["summary"]:
        mine = [
            sample
            for sample in content["samples"]
            if (sample["verb"], sample["record_bytes"]) in [(each["verb"], each["record_bytes"])]
        ]
        assert {sample["round"] for sample in mine} == set(range(7))
        took = sorted(sample["seconds"] for sample in mine if sample["contestant"] == "tier" and sample["round"])
        assert each["tier_s_median"] == pytest.approx((took[2] + took[3]) / 2)
        assert each["over_package_low"] <= each["over_package_median"] <= each["over_package_high"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["http://:hush@127.0.0.1"], "is not the URL of a Redis server"),
        (["redis://:hush@127.0.0.1:1"], "redis_tier: "),
        (["redis://:hush@127.0.0.1", "--rounds", "0"], "--rounds must be at least 1"),
        (["redis://:hush@127.0.0.1", "--json", "/"], "names no file"),
    ],
)
def test_what_cannot_be_measured_is_refused_without_the_password(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hush" not in done.stdout + done.stderr
