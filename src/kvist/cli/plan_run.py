"""What `kvist plan` does: turns flags into a question, has it answered, and shows the answer."""

import argparse
import json
import math

from rich.console import Console

from kvist.app.plan import Ask, GpuAsk, answered
from kvist.app.plan_report import report
from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, parse_bytes
from kvist.cli.plan_tables import shown
from kvist.geometry.fields import show
from kvist.planner.sharding import Parallel

_DIGITS_MAX = 18
_WIDTH_MAX = 120


def run_plan(args: argparse.Namespace, console: Console | None = None) -> int:
    """Runs the command.

    Args:
        args: what the parser of `kvist.cli.plan` returned.
        console: where to show it; None: standard output.

    Returns:
        0 when what is asked for fits, 1 when it does not; with --check, 0 when all that differs is explained.

    Raises:
        ConfigError: what was given cannot be.
        WireError: the server to compare with does not answer, or not as one.
    """
    answer = answered(ask_of(args))
    console = console or _console()
    if args.check is not None:
        # Late: what speaks HTTP is heavy, and a plan needs none of it.
        from kvist.cli.plan_check import run_check  # noqa: PLC0415

        return run_check(answer, args.check, console, as_json=args.json)
    if args.json:
        text = json.dumps(report(answer), indent=2)
        console.print(text, markup=False, highlight=False, soft_wrap=True, emoji=False)
    else:
        for part in shown(answer):
            console.print(part, highlight=False, soft_wrap=isinstance(part, str), emoji=False)
    return 0 if answer.plan.fits else 1


def ask_of(args: argparse.Namespace) -> Ask:
    """What the flags say.

    Raises:
        ConfigError: a value is no number or size; names the flag.
    """
    return Ask(
        model=args.model,
        gpu=GpuAsk(
            name=args.gpu,
            memory=_size("--gpu-memory", args.gpu_memory),
            tflops=_fraction("--gpu-tflops", args.gpu_tflops),
            host_link=_size("--gpu-host-link", args.gpu_host_link),
        ),
        parallel=Parallel(
            tensor=_needed("--tp", args.tp), pipeline=_needed("--pp", args.pp), context=_needed("--cp", args.cp)
        ),
        rules=args.engine,
        context=_count("--context", args.context),
        concurrency=_needed("--concurrency", args.concurrency),
        kv_dtype=args.kv_dtype,
        state_dtype=args.state_dtype,
        utilisation=_fraction("--utilization", args.utilization),
        step_tokens=_count("--batch-tokens", args.batch_tokens),
        block_tokens=_count("--block-tokens", args.block_tokens),
        weights=_size("--weights", args.weights),
        kv_memory=_size("--kv-memory", args.kv_memory),
    )


def _console() -> Console:
    """Standard output; tables are not made wider than reads well."""
    console = Console()
    return console if console.width <= _WIDTH_MAX else Console(width=_WIDTH_MAX)


def _count(flag: str, text: str | None) -> int | None:
    return None if text is None else _needed(flag, text)


def _needed(flag: str, text: str) -> int:
    plain = text.strip().replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= _DIGITS_MAX and int(plain) >= 1):
        raise ConfigError(f"{flag} {show(text)} is not a whole number of at least 1")
    return int(plain)


def _fraction(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {show(text)} is not a number") from error
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{flag} {show(text)} is not a number above 0")
    return value


def _size(flag: str, text: str | None) -> Bytes | None:
    try:
        return None if text is None else parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from error
