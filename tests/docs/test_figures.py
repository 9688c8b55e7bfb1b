"""The README's tables are those of the reports in bench/results, and the reports show what the README claims."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def summary(name: str) -> list[dict[str, Any]]:
    return json.loads((RESULTS / name).read_text())["summary"]


def test_the_readme_shows_what_was_measured() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "generate-figures"), "--check"]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize(("prefix", "least"), [(1024, 10), (2048, 20), (4096, 40)])
def test_warm_is_as_much_sooner_than_cold_as_was_asked_for(prefix: int, least: float) -> None:
    (part,) = (each for each in summary("ttft-smollm2-cpu.json") if each["prefix_tokens"] == prefix)
    assert part["speedup"] >= least
    assert part["cached_tokens_min"] == prefix


@pytest.mark.parametrize("prompt", [1024, 2048, 4096])
def test_a_cold_prefill_is_no_slower_than_transformers_own_forward_pass(prompt: int) -> None:
    (part,) = (each for each in summary("cold-smollm2-cpu.json") if each["prompt_tokens"] == prompt)
    assert part["against_uncached_median"] <= 1.0
    assert part["against_uncached_count"] >= 5


@pytest.mark.parametrize(("tier", "most"), [("dram", 0.06), ("disk", 0.08)])
def test_a_vllm_begins_from_a_tier_in_the_part_of_computing_that_was_asked_for(tier: str, most: float) -> None:
    (part,) = (each for each in summary("vllm-reuse-smollm2-cpu.json") if each["tier"] == tier)
    assert part["tier_ratio_median"] <= most
    assert part["tier_ratio_count"] >= 5
