"""A report is plain data, and nobody has to listen."""

import pytest

from kvist.app.progress import Progress, silent


def test_a_report_that_knows_no_bytes_says_so() -> None:
    report = Progress(stage="convert")
    assert (report.done, report.total) == (0, None)
    with pytest.raises(AttributeError):
        report.done = 1  # type: ignore[misc]  # that it is refused is the point


def test_silence_takes_any_report() -> None:
    assert silent(Progress(stage="x", done=1, total=2)) is None
