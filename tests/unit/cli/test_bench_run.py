from pathlib import Path

import pytest

from kvist.cli.main import main

NOBODY = "http://127.0.0.1:1"
"""Where no server is; an error of arguments must show before anybody finds out."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    return main(["bench", *arguments]), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ttft", "--url", "localhost:8000"], "'localhost:8000' is not the base URL of a server"),
        (["serve", "--url", "http://u:p@h"], "holds credentials"),
        (["ttft", "--url", NOBODY, "--max-ratio-check", "0.1,0.2"], "2 values for 3 lengths"),
        (["serve", "--url", NOBODY, "--requests", "10000"], "need 20,000 to differ"),
        (["serve", "--url", NOBODY, "--prompt-tokens", "1000000"], "64,000,000 tokens; one run plans at most"),
        (["ttft", "--url", NOBODY, "--api-key-env", "KVIST_TEST_NO_SUCH"], "'KVIST_TEST_NO_SUCH' holds no API key"),
        (["ttft", "--url", NOBODY, "--api-key-env", ""], "'' holds no API key"),
        (["ttft", "--url", NOBODY, "--api-key-env", "KVIST_TEST_BROKEN"], "'KVIST_TEST_BROKEN' holds no API key"),
    ],
)
def test_arguments_that_cannot_work_together_are_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.setenv("KVIST_TEST_BROKEN", "schlüssel\n")
    code, said = run(capsys, *arguments)
    assert code == 2
    assert said.startswith("kvist bench: ")
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("kind", ["ttft", "serve"])
def test_a_report_without_a_place_is_code_2_before_the_server_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    code, said = run(capsys, kind, "--url", NOBODY, "--json", str(tmp_path / "gone" / "report.json"))
    assert code == 2
    assert "cannot write" in said


def test_a_server_that_is_not_there_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, "ttft", "--url", NOBODY)
    assert code == 1
    assert "no server answers at http://127.0.0.1:1/v1/models" in said
