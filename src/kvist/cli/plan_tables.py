"""An answer of the planner as tables, for people."""

from collections.abc import Iterator, Sequence

from rich.markup import escape
from rich.table import Table

from kvist.app.plan import Answer, words
from kvist.app.plan_flags import engine_flags
from kvist.base.units import format_bytes
from kvist.planner.breakeven import BreakEven
from kvist.planner.changes import Change
from kvist.planner.deployment import Deployment
from kvist.planner.plan import Plan

Shown = Table | str

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_ENGINES = {"vllm": "vLLM", "kvist": "Kvist"}
_TIERS = {"dram": "host memory", "disk": "local disk", "pool": "shared pool"}


def shown(answer: Answer) -> Iterator[Shown]:
    """What to print, in order."""
    yield _title(answer)
    yield _kv(answer.plan, answer.deployment)
    yield _memory(answer)
    yield _capacity(answer.plan, answer.deployment)
    yield _verdict(answer.plan, answer.deployment)
    if answer.remedies:
        yield _changed("What would make it fit, each by itself", answer.remedies)
    if any(change.plan.longest_request_tokens for change in answer.changes):
        yield _changed("What a change would buy", answer.changes)
    if answer.break_even:
        yield _break_even(answer.break_even, answer.deployment)
    yield from _to_type(answer)


def _title(answer: Answer) -> str:
    asked = answer.deployment
    parallel = asked.parallel
    billions = asked.model.parameters.total / 1e9
    spread = f" (tensor {parallel.tensor}, pipeline {parallel.pipeline}, context {parallel.context})"
    return (
        f"[bold]{_safe(answer.model.name)}[/bold], {billions:,.2f} billion parameters, on {parallel.ranks} x "
        f"{_safe(asked.machine.name)} of {format_bytes(asked.machine.bytes_total)}"
        f"{spread if parallel.ranks > 1 else ''}, by the rules of {_ENGINES[asked.rules]}"
    )


def _kv(plan: Plan, asked: Deployment) -> Table:
    table = _table(f"KV in {_safe(asked.form.kv.name)}", ("", "whole model", f"each {_unit(asked)}"))
    beyond, fixed = plan.kv_bytes_per_token_beyond_windows, plan.kv_bytes_fixed_per_request
    table.add_row("per token", _both(plan.kv_bytes_per_token), _both(plan.kv_bytes_per_token_per_rank))
    if fixed:
        table.add_row("  beyond windows", _both(beyond), "")
        table.add_row("  windows and states, per request", format_bytes(fixed), "")
    tokens = f"per request of {asked.context_tokens:,} tokens"
    table.add_row(tokens, format_bytes(plan.kv_bytes_per_request), format_bytes(plan.kv_bytes_per_request_per_rank))
    needed = format_bytes(plan.kv_bytes_needed_per_rank)
    table.add_row(f"for {_requests(asked.concurrency)}", format_bytes(plan.kv_bytes_total), needed)
    if plan.kv_replication > 1:
        table.add_row("copies of each token's KV", f"{plan.kv_replication:g}", "")
    return table


def _memory(answer: Answer) -> Table:
    plan, asked = answer.plan, answer.deployment
    table = _table(f"Memory of each {_unit(asked)}", ("", "bytes", "from"))
    known = answer.model.weights_from
    table.add_row(
        "weights", format_bytes(plan.weights_bytes_per_rank), f"{known}; all: {format_bytes(plan.weights_bytes)}"
    )
    table.add_row(
        "workspace", format_bytes(plan.workspace_bytes_per_rank), f"estimated for {asked.step_tokens:,} tokens a step"
    )
    if plan.reserve_bytes_per_rank:
        table.add_row("driver and libraries", format_bytes(plan.reserve_bytes_per_rank), "estimated")
    how = "as asked for" if asked.kv_bytes is not None else f"what utilization {asked.utilisation:g} leaves"
    left = plan.kv_bytes_left_per_rank
    table.add_row("left for KV", format_bytes(left) if left >= 0 else f"-{format_bytes(-left)}", how)
    return table


def _capacity(plan: Plan, asked: Deployment) -> Table:
    table = _table("What fits", ("", ""))
    sizes = " + ".join(f"{count:,}" for count in plan.blocks)
    tokens = sorted(set(plan.block_tokens))
    table.add_row(f"blocks of {' or '.join(str(each) for each in tokens)} tokens", sizes)
    table.add_row("tokens", f"{plan.tokens_capacity:,}")
    table.add_row(f"requests of {asked.context_tokens:,} tokens at once", f"{plan.concurrent_requests:,}")
    table.add_row("longest request, in tokens", f"{plan.longest_request_tokens:,}")
    return table


def _verdict(plan: Plan, asked: Deployment) -> str:
    wanted = f"{_requests(asked.concurrency)} of {asked.context_tokens:,} tokens"
    if plan.fits:
        return f"[green]Fits: {wanted} at once; there is room for {plan.concurrent_requests:,}.[/green]"
    missing = format_bytes(plan.missing_bytes_per_rank)
    return f"[red]Does not fit: {wanted} at once would take {missing} more for KV on each {_unit(asked)}.[/red]"


def _changed(title: str, found: Sequence[Change]) -> Table:
    columns = ("change", "at once", "longest", "KV per token", "left for KV")
    table = _table(title, columns)
    for change in found:
        plan = change.plan
        left = plan.kv_bytes_left_per_rank
        table.add_row(
            words(change),
            f"{plan.concurrent_requests:,}",
            f"{plan.longest_request_tokens:,}",
            format_bytes(plan.kv_bytes_per_token),
            format_bytes(left) if left >= 0 else "none",
        )
    return table


def _break_even(found: Sequence[BreakEven], asked: Deployment) -> Table:
    longest = f"{asked.context_tokens:,} tokens"
    title = "Loading a prefix instead of computing it"
    table = _table(title, ("tier", "is faster from", f"loading {longest}", f"computing {longest}"))
    for each in found:
        start = "never" if each.tokens is None else f"{each.tokens:,} tokens"
        table.add_row(_TIERS[each.medium], start, _seconds(each.load_s), _seconds(each.prefill_s))
    table.caption = "at the speeds that are sold; computing takes longer, so loading pays off earlier"
    table.caption_justify = "left"
    return table


def _to_type(answer: Answer) -> Iterator[Shown]:
    found = engine_flags(answer)
    if not found:
        yield "Nothing to type: no request fits, however short."
        return
    fitting = "" if answer.plan.fits else ", for as much as fits"
    yield f"[bold]To type{fitting}[/bold]"
    for each in found:
        yield f"[bold]{each.engine}[/bold]: {_safe(each.command or each.note)}"
        if each.command and each.note:
            yield f"  {_safe(each.note)}"


def _unit(asked: Deployment) -> str:
    """What computes: memory without a link to a host is the host's own."""
    return "host" if asked.machine.host_link_bytes_per_s is None else "GPU"


def _safe(text: str) -> str:
    """Text without what a terminal or a table would obey: a file may have any name."""
    return escape("".join(letter if letter.isprintable() else _REPLACEMENT for letter in text))


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _both(size: int) -> str:
    return f"{size:,} B" if size < 1024 else f"{size:,} B ({format_bytes(size)})"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for column in columns:
        is_text = column in {"", "change", "tier", "from"}
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column == "change")
    return table
