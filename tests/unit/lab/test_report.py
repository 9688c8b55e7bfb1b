import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kvist
from kvist.base.errors import ConfigError
from kvist.lab.client import ServedModel
from kvist.lab.dialect import Completions, Dialect
from kvist.lab.machine import Machine
from kvist.lab.report import (
    Provenance,
    check_writable,
    document,
    flat,
    script_document,
    script_provenance,
    write_json,
)
from kvist.lab.serve import Broken
from kvist.lab.spread import Spread, spread
from kvist.lab.ttft import TtftRow
from kvist.lab.ttft_summary import summarise_ttft

MACHINE = Machine(cpu_model="cpu", cores=2, cores_usable=1, memory_bytes=8, system="s", python="3")
PROVENANCE = Provenance(
    command=("kvist", "bench"), started_at="2030-01-01T00:00:00+00:00", seed=3, machine=MACHINE, git_commit=None
)
NAMES = [
    "schema",
    "schema_version",
    "kvist_version",
    "command",
    "started_at",
    "seed",
    "git_commit",
    "machine",
    "server",
    "settings",
    "requests",
    "summary",
]


def row(phase: str) -> TtftRow:
    times = {"ttft_s": 1.0, "latency_s": 2.0}
    return TtftRow(
        prefix_tokens=64, repeat=0, phase=phase, prompt_tokens=80, cached_tokens=None, output_tokens=1, **times
    )


def written(opened: Callable, results: tuple[object, object]) -> dict[str, object]:
    async def go() -> dict[str, object]:
        async with opened() as client:
            dialect = Dialect(prompt="token ids", ignore_eos=False, usage=True, refusals=("no",))
            asked = Completions(client, ServedModel(name="tiny", tokens_max=9), dialect)
            return document("ttft", PROVENANCE, asked, settings={"repeats": 1}, results=results)

    return asyncio.run(go())


def test_a_document_says_who_measured_what_and_how(opened: Callable) -> None:
    rows = (row("cold"), row("warm"))
    content = json.loads(json.dumps(written(opened, (rows, summarise_ttft(rows)))))
    assert (content["schema"], content["schema_version"]) == ("kvist.bench.ttft", 1)
    assert content["kvist_version"] == kvist.__version__
    assert (content["command"], content["seed"], content["git_commit"]) == (["kvist", "bench"], 3, None)
    assert content["machine"]["cpu_model"] == "cpu"
    assert content["server"] == {
        "url": "http://sim",
        "model": "tiny",
        "max_model_len": 9,
        "asked_in": {"prompt": "token ids", "ignore_eos": False, "usage": True, "refusals": ["no"]},
    }
    assert content["settings"] == {"repeats": 1}
    assert [each["phase"] for each in content["requests"]] == ["cold", "warm"]
    assert content["summary"][0]["cold_ttft_s_median"] == 1.0
    assert list(content) == NAMES


def test_a_single_summary_is_an_object_and_rows_may_be_of_two_kinds(opened: Callable) -> None:
    failed = Broken(index=0, started_s=0.0, error_kind="timeout", error="late")
    content = written(opened, ((row("cold"), failed), spread([1.0])))
    assert content["requests"][1]["error_kind"] == "timeout"
    assert content["summary"]["median"] == 1.0


def test_names_of_nested_values_carry_the_unit_and_then_the_qualifier() -> None:
    (summary,) = summarise_ttft((row("cold"), row("warm")))
    names = flat(summary)
    for qualifier in Spread.__slots__:
        assert f"warm_ttft_s_{qualifier}" in names
    with pytest.raises(TypeError, match="int is not a record"):
        flat(7)


def test_a_document_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    check_writable(path)
    assert path.read_text() == "old"
    write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["report.json"]  # noqa: PTH208 - names, nothing else


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_place_that_is_gone_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("gone", "file"):
        with pytest.raises(ConfigError, match="cannot write"):
            write_json(tmp_path / place / "report.json", {})


@pytest.mark.parametrize("name", ["", ".", "gone/report.json", "report\x00.json", "x" * 300, "file/report.json"])
def test_a_place_that_cannot_hold_a_document_is_found_out_before_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"is a directory|names no file|cannot write '.*': "):
        check_writable(tmp_path / name)


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(ConfigError, match="no regular file"):
        check_writable(Path(os.devnull))


def test_a_script_s_document_has_its_options_and_all_its_records() -> None:
    settings = {"lengths": (1, 2), "json": Path("out.json"), "rounds": 3, "tier": None}
    results = {"samples": [row("cold"), row("warm")], "summary": [spread([1.0])]}
    content = script_document("tiers", PROVENANCE, settings, results)
    assert list(content) == [*NAMES[:8], "settings", "samples", "summary"]
    assert content["schema"] == "kvist.bench.tiers"
    assert content["settings"] == {"lengths": [1, 2], "json": "out.json", "rounds": 3, "tier": None}
    assert content["samples"] == [flat(row("cold")), flat(row("warm"))]
    assert json.loads(json.dumps(content)) == content | {"command": list(PROVENANCE.command)}


def test_a_script_says_how_it_was_called_and_where() -> None:
    provenance = script_provenance("bench/x.py", ["--rounds", "3"], seed=7)
    assert (provenance.command, provenance.seed) == (("python", "bench/x.py", "--rounds", "3"), 7)
    assert provenance.machine.cores >= 1
