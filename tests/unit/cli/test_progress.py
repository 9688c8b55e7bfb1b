"""Progress is drawn on standard error, stage by stage, and never on standard output."""

import contextlib
import io

import pytest

from kvist.app.progress import Progress
from kvist.cli.progress import drawn


def test_every_stage_is_named_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with drawn() as report:
        report(Progress(stage="download"))
        report(Progress(stage="download", done=500_000, total=1_000_000))
        report(Progress(stage="download", done=1_000_000, total=1_000_000))
        report(Progress(stage="convert [bold]x[/bold]"))
    said = capsys.readouterr()
    assert said.out == ""
    assert "✓ download" in said.err
    assert "1.0/1.0 MB" in said.err
    assert "✓ convert [bold]x[/bold]" in said.err


def test_nothing_reported_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with drawn():
        pass
    assert "✓" not in capsys.readouterr().err


def break_while_drawing() -> None:
    with drawn() as report:
        report(Progress(stage="convert"))
        raise ValueError("broke")


def test_a_failure_passes_and_leaves_the_stage_unfinished(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broke"):
        break_while_drawing()
    said = capsys.readouterr().err
    assert "convert" in said
    assert "✓ convert" not in said


def test_bars_survive_a_diverted_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    diverted = io.StringIO()
    with drawn() as report, contextlib.redirect_stderr(diverted):
        report(Progress(stage="convert"))
    assert diverted.getvalue() == ""
    assert "convert" in capsys.readouterr().err
