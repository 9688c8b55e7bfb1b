import io

from rich.console import Console
from rich.table import Table

from kvist.lab.serve import Broken, ServeRun
from kvist.lab.serve_summary import ServeSummary, summarise_serve
from kvist.lab.spread import percentiles
from kvist.lab.tables import seconds, serve_table, ttft_table
from kvist.lab.ttft import TtftRow
from kvist.lab.ttft_summary import summarise_ttft
from kvist.lab.workload import PlannedRequest


def printed(table: Table) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()


def row(prefix: int, phase: str, ttft_s: float) -> TtftRow:
    return TtftRow(
        prefix_tokens=prefix,
        repeat=0,
        phase=phase,
        ttft_s=ttft_s,
        latency_s=ttft_s,
        prompt_tokens=prefix + 16,
        cached_tokens=prefix,
        output_tokens=1,
    )


def test_durations_are_written_in_the_unit_that_keeps_them_readable() -> None:
    assert [seconds(value) for value in (61.0, 1.0, 0.9999, 0.001, 0.0005, 0.0)] == [
        "61.00 s", "1.00 s", "999.9 ms", "1.0 ms", "0.500 ms", "0.000 ms"
    ]  # fmt: skip  # one line of values


def test_a_ttft_table_fits_a_narrow_terminal_with_a_line_per_length() -> None:
    rows = [row(prefix, *each) for prefix in (1024, 4096) for each in (("cold", 12.5), ("warm", 0.25))]
    text = printed(ttft_table(summarise_ttft(rows)))
    (line,) = [line for line in text.splitlines() if "4,096" in line and "│" in line]
    for value in ("12.50 (0.00) s", "250.0 (0.0) ms", " 4,096 ", " 50.0x ", "50.0-50.0x"):
        assert value in line
    assert max(map(len, text.splitlines())) <= 80


def test_a_serve_table_shows_percentiles_rates_hits_and_errors() -> None:
    latencies = percentiles([0.5, 1.5])
    summary = ServeSummary(
        requests=3, completed=2, failed=1, errors={"timeout": 1}, duration_s=4.0, requests_per_s=0.5,
        output_tokens_per_s=12.0, total_tokens_per_s=99.0, prompt_tokens=10, output_tokens=4, cached_tokens=5,
        cached_fraction=0.5, reusable_fraction=0.6, ttft_s=latencies, inter_token_s=None,
        time_per_output_token_s=None, latency_s=latencies, short_answers=0, late_s_max=0.0,
    )  # fmt: skip  # values only
    text = printed(serve_table(summary))
    for part in (
        "2 of 3 requests",
        "time to first token",
        "1.00 s",
        "0.50 requests/s",
        "12.0 output",
        "50.0%",
        "60.0%",
    ):
        assert part in text
    assert "timeout: 1" in text
    assert "inter-token" not in text


def test_a_run_without_answers_has_a_table_all_the_same() -> None:
    failed = Broken(index=0, started_s=0.0, error_kind="connect", error="refused")
    plan = (PlannedRequest(index=0, prompt=(1,), tokens_shared=0, output_tokens=1, arrival_s=None),)
    text = printed(serve_table(summarise_serve(ServeRun(rows=(failed,), duration_s=1.0), plan)))
    assert "0 of 1 requests completed" in text
    assert "connect: 1" in text
    assert "not reported" in text
