"""The tables show what matters first, and nothing of a name that a terminal would obey."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kvist.app.plan import Answer, Ask, GpuAsk, answered
from kvist.base.units import Bytes
from kvist.cli.plan_tables import shown
from kvist.planner.sharding import Parallel


def about(model: str = "gemma-3-4b", gpu: GpuAsk | None = None, **rest: object) -> Answer:
    return answered(Ask(model=model, gpu=gpu or GpuAsk(name="l4"), **rest))  # type: ignore[arg-type]  # tests say which


def text_of(answer: Answer, width: int = 120) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in shown(answer):
        console.print(part, highlight=False, soft_wrap=isinstance(part, str), emoji=False)
    return out.getvalue()


def test_windows_are_told_apart_from_what_grows() -> None:
    text = text_of(about(context=8192))
    assert "139,264 B (136.0 KiB)" in text
    assert "beyond windows" in text
    assert "20,480 B (20.0 KiB)" in text
    assert "beyond windows" not in text_of(about("llama-3.1-8b", context=8192))


def test_what_fits_is_said_in_a_sentence() -> None:
    assert "Fits: 2 requests of 8,192 tokens at once; there is room for " in text_of(about(context=8192, concurrency=2))


def test_what_does_not_fit_is_said_with_what_is_missing_and_what_would_help() -> None:
    answer = about("llama-3.1-8b", concurrency=4)
    text = text_of(answer)
    assert "Does not fit: 4 requests of 131,072 tokens at once would take " in text
    assert "What would make it fit, each by itself" in text
    assert "--gpu-memory" in text
    assert "To type, for as much as fits" in text


def test_where_nothing_fits_nobody_is_told_what_to_type() -> None:
    text = text_of(about("llama-3.1-405b"))
    assert "Nothing to type" in text
    assert "What a change would buy" not in text
    assert "-7" in text.split("left for KV")[1].splitlines()[0]


def test_copies_and_accelerators_are_told() -> None:
    text = text_of(about("llama-3.1-70b", GpuAsk(name="h200"), parallel=Parallel(tensor=16)))
    assert "16 x h200" in text
    assert "(tensor 16, pipeline 1, context 1)" in text
    assert "copies of each token's KV" in text


def test_what_loading_pays_is_shown_where_speeds_are_known() -> None:
    assert "host memory" in text_of(about())
    assert "host memory" not in text_of(about(gpu=GpuAsk(memory=Bytes(24 * 2**30))))


def test_a_host_is_no_gpu() -> None:
    text = text_of(about("smollm2", GpuAsk(memory=Bytes(8 * 2**30)), rules="kvist"))
    assert "Memory of each host" in text
    assert "driver and libraries" not in text
    assert "Kvist: kvist serve --model smollm2 --kv-memory" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_tables_fit_their_console(width: int) -> None:
    lines = text_of(about(concurrency=100), width).splitlines()
    assert all(len(line) <= width for line in lines if line.startswith(("│", "┃", "┏", "└")))


def test_names_that_a_terminal_would_obey_are_not_shown_as_they_are() -> None:
    answer = about()
    name = "[red]x[/red]\x1b[31m\x07\u202e"
    odd = replace(answer, model=replace(answer.model, name=name, given=name, own=name))
    text = text_of(odd)
    assert "[red]x[/red]\N{REPLACEMENT CHARACTER}[31m" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
