"""Carries a benchmark through: connects, measures behind a progress bar, prints the tables, writes the report.

Imported only when a run begins. Tables go to standard output; progress, remarks and errors to standard error.
"""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError
from kvist.lab import serve, ttft
from kvist.lab.client import Target, open_client, parse_url
from kvist.lab.dialect import Completions, choose_model, negotiate
from kvist.lab.draw import Span, integers
from kvist.lab.machine import describe_machine, git_commit
from kvist.lab.report import Provenance, check_writable, document, write_json
from kvist.lab.serve_summary import remarks, summarise_serve
from kvist.lab.tables import serve_table, ttft_table
from kvist.lab.ttft_summary import explain_ttft, shortfalls, summarise_ttft
from kvist.lab.workload import ServeWorkload, plan_serve

_NOT_SETTINGS = frozenset({"url", "model", "json", "run", "command", "benchmark", "seed", "api_key_env"})


def run_ttft(args: argparse.Namespace) -> int:
    """Measures cold and warm; 0 when done within the bounds that were given, else 1.

    Raises:
        ConfigError: the arguments cannot work together or with this server.
        CallError: the server failed a request or reports no cached tokens.
    """
    return asyncio.run(_ttft(args))


def run_serve(args: argparse.Namespace) -> int:
    """Puts a load on the server; 0 when every request completed, else 1.

    Raises:
        ConfigError: the arguments cannot work together or with this server.
        CallError: the server cannot be measured at all.
    """
    return asyncio.run(_serve(args))


async def _ttft(args: argparse.Namespace) -> int:
    seed = secrets.randbits(32) if args.seed is None else args.seed
    settings = ttft.TtftSettings(
        lengths=args.lengths,
        suffix_tokens=args.suffix,
        repeats=args.repeats,
        output_tokens=args.output_tokens,
        token_ids=_as_span(args.token_ids),
        seed=seed,
    )
    bounds = _bounds(args)
    provenance = _provenance(args, seed)
    async with _connected(args) as completions:
        requests = 2 * (1 + len(settings.lengths) * settings.repeats)
        with _progress("cold and warm pairs", requests) as advance:
            rows = await ttft.run_ttft(completions, settings, advance)
    summaries = summarise_ttft(rows)
    missed = shortfalls(summaries, bounds) if bounds else ()
    out = Console()
    out.print(ttft_table(summaries))
    for summary in summaries:
        out.print(explain_ttft(summary), highlight=False, markup=False)
    for line in (*_dialect_remarks(completions), *missed):
        _remark(line)
    _write(args, document("ttft", provenance, completions, settings=_settings(args), results=(rows, summaries)))
    return 1 if missed else 0


async def _serve(args: argparse.Namespace) -> int:
    workload = ServeWorkload(
        requests=args.requests,
        prompt_tokens=_as_span(args.prompt_tokens),
        output_tokens=_as_span(args.output_tokens),
        shared_prefix_ratio=args.shared_prefix_ratio,
        token_ids=_as_span(args.token_ids),
        seed=args.seed,
        rate_per_s=args.rate,
    )
    plan = plan_serve(workload)
    provenance = _provenance(args, args.seed)
    async with _connected(args) as completions:
        _check_fits(workload, completions)
        warm_up = integers(args.seed, "warm-up", workload.prompt_tokens.high, workload.token_ids)
        await completions.ask(warm_up, min(8, workload.output_tokens.high))
        with _progress("requests", len(plan)) as advance:
            if args.rate is None:
                result = await serve.run_closed_loop(completions, plan, args.concurrency, advance)
            else:
                result = await serve.run_open_loop(completions, plan, advance)
    summary = summarise_serve(result, plan)
    Console().print(serve_table(summary))
    for line in (*_dialect_remarks(completions), *remarks(summary)):
        _remark(line)
    first_failure = next((row.error for row in result.rows if isinstance(row, serve.Broken)), None)
    if first_failure is not None:
        _remark(f"First failure: {first_failure}")
    _write(args, document("serve", provenance, completions, settings=_settings(args), results=(result.rows, summary)))
    return 0 if summary.failed == 0 else 1


@asynccontextmanager
async def _connected(args: argparse.Namespace) -> AsyncIterator[Completions]:
    target = Target(url=parse_url(args.url), api_key=_api_key(args.api_key_env), timeout_s=args.timeout_s)
    async with open_client(target, SystemClock()) as client:
        model = await choose_model(client, args.model)
        yield await negotiate(client, model, _as_span(args.token_ids))


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(name, total=total)
        yield lambda: progress.advance(task)


def _provenance(args: argparse.Namespace, seed: int) -> Provenance:
    """Also the moment to find out that the report could not be written: before the run."""
    if args.json is not None:
        check_writable(args.json)
    return Provenance(
        command=("kvist", *sys.argv[1:]),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        machine=describe_machine(),
        git_commit=git_commit(),
    )


def _check_fits(workload: ServeWorkload, completions: Completions) -> None:
    longest = workload.prompt_tokens.high + workload.output_tokens.high
    bound = completions.model.tokens_max
    if bound is not None and longest > bound:
        raise ConfigError(
            f"prompts of up to {workload.prompt_tokens.high:,} tokens with answers of up to"
            f" {workload.output_tokens.high:,} are {longest:,} tokens, but {completions.model.name!r} takes at most"
            f" {bound:,} (its max_model_len); lower --prompt-tokens or --output-tokens"
        )


def _bounds(args: argparse.Namespace) -> tuple[float, ...]:
    ratios: tuple[float, ...] = args.max_ratio_check or ()
    if len(ratios) == 1:
        return ratios * len(args.lengths)
    if ratios and len(ratios) != len(args.lengths):
        raise ConfigError(
            f"--max-ratio-check has {len(ratios)} values for {len(args.lengths)} lengths; give one, or one for each"
        )
    return ratios


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "") if variable else ""
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(f"environment variable {variable!r} holds no API key in printable ASCII")
    return key


def _dialect_remarks(completions: Completions) -> tuple[str, ...]:
    dialect = completions.dialect
    given_up = [
        words
        for words, lost in (
            ("prompts were sent as text, so their lengths are approximate", dialect.prompt == "text"),
            ("answers may end early, without ignore_eos", not dialect.ignore_eos),
            ("tokens were counted by events, without usage", not dialect.usage),
        )
        if lost
    ]
    return (f"The server refused richer requests ({dialect.refusals[0]}): {'; '.join(given_up)}.",) if given_up else ()


def _settings(args: argparse.Namespace) -> dict[str, object]:
    settings = {name: value for name, value in vars(args).items() if name not in _NOT_SETTINGS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _as_span(bounds: tuple[int, int]) -> Span:
    return Span(low=bounds[0], high=bounds[1])


def _remark(line: str) -> None:
    Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _write(args: argparse.Namespace, content: dict[str, object]) -> None:
    path: Path | None = args.json
    if path is not None:
        write_json(path, content)
        _remark(f"Report: {path}")
