"""What `kvist doctor` prints and exits with."""

import argparse
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kvist.app.doctor import Surroundings
from kvist.app.doctor_findings import note, ok, problem
from kvist.app.doctor_release import Said
from kvist.cli.doctor_run import run_doctor, surroundings, table_of, worst
from kvist.cli.main import build_parser


def quiet(command: Sequence[str], seconds: float) -> Said:
    return Said(0, ('kvist-doctor:["0.32.0", ""]',))


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    environment = {"KVIST_CACHE": str(tmp_path)}
    return replace(surroundings(), environment=environment, run=quiet, is_vllm_there=True, bytes_free=lambda: 2**40)


def parsed(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["doctor", "--vllm", *words])


def ran(around: Surroundings, *words: str) -> tuple[int, str]:
    screen = io.StringIO()
    return run_doctor(parsed(*words), around, Console(file=screen, width=200)), screen.getvalue()


def test_the_status_says_whether_there_is_a_problem(around: Surroundings) -> None:
    assert ran(around, "--tier", "dram=1GiB")[0] == 0
    status, text = ran(around, "--tier", "dram=1GiB", "--prefix-caching-hash-algo", "md5")
    assert status == 1
    assert "problem" in text
    assert "-> give --prefix-caching-hash-algo" in text


def test_json_says_the_same(around: Surroundings) -> None:
    status, text = ran(around, "--json", "--tier", "dram=1GiB", "--prefix-caching-hash-algo", "[red]x[/]")
    report = json.loads(text)
    assert (status, report["status"]) == (1, "problem")
    (hashes,) = (each for each in report["findings"] if each["check"] == "hashes")
    assert hashes.keys() == {"check", "status", "text", "remedy"}
    assert "[red]x[/]" in hashes["text"]


def test_the_worst_counts() -> None:
    assert worst([]) == worst([ok("a", "b")]) == "ok"
    assert worst([ok("a", "b"), note("a", "b")]) == "note"
    assert worst([problem("a", "b"), note("a", "b")]) == "problem"


def test_what_others_wrote_is_no_markup() -> None:
    screen = io.StringIO()
    Console(file=screen, width=200).print(table_of([problem("tier [b]x[/b]", "[red]y[/red]", "[z]")]))
    assert all(text in screen.getvalue() for text in ("tier [b]x[/b]", "[red]y[/red]", "[z]"))
