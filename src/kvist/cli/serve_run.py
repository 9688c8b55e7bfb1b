"""What `kvist serve` shows: progress while it starts, the memory budget, and the demonstration."""

import asyncio
import contextlib
import logging
import threading

from rich.console import Console
from rich.table import Table

from kvist.app.budget import Budget
from kvist.app.clock import SystemClock
from kvist.app.config import ServeConfig
from kvist.app.kv_memory import ReservedMemory
from kvist.app.serve import run_server
from kvist.base.errors import KvistError
from kvist.base.units import format_bytes
from kvist.cli.progress import drawn
from kvist.lab.client import Target, open_client
from kvist.lab.demo import DemoResult, render_demo, run_demo


def serve(config: ServeConfig, memory: ReservedMemory | None, *, demo: bool) -> int:
    """Serves until a signal; returns the exit status.

    Args:
        config: checked settings.
        memory: for KV, if some is being touched already.
        demo: whether to hold a conversation once ready, and show what reuse saved.

    Raises:
        KvistError: it cannot be served; the message says why and what to do.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kvist").setLevel(logging.INFO)
    console = Console()
    with contextlib.ExitStack() as starting:

        def on_ready(url: str, budget: Budget) -> None:
            starting.close()
            console.print(budget_table(budget))
            console.print(f"Serving on {url}/v1 (metrics: {url}/metrics). Ctrl-C drains and stops.", highlight=False)
            if demo:
                threading.Thread(target=_demonstrate, args=(url, console), name="kvist-demo", daemon=True).start()

        run_server(config, starting.enter_context(drawn()), on_ready, memory)
    return 0


def budget_table(budget: Budget) -> Table:
    """Where the memory goes, and what requests then fit."""
    plan, limits = budget.plan, budget.limits
    longest = f"{plan.longest_request_tokens:,} tokens"
    if not plan.fits_model_length:
        longest += f" (all {limits.model_tokens_max:,} would take {format_bytes(plan.bytes_for_model_length)})"
    table = Table(title="Memory", title_justify="left", show_header=False)
    for name, value in (
        ("weights", format_bytes(budget.weights)),
        ("workspace of a full step, measured", format_bytes(budget.workspace)),
        ("KV pool", f"{format_bytes(budget.kv)} ({format_bytes(budget.kv_bytes_per_token)} per token)"),
        ("blocks", f"{' + '.join(f'{count:,}' for count in plan.blocks)} of {budget.block_tokens} tokens"),
        ("tokens", f"{plan.tokens_capacity:,}"),
        ("longest single request", longest),
        ("concurrent requests of that length", f"{plan.requests_at_longest:,}"),
    ):
        table.add_row(name, value)
    return table


def _demonstrate(url: str, console: Console) -> None:
    """Holds one conversation with the server that has just started; a failure is shown and nothing more."""
    console.print("Asking about one long document, twice ...", highlight=False)
    try:
        console.print(render_demo(asyncio.run(_hold(url))))
    except KvistError as error:
        console.print(f"The demonstration failed: {error}", markup=False, highlight=False)


async def _hold(url: str) -> DemoResult:
    async with open_client(Target(url=url), SystemClock()) as client:
        models = await client.models()
        return await run_demo(client, models[0])
