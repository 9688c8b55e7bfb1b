"""What `kvist serve` shows: the memory budget as a table, and a demonstration that may fail without harm."""

import io
from dataclasses import replace

from rich.console import Console

from kvist.app.budget import Budget
from kvist.base.units import Bytes, Tokens
from kvist.cli.serve_run import _demonstrate, budget_table
from kvist.engine.messages import EngineLimits
from kvist.planner.budget import KvPlan

BUDGET = Budget(
    weights=Bytes(256 * 2**20),
    workspace=Bytes(100 * 2**20),
    kv=Bytes(2 * 2**30),
    plan=KvPlan(
        bytes_budget=Bytes(2 * 2**30),
        bytes_used=Bytes(2 * 2**30),
        blocks=(5825, 1234),
        block_bytes=(Bytes(360 * 2**10), Bytes(90 * 2**10)),
        tokens_capacity=Tokens(93_200),
        longest_request_tokens=Tokens(8192),
        requests_at_longest=11,
        fits_model_length=True,
        bytes_for_model_length=Bytes(188_743_680),
    ),
    limits=EngineLimits(
        model_tokens_max=Tokens(8192),
        prompt_tokens_max=Tokens(8191),
        output_tokens_max=Tokens(8191),
        longest_request_tokens=Tokens(8192),
        sequences_max=64,
        waiting_max=1024,
        vocab_size=49_152,
    ),
    kv_bytes_per_token=Bytes(23_040),
    block_tokens=16,
)


def shown(budget: Budget, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(budget_table(budget))
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO given


def test_every_figure_of_the_budget_is_shown() -> None:
    text = shown(BUDGET)
    for part in (
        "weights",
        "256.0 MiB",
        "workspace",
        "100.0 MiB",
        "2.0 GiB (22.5 KiB per token)",
        "5,825 + 1,234 of 16 tokens",
        "93,200",
        "8,192 tokens",
        "concurrent requests",
        " 11 ",
    ):
        assert part in text, part
    assert "would take" not in text


def test_it_says_what_the_longest_request_would_take_when_it_does_not_fit() -> None:
    plan = replace(BUDGET.plan, fits_model_length=False, longest_request_tokens=Tokens(4000))
    assert "4,000 tokens (all 8,192 would take 180.0 MiB)" in shown(replace(BUDGET, plan=plan))


def test_a_narrow_terminal_loses_no_figure() -> None:
    text = shown(BUDGET, width=40)
    for part in ("256.0", "93,200", "1,234"):
        assert part in text


def test_a_demonstration_that_fails_is_told_and_nothing_more() -> None:
    console = Console(file=io.StringIO(), width=200)
    _demonstrate("http://127.0.0.1:9", console)
    said = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO given
    assert "The demonstration failed: " in said
    assert "Traceback" not in said
