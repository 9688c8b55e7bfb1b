"""`kvist doctor` at the command line."""

import subprocess
import sys

import pytest

from kvist.cli.doctor_run import asked_of
from kvist.cli.main import build_parser, main


def test_what_is_given_is_asked() -> None:
    words = "--vllm --config a.toml --tier dram=1GiB --tier disk=/x:1GiB --url http://h --model m"
    asked = asked_of(build_parser().parse_args(["doctor", *words.split(), "--prefix-caching-hash-algo", "sha256"]))
    assert (asked.config, asked.tiers, asked.url, asked.model) == (
        "a.toml",
        ("dram=1GiB", "disk=/x:1GiB"),
        "http://h",
        "m",
    )
    assert (asked.hash_algorithm, asked.transfer) == ("sha256", None)
    assert asked_of(build_parser().parse_args(["doctor", "--vllm"])).tiers == ()


@pytest.mark.parametrize("words", [[], ["--json"], ["--vllm", "more"], ["--vllm", "--tier"]], ids=str)
def test_flags_that_make_no_sense_are_refused_with_the_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *words])
    assert caught.value.code == 2
    assert "usage: kvist" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--kv-transfer-config", "{"], ["--kv-transfer-config", "{}", "--tier", "dram=1GiB"], ["--url", "nonsense"]],
    ids=str,
)
def test_what_cannot_work_has_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--vllm", *words]) == 2
    assert capsys.readouterr().err.startswith("kvist doctor: ")


def test_the_flags_load_nothing_heavy() -> None:
    program = "import sys; from kvist.cli import doctor; assert not {'httpx', 'pydantic', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
