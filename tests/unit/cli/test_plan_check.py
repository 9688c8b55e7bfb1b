"""`kvist plan --check` at the command line: a table or JSON, a status, and one line about what is wrong."""

import json
from collections.abc import Iterator

import pytest

from fakes.told import told
from fakes.vllm_memory import answers_of
from kvist.cli.main import main
from real.redis import free_port

PLANNED = ["plan", "--model", "smollm2", "--gpu-memory", "16GiB", "--context", "8192"]
AS_IT_RUNS = [*PLANNED, "--block-tokens", "32", "--kv-memory", "1GiB"]


@pytest.fixture
def url() -> Iterator[str]:
    """A vLLM as a real one was: of SmolLM2, with 1 GiB for KV and blocks of 32 tokens."""
    with told(answers_of("smollm2", "bytes")) as address:
        yield address


def test_a_plan_that_is_right_is_shown_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*AS_IT_RUNS, "--check", url]) == 0
    said = capsys.readouterr().out
    assert f"vLLM 0.32.0 at {url}" in said
    assert "The server has what was planned." in said
    (blocks,) = [line for line in said.splitlines() if line.startswith("│ blocks ")]
    assert blocks.replace("│", " ").split() == ["blocks", "1,456", "1,456", "0"]


def test_what_differs_is_explained_below_the_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLANNED, "--check", url]) == 0
    said = capsys.readouterr().out
    assert "- blocks: planned of 16 tokens, the server has them of 32; with that the plan has" in said
    assert "- KV memory: the plan leaves" in said
    assert "With what the server has in place of what was planned, the plan has its figures." in said


def test_what_nothing_explains_has_status_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = ["plan", "--model", "llama-3.1-8b", "--gpu", "h200", "--check", url]
    assert main(other) == 1
    said = capsys.readouterr().out
    assert "? with all the settings that the server tells, the plan has" in said
    assert "differ in what is not explained" in said


def test_the_same_comes_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLANNED, "--json", "--check", url]) == 0
    found = json.loads(capsys.readouterr().out)
    check, figures = found["check"], {each["name"]: each for each in found["check"]["figures"]}
    assert (check["engine"], check["version"], check["explained"], check["doubts"]) == ("vllm", "0.32.0", True, [])
    assert figures["blocks"]["reported"] == 1456
    assert figures["blocks"]["planned"] == found["blocks"]
    assert figures["blocks"]["difference"] == 1456 - found["blocks"]
    assert len(check["reasons"]) == 2


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ({}, "answers with status 404"),
        ({"/metrics": (200, b"\x00\x1b[2J" * 99)}, "no vLLM and no server of Kvist's"),
        ({"/metrics": (200, b'vllm:cache_config_info{num_gpu_blocks="9e999",cache_dtype="auto"} 1\n')}, "'9e999'"),
    ],
    ids=["no metrics", "no text", "no number"],
)
def test_what_is_no_server_is_one_line(
    answers: dict[str, tuple[int, bytes]], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with told(answers) as address:
        assert main([*PLANNED, "--check", address]) != 0
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert complaint in line
    assert said.out == ""


@pytest.mark.parametrize("text", ["", "there", "http://127.0.0.1:{port}"])
def test_nobody_there_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLANNED, "--check", text.format(port=free_port())]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvist plan: ")
