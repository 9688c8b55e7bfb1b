"""The benchmarks of single structures run, and what they write adds up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "bench" / "micro"
SMALL = {
    "fabric_control": ["--blocks", "40", "--hit", "40"],
    "hash_chain": ["--tokens", "320", "--block-tokens", "16", "32"],
    "prefix_lookup": ["--blocks", "40"],
    "tier_books": ["--blocks", "40"],
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(FOLDER / f"{name}.py")
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SMALL)
def test_every_round_is_in_the_report_and_behind_its_summary(tmp_path: Path, name: str) -> None:
    report = tmp_path / "report.json"
    done = run(name, *SMALL[name], "--rounds", "3", "--json", str(report))
    assert done.returncode == 0, done.stderr
    content = json.loads(report.read_text())
    assert content["schema"] == f"kvist.bench.{name}"
    assert content["command"][1] == f"bench/micro/{name}.py"
    names = [each["case"] for each in content["summary"]]
    assert len(set(names)) == len(names) >= 6
    assert sorted((each["case"], each["round"]) for each in content["samples"]) == sorted(
        (case, turn) for case in names for turn in range(4)
    )
    for each in content["summary"]:
        assert each["took_cpu_s_count"] == 3
        assert 0 < each["took_cpu_s_min"] <= each["took_cpu_s_median"] <= each["took_cpu_s_max"]
        assert each["units_per_s"] == pytest.approx(1e9 / each["ns_per_unit"])
        assert each["units"] in {320, 40, 1024}
        assert each["case"] in done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--json", "/"], "names no file"),
        (["--seed", "much"], "--seed"),
    ],
)
@pytest.mark.parametrize("name", SMALL)
def test_what_cannot_be_measured_is_refused(name: str, flags: list[str], words: str) -> None:
    done = run(name, *flags)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
