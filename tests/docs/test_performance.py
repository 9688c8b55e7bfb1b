"""docs/performance.md says what was measured, all of it, and how; what it shows is what the reports say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
TEXT = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


def report(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def section(name: str) -> str:
    """What stands between a section's marks."""
    found = re.search(rf"<!-- figures of {name}: .*? -->\n(.*?)<!-- end of figures -->", TEXT, re.DOTALL)
    assert found is not None, f"no section {name}"
    return found[1]


@pytest.mark.parametrize("peer", ["vllm", "transformers"])
def test_every_comparison_of_the_report_has_its_line(peer: str) -> None:
    shown = section(peer)
    summary = [each for each in report("peers-smollm2-cpu.json")["summary"] if each["peer"] == peer]
    assert shown.count("\n| in process") + shown.count("\n| over HTTP") + shown.count("\n| from start") == len(summary)
    for each in summary:
        assert f"**{each['ratio_median']:.2f}** ({each['ratio_q1']:.2f}-{each['ratio_q3']:.2f}" in shown


def test_what_is_not_reached_is_said() -> None:
    summary = report("peers-smollm2-cpu.json")["summary"]
    missed = [each for each in summary if each["is_reached"] is False]
    assert TEXT.count("**not reached**") == len(missed)
    for each in summary:
        if each["goal"] is not None:
            within = (
                each["ratio_median"] <= each["goal"] if each["is_at_most"] else each["ratio_median"] >= each["goal"]
            )
            assert each["is_reached"] == within


def test_both_commands_and_machines_are_named() -> None:
    for name, where in (("peers-smollm2-cpu.json", "vllm"), ("step-profile-smollm2-cpu.json", "profile")):
        found = report(name)
        assert " ".join(found["command"]) in section(where)
        assert found["machine"]["cpu_model"] in section(where)
        assert found["git_commit"][:9] in section(where)


def test_parts_of_a_step_add_up_to_it() -> None:
    summary = report("step-profile-smollm2-cpu.json")["summary"]
    for case in {each["case"] for each in summary}:
        parts = {each["part"]: each for each in summary if each["case"] == case}
        whole = parts.pop("step")["took_s_median"]
        assert sum(part["took_s_median"] for part in parts.values()) == pytest.approx(whole, rel=0.25), case
