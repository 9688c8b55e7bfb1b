"""Draws reports of progress in a terminal: one bar for each stage, on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from kvist.app.progress import Progress as Step
from kvist.app.progress import Report


@contextmanager
def drawn() -> Iterator[Report]:
    """Draws whatever is reported until the block ends; finished stages stay on the screen."""
    # The stream itself: while a model is converted, what others print on sys.stderr is discarded.
    console = Console(file=sys.stderr)
    stage = TextColumn("{task.description}", markup=False)
    with Progress(
        SpinnerColumn(finished_text="✓"), stage, BarColumn(20), TimeElapsedColumn(), _Bytes(), console=console
    ) as bars:
        drawing = _Bars(bars)
        yield drawing.show
        drawing.finish()


class _Bytes(DownloadColumn):
    """Bytes done and to do, of stages that count bytes."""

    def render(self, task: Task) -> Text:
        """The text of one bar."""
        return super().render(task) if task.total else Text()


class _Bars:
    """One bar for each stage."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._stage: str | None = None
        self._task = TaskID(0)

    def show(self, step: Step) -> None:
        """Moves the bar of the current stage, or finishes it and begins another."""
        if step.stage != self._stage:
            self.finish()
            self._stage, self._task = step.stage, self._bars.add_task(step.stage, total=step.total)
        self._bars.update(self._task, completed=step.done, total=step.total)

    def finish(self) -> None:
        """Ends the current stage; one of unknown length is whole now."""
        if self._stage is not None:
            task = self._bars.tasks[-1]
            self._bars.update(self._task, total=task.total or 0, completed=task.total or 0)
