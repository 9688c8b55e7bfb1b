"""Summaries as tables for people; what to print them on is the caller's business."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvist.lab.serve_summary import ServeSummary
from kvist.lab.spread import Percentiles, Spread
from kvist.lab.ttft_summary import TtftSummary


def seconds(value_s: float) -> str:
    """A duration in the unit that keeps it readable.

    >>> seconds(12.3456), seconds(0.0123456), seconds(0.0000123)
    ('12.35 s', '12.3 ms', '0.012 ms')
    """
    if value_s >= 1:
        return f"{value_s:.2f} s"
    return f"{value_s * 1000:.1f} ms" if value_s >= 0.001 else f"{value_s * 1000:.3f} ms"


def ttft_table(summaries: Sequence[TtftSummary]) -> Table:
    """One line per prefix length."""
    table = Table(title="Time to first token: median (interquartile range)", title_justify="left")
    for heading in ("prefix", "cold", "warm", "cached", "speed-up", "by pairs"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        pairs = summary.speedup_pairwise
        table.add_row(
            f"{summary.prefix_tokens:,}",
            _median(summary.cold_ttft_s),
            _median(summary.warm_ttft_s),
            f"{summary.cached_tokens:,}",
            f"{summary.speedup:.1f}x",
            f"{pairs.min:.1f}-{pairs.max:.1f}x",
        )
    return table


def serve_table(summary: ServeSummary) -> Group:
    """Latency percentiles, and below them rates, hits and errors."""
    table = Table(title=f"{summary.completed} of {summary.requests} requests completed", title_justify="left")
    for heading in ("", "p50", "p90", "p99", "mean", "max"):
        table.add_column(heading, justify="right" if heading else "left")
    _percentile_row(table, "time to first token", summary.ttft_s)
    _percentile_row(table, "inter-token latency", summary.inter_token_s)
    _percentile_row(table, "time per output token", summary.time_per_output_token_s)
    _percentile_row(table, "end to end", summary.latency_s)
    hits = "not reported" if summary.cached_fraction is None else f"{summary.cached_fraction:.1%}"
    errors = ", ".join(f"{kind}: {count}" for kind, count in summary.errors.items()) or "none"
    rates = (
        f"{summary.duration_s:.2f} s; {summary.requests_per_s:.2f} requests/s; {summary.output_tokens_per_s:.1f} output"
        f" tokens/s; {summary.total_tokens_per_s:.1f} tokens/s in all\n"
        f"prompt tokens from cache: {hits} (reusable at most: {summary.reusable_fraction:.1%})\nerrors: {errors}"
    )
    return Group(table, Text(rates))


def _median(of: Spread) -> str:
    scale, unit = (1, "s") if of.median >= 1 else (1000, "ms")
    digits = 2 if of.median * scale < 100 else 1
    return f"{of.median * scale:.{digits}f} ({(of.q3 - of.q1) * scale:.{digits}f}) {unit}"


def _percentile_row(table: Table, name: str, of: Percentiles | None) -> None:
    if of is not None:
        table.add_row(name, *(seconds(value) for value in (of.p50, of.p90, of.p99, of.mean, of.max)))
