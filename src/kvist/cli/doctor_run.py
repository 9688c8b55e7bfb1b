"""What `kvist doctor` does: has everything looked at, and shows what was found."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.app.doctor import Asked, Surroundings, examine
from kvist.app.doctor_findings import Finding, Status
from kvist.app.doctor_release import is_vllm_there, run_command
from kvist.app.memory import bytes_free

_COLOURS: dict[Status, str] = {"ok": "green", "note": "yellow", "problem": "red"}


def run_doctor(args: argparse.Namespace, around: Surroundings | None = None, console: Console | None = None) -> int:
    """Runs the command.

    Args:
        args: what the parser of `kvist.cli.doctor` returned.
        around: what to look at beside them; None: this process's own.
        console: where to show it; None: standard output.

    Returns:
        0 when there is no problem, 1 when there is one.

    Raises:
        ConfigError: what was given contradicts itself or is none of what it should be.
    """
    found = examine(asked_of(args), around or surroundings())
    console = console or Console()
    is_problem = any(each.status == "problem" for each in found)
    if args.json:
        report = {"status": worst(found), "findings": [asdict(each) for each in found]}
        console.print(json.dumps(report, indent=2), markup=False, highlight=False, soft_wrap=True, emoji=False)
    else:
        console.print(table_of(found))
    return int(is_problem)


def asked_of(args: argparse.Namespace) -> Asked:
    """What the flags say."""
    return Asked(
        transfer=args.kv_transfer_config,
        config=args.config,
        tiers=tuple(args.tier or ()),
        hash_algorithm=args.prefix_caching_hash_algo,
        url=args.url,
        model=args.model,
    )


def surroundings() -> Surroundings:
    """Those of this process."""
    return Surroundings(
        environment=os.environ,
        clock=SystemClock(),
        calendar=SystemCalendar(),
        bytes_free=bytes_free,
        run=run_command,
        is_vllm_there=is_vllm_there(),
    )


def worst(found: Sequence[Finding]) -> Status:
    """The most serious of what was found."""
    statuses = {each.status for each in found}
    return "problem" if "problem" in statuses else "note" if "note" in statuses else "ok"


def table_of(found: Sequence[Finding]) -> Table:
    """One row for each finding, in the order in which they were made."""
    table = Table(title="Kvist under vLLM", title_justify="left", show_lines=False)
    table.add_column("")
    table.add_column("what", no_wrap=True)
    table.add_column("found, and what to do")
    for each in found:
        text = escape(each.text) + (f"\n[bold]-> {escape(each.remedy)}[/bold]" if each.remedy else "")
        table.add_row(f"[{_COLOURS[each.status]}]{each.status}[/]", escape(each.check), text)
    return table
