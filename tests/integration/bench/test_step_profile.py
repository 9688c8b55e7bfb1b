"""The profile of steps runs on a tiny model, meets every part, and what it writes adds up."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_directory import write_tiny_directory
from tiny_models import tiny_configs

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[3] / "bench" / "micro" / "step_profile.py"
SIZES = ["--short", "20", "--middle", "40", "--long", "200", "--together", "3", "--id-max", "200", "--threads", "1"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_every_part_of_every_case_is_in_the_report(tmp_path: Path) -> None:
    model, report = write_tiny_directory(tmp_path / "model", "llama-gqa3"), tmp_path / "report.json"
    flags = ["--rounds", "3", "--prefill-rounds", "2", "--dtype", "float32", "--json", str(report)]
    done = run("--model", str(model), *SIZES, *flags)
    assert done.returncode == 0, done.stderr
    content = json.loads(report.read_text())
    assert content["schema"] == "kvist.bench.step_profile"
    cases: dict[str, dict[str, dict[str, float]]] = {}
    for each in content["summary"]:
        cases.setdefault(each["case"], {})[each["part"]] = each
    names = ("prefill of 200 tokens", "decode of 1 after 20 tokens", "decode of 1 after 200 tokens")
    assert cases.keys() == {*names, "decode of 3 after 40 tokens"}
    config = tiny_configs()["llama-gqa3"]
    layers, hidden, intermediate = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    for case, parts in cases.items():
        products = {name: part for name, part in parts.items() if name.startswith("product")}
        assert sum(part["calls"] for part in products.values()) == 4 * layers + 1, case
        assert parts["norm"]["calls"] == 2 * layers + 1
        assert parts["activation"]["calls"] == parts["rotation, K and V written"]["calls"] == layers
        assert parts["attention"]["calls"] >= layers
        assert parts["step"]["share"] == 1
        assert parts["step"]["took_s_count"] == (2 if case.startswith("prefill") else 3)
    joint = f"product {hidden} -> {2 * intermediate}"
    rows = {case: cases[case][joint]["flops"] // (2 * layers * hidden * 2 * intermediate) for case in cases}
    assert list(rows.values()) == [200, 1, 1, 3]
    seen = {case: cases[case]["attention"]["flops"] for case in cases}
    assert seen["decode of 1 after 200 tokens"] / seen["decode of 1 after 20 tokens"] == pytest.approx(201 / 21)
    assert {limit["what"] for limit in content["limits"]} == {"read by our kernel", "read by sum", "matrix product"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--rounds", "0"], "--rounds must be at least 1"), (["--model", "no-such-model"], "no model 'no-such-model'")],
)
def test_what_cannot_be_measured_is_refused(flags: list[str], words: str) -> None:
    done = run(*flags)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
