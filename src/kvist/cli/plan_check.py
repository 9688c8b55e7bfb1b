"""`kvist plan --check`: asks the server, and shows the comparison as a table or as JSON."""

import json
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvist.app.plan import Answer
from kvist.app.plan_check import Check, Figure, checked
from kvist.app.plan_report import report
from kvist.app.plan_reported import ask_reported
from kvist.base.units import format_bytes

_ENGINES = {"vllm": "vLLM", "kvist": "Kvist"}
_LABELS = {
    "context_tokens": "longest request, in tokens",
    "kv_dtype": "KV dtype",
    "block_tokens": "tokens per block",
    "blocks": "blocks",
    "kv_bytes": "KV in blocks",
    "tokens_capacity": "tokens",
    "concurrency_printed": "longest requests at once",
    "kv_bytes_per_token": "KV per token",
    "weights_bytes": "weights",
    "workspace_bytes": "workspace",
}


def run_check(answer: Answer, url: str, console: Console, *, as_json: bool) -> int:
    """Compares an answer with the server at a URL.

    Args:
        answer: the plan.
        url: of a vLLM, or of Kvist's own engine.
        console: where to show the comparison.
        as_json: the plan and the comparison as JSON, with units in the names.

    Returns:
        0 when every difference is explained, 1 when one is not.

    Raises:
        ConfigError: it is no URL, or the plan is by the rules of another engine.
        WireError: nobody answers there, or not as such a server does.
    """
    check = checked(answer, ask_reported(url))
    if as_json:
        text = json.dumps(report(answer) | {"check": check_report(check)}, indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)
    else:
        for part in shown(check):
            console.print(part, highlight=False, soft_wrap=isinstance(part, str), emoji=False)
    return 1 if check.doubts else 0


def check_report(check: Check) -> dict[str, object]:
    """The comparison, as values that a JSON encoder takes."""
    said = check.reported
    return {
        "url": said.url,
        "engine": said.rules,
        "version": said.version,
        "engines": said.engines,
        "explained": not check.doubts,
        "figures": [
            {"name": row.name, "planned": row.planned, "reported": row.reported, "difference": row.difference}
            for row in check.rows
        ],
        "reasons": list(check.reasons),
        "doubts": list(check.doubts),
    }


def shown(check: Check) -> Iterator[Table | str]:
    """What to print, in order."""
    said = check.reported
    release = f" {said.version}" if said.version else ""
    table = Table(title=_safe(f"{_ENGINES[said.rules]}{release} at {said.url}"), title_justify="left")
    for column in ("", "planned", "reported", "difference"):
        table.add_column(column, justify="right" if column else "left")
    for row in check.rows:
        name = _LABELS.get(row.name, row.name.replace("_", " "))
        difference = "" if row.difference is None else _signed(row.name, row.difference)
        table.add_row(name, _figure(row.name, row.planned), _figure(row.name, row.reported), difference)
    yield table
    for reason in check.reasons:
        yield f"- {_safe(reason)}"
    for doubt in check.doubts:
        yield f"[red]?[/red] {_safe(doubt)}"
    yield _verdict(check)


def _verdict(check: Check) -> str:
    if check.doubts:
        return "[red]The plan and the server differ in what is not explained.[/red]"
    if check.reasons:
        return "[green]With what the server has in place of what was planned, the plan has its figures.[/green]"
    return "[green]The server has what was planned.[/green]"


def _figure(name: str, value: Figure | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return _safe(value)
    if "bytes" in name:
        return f"{value:,} B" if value < 2**20 else format_bytes(int(value))
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _signed(name: str, value: float) -> str:
    if not value:
        return "0"
    return f"{'+' if value > 0 else '-'}{_figure(name, abs(value))}"


def _safe(text: str) -> str:
    """Text without what a terminal or a table would obey: a server wrote parts of it."""
    return escape("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))
