"""`kvist bench ttft` and `kvist bench serve`: the arguments, each checked on its own.

What does the work is imported when a run begins, so that `kvist --help` stays instant.
"""

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

TOKENS_MAX = 10_000_000
COUNT_MAX = 1_000_000
CONCURRENCY_MAX = 10_000
SECONDS_MAX = 86_400.0

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Registers `bench` with its two benchmarks; `run` answers for both."""
    bench = subparsers.add_parser(
        "bench",
        help="measure any OpenAI-compatible server",
        description="Measures any server with an OpenAI-compatible API: Kvist, vLLM and others.",
    )
    bench.set_defaults(run=run)
    kinds = bench.add_subparsers(dest="benchmark", required=True, metavar="{ttft,serve}")
    _add_ttft(kinds)
    _add_serve(kinds)


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark that the arguments name.

    Returns:
        0 when done; 1 when a request of `serve` failed or a bound of `--max-ratio-check` was missed.

    Raises:
        ConfigError: the arguments cannot work together or with this server.
        CallError: the server cannot be measured.
    """
    from kvist.cli.bench_run import run_serve, run_ttft  # noqa: PLC0415 - httpx and rich only for a run

    return run_ttft(args) if args.benchmark == "ttft" else run_serve(args)


def _add_ttft(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = kinds.add_parser(
        "ttft",
        help="time to first token, cold and warm, by prefix length",
        description=(
            "For each prefix length and repeat, sends two prompts that begin with the same fresh random tokens and end"
            " differently. The first is cold; the second shows what the server's prefix cache saves."
        ),
    )
    _add_common(parser)
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default="1024,2048,4096",
        metavar="N,N,...",
        help="prefix lengths in tokens",
    )
    parser.add_argument("--suffix", type=_whole(1, TOKENS_MAX), default=16, metavar="N", help="tokens after the prefix")
    parser.add_argument("--repeats", type=_whole(1, COUNT_MAX), default=5, metavar="N", help="pairs per length")
    parser.add_argument("--output-tokens", type=_whole(1, TOKENS_MAX), default=1, metavar="N", help="answer length")
    parser.add_argument(
        "--seed",
        type=_whole(0, 2**63 - 1),
        default=None,
        metavar="N",
        help="what the prompts follow from; a fresh one when left out, since a server remembers",
    )
    parser.add_argument(
        "--max-ratio-check",
        type=_ratios,
        default=None,
        metavar="R[,R...]",
        help="fail when median warm TTFT / median cold TTFT is above this; one for all lengths or one for each,"
        " shortest first (0.1,0.05,0.025 asks for 10x, 20x and 40x)",
    )


def _add_serve(kinds: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = kinds.add_parser(
        "serve",
        help="throughput and latency under load",
        description=(
            "Sends random prompts, a number at a time (--concurrency) or at random times (--rate). With a shared-prefix"
            " ratio r, each prompt of L tokens begins with the first floor(r * L) tokens of one sequence common to"
            " all, and differs from every other prompt in the next token."
        ),
    )
    _add_common(parser)
    parser.add_argument("--requests", type=_whole(1, COUNT_MAX), default=64, metavar="N", help="how many to send")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=_whole(1, CONCURRENCY_MAX),
        default=8,
        metavar="N",
        help="closed loop: requests in flight",
    )
    load.add_argument(
        "--rate",
        type=_real(1e-6, 1e5),
        default=None,
        metavar="R",
        help="open loop: mean requests per second of a Poisson process",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=_span(1, TOKENS_MAX),
        default="512",
        metavar="N|MIN:MAX",
        help="prompt lengths",
    )
    parser.add_argument(
        "--output-tokens",
        type=_span(1, TOKENS_MAX),
        default="64",
        metavar="N|MIN:MAX",
        help="answer lengths",
    )
    parser.add_argument(
        "--shared-prefix-ratio",
        type=_real(0.0, 1.0),
        default=0.5,
        metavar="R",
        help="part of each prompt that all have in common, 0 to 1",
    )
    parser.add_argument("--seed", type=_whole(0, 2**63 - 1), default=0, metavar="N", help="what the load follows from")


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the server")
    parser.add_argument("--model", default=None, metavar="NAME", help="needed when the server lists several")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write every request and the summary")
    parser.add_argument(
        "--token-ids",
        type=_span(0, 2**31 - 1),
        default="1000:20000",
        metavar="MIN:MAX",
        help="ids that prompts are made of, away from special tokens",
    )
    parser.add_argument(
        "--timeout-s",
        type=_real(0.001, SECONDS_MAX),
        default=600.0,
        metavar="S",
        help="bound of one request",
    )
    parser.add_argument(
        "--api-key-env", default=None, metavar="VARIABLE", help="environment variable that holds the API key to send"
    )


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low:,} to {high:,}")
        return int(text)

    return read


def _real(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # NaN is not
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return read


def _span(low: int, high: int) -> Callable[[str], tuple[int, int]]:
    number = _whole(low, high)

    def read(text: str) -> tuple[int, int]:
        first, colon, last = text.partition(":")
        span = number(first), number(last if colon else first)
        if span[0] > span[1]:
            raise argparse.ArgumentTypeError(f"{text!r} is not a range: its minimum is above its maximum")
        return span

    return read


def _lengths(text: str) -> tuple[int, ...]:
    lengths = sorted(_whole(1, TOKENS_MAX)(part.strip()) for part in text.split(","))
    if len(set(lengths)) < len(lengths):
        raise argparse.ArgumentTypeError(f"{text!r} names a length twice")
    return tuple(lengths)


def _ratios(text: str) -> tuple[float, ...]:
    return tuple(_real(1e-6, 1e6)(part.strip()) for part in text.split(","))
