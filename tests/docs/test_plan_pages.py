"""What the documents show of `kvist plan` is what it says."""

import re
from pathlib import Path

import pytest

from fakes.told import told
from fakes.vllm_memory import answers_of
from kvist.app.accelerators import accelerators
from kvist.cli.main import main

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"```console\n\$ kvist (plan [^\n]+)\n```.*?```text\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/plan-memory.md"])
def test_every_line_that_is_shown_is_said(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = (ROOT / page).read_text(encoding="utf-8")
    command, shown = COMMAND.findall(text[text.index("kvist plan --model llama") - 20 :])[0]
    assert main(command.split()) == 1
    said = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    lines = [line.rstrip() for line in shown.splitlines()]
    assert len(lines) >= 6
    assert set(lines) <= said


def test_every_line_that_is_shown_of_a_comparison_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    text = (ROOT / "docs/how-to/plan-memory.md").read_text(encoding="utf-8")
    ((command, shown),) = COMMAND.findall(text[text.index("## Compare it with what runs") :])
    *words, _url = command.split()
    with told(answers_of("smollm2", "bytes")) as url:
        assert main([*words, url]) == 0
    said = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    assert set(shown.splitlines()) <= said


def test_every_accelerator_of_the_catalogue_is_named_in_the_page() -> None:

    page = (ROOT / "docs/how-to/plan-memory.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in accelerators())
