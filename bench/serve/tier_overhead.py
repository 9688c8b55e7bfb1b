"""What tiers cost when nothing is ever used again: random prompts to a server with all tiers and to one with none.

    python bench/serve/tier_overhead.py --pairs 40 --json bench/results/tier-overhead-smollm2-cpu.json

Both servers run all the time; each round sends one prompt that nobody has seen to each, in changing order, and waits
until the background work is done before it reads how much processor time each spent. Ratios are with / without. Their
confidence intervals are those of the mean of the logarithms.
"""

import argparse
import asyncio
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from own_server import OwnServer, own_redis, own_server, stores_are_done
from rich.console import Console
from rich.table import Table

from kvist.app.clock import SystemClock
from kvist.base.errors import KvistError
from kvist.lab.client import Target, open_client
from kvist.lab.dialect import Completions, choose_model, negotiate
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread

IDS = Span(low=100, high=30_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt to one server: what its client saw, and the processor time that it cost in the end."""

    round: int
    has_tiers: bool
    ttft_s: float
    latency_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """With tiers / without, round by round; `mean` is geometric, and `low` to `high` its 95 % confidence interval."""

    what: str
    mean: float
    low: float
    high: float
    spread: Spread


async def measure(servers: dict[bool, OwnServer], args: argparse.Namespace) -> list[Sample]:
    """All rounds; the first two warm up."""
    clock, samples = SystemClock(), []
    async with (
        open_client(Target(url=servers[False].url), clock) as without,
        open_client(Target(url=servers[True].url), clock) as with_tiers,
    ):
        asked = {
            key: await negotiate(client, await choose_model(client, None), IDS)
            for key, client in ((False, without), (True, with_tiers))
        }
        for turn in range(-2, args.pairs):
            for key in (turn % 2 == 0, turn % 2 == 1):
                # Other prompts for each: a shared tier must not help the one that comes second.
                prompt = integers(args.seed, f"{turn} {key}", args.prompt, IDS)
                sample = await one(servers[key], asked[key], prompt, args.output)
                if turn >= 0:
                    samples.append(
                        Sample(round=turn, has_tiers=key, ttft_s=sample[0], latency_s=sample[1], cpu_s=sample[2])
                    )
    return samples


async def one(server: OwnServer, completions: Completions, prompt: tuple[int, ...], output: int) -> tuple[float, ...]:
    """Time to first token, to the last, and processor time."""
    before_s = server.cpu_s()
    answer = await completions.ask(prompt, output)
    await asyncio.to_thread(server.settle, stores_are_done)
    return answer.ttft_s, answer.latency_s, server.cpu_s() - before_s


def ratio(what: str, samples: Sequence[Sample]) -> Ratio:
    """One quantity, with tiers / without."""
    with_tiers, without = ([getattr(s, what) for s in samples if s.has_tiers is key] for key in (True, False))
    ratios = pairwise_ratios(with_tiers, without)
    logs = [math.log(each) for each in ratios]
    mean, error = statistics.fmean(logs), 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(
        what=what,
        mean=math.exp(mean),
        low=math.exp(mean - error),
        high=math.exp(mean + error),
        spread=spread(ratios),
    )


def table(ratios: Sequence[Ratio]) -> Table:
    shown = Table(title="Random prompts: with all tiers / without any")
    for column in ("what", "ratio", "95 % confidence", "quartiles of the rounds"):
        shown.add_column(column, justify="right")
    for each in ratios:
        shown.add_row(
            each.what,
            f"{each.mean:.4f}",
            f"{each.low:.4f}-{each.high:.4f}",
            f"{each.spread.q1:.3f}-{each.spread.q3:.3f}",
        )
    return shown


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt (%(default)s)")
    parser.add_argument("--output", type=int, default=32, help="tokens of each answer (%(default)s)")
    parser.add_argument("--pairs", type=int, default=40, help="rounds (%(default)s)")
    parser.add_argument("--tiers", default="dram,disk,pool", help="which, with commas (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="each server's threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/tier_overhead.py", argv, seed=args.seed)
    common = ("--model", args.model, "--threads", str(args.threads), "--kv-memory", "512MiB")
    with tempfile.TemporaryDirectory() as directory, own_redis() as url:
        specs = {"dram": "dram=512MiB", "disk": f"disk={directory}/tier:1GiB", "pool": f"pool={url}"}
        flags = [part for name in args.tiers.split(",") for part in ("--tier", specs[name])]
        with own_server(*common) as without, own_server(*common, *flags) as with_tiers:
            samples = asyncio.run(measure({False: without, True: with_tiers}, args))
    ratios = [ratio(what, samples) for what in ("ttft_s", "latency_s", "cpu_s")]
    Console().print(table(ratios))
    if args.json is not None:
        results = {"samples": samples, "summary": ratios}
        content = script_document("tier_overhead", provenance, vars(args), results)
        write_json(args.json, content)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"tier_overhead: {error}")
