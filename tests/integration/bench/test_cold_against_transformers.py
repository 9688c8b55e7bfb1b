"""The benchmark of cold prefill runs on a tiny model, and what it writes adds up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_directory import write_tiny_directory

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "bench" / "serve" / "cold_against_transformers.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_round_is_in_the_report_and_behind_its_ratios(tmp_path: Path, name: str) -> None:
    model, report = write_tiny_directory(tmp_path / "model", name), tmp_path / "report.json"
    flags = ["--lengths", "40,70", "--step-tokens", "32,64", "--pairs", "3", "--threads", "1", "--id-max", "200"]
    done = run("--model", str(model), *flags, "--dtype", "float32", "--json", str(report))
    assert done.returncode == 0, done.stderr
    content = json.loads(report.read_text())
    assert content["schema"] == "kvist.bench.cold_against_transformers"
    assert len(content["samples"]) == 2 * (1 + 3) * 4
    assert all(sample["first_token_s"] > 0 for sample in content["samples"])
    summary = content["summary"]
    assert [(each["prompt_tokens"], each["step_tokens"]) for each in summary] == [
        (40, 32),
        (40, 64),
        (70, 32),
        (70, 64),
    ]
    for each in summary:
        assert each["against_cached_count"] == 3
        assert each["engine_s_min"] <= each["engine_s_median"] <= each["engine_s_max"]
        lowest = each["engine_s_min"] / each["cached_s_max"]
        assert lowest <= each["against_cached_median"] <= each["engine_s_max"] / each["cached_s_min"]
    assert "Cold prefill" in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lengths", "0"], "--lengths"),
        (["--model", "no-such-model"], "no model 'no-such-model'"),
    ],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], words: str) -> None:
    done = run(*flags)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
