"""Inter-token latency of a running answer while prompts hit a tier, against the same prompts hitting own memory.

    python bench/serve/decode_beside_loads.py --rounds 12 --json bench/results/decode-beside-loads-smollm2-cpu.json

One server whose own memory holds one long prefix beside the running answer and not two. Each round streams an answer
three times while another client sends prompts at a steady pace: none at all; all with the same prefix, which own
memory has; with two prefixes in turn, each of which must come from the tier because the other one drove it out. What
the second does to the answer is the price of prefilling the prompts' ends; what the third adds is that of loads.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, pairwise
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
from kvist.lab.spread import Percentiles, percentiles

IDS = Span(low=100, high=30_000)
SUFFIX, PROMPT = 16, 64
MODES = ("alone", "own memory", "tier")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Inter-token latencies of one mode over all rounds, and how many prompts were answered beside them."""

    mode: str
    prompts: int
    inter_token_s: Percentiles


class Bench:
    """One server, and two prefixes that it has in its tier."""

    def __init__(self, server: OwnServer, completions: Completions, args: argparse.Namespace) -> None:
        self._server = server
        self._completions = completions
        self._args = args
        self._prefixes = [integers(args.seed, f"prefix {name}", args.prefix, IDS) for name in ("a", "b")]
        self._turn = 0

    async def warm_up(self) -> None:
        """Both prefixes are computed once and stored."""
        for prefix in self._prefixes:
            await self._ask(prefix)
            await asyncio.to_thread(self._server.settle, stores_are_done)

    async def stream(self, mode: str) -> tuple[list[float], int]:
        """One answer, and prompts beside it: its inter-token latencies, and how many prompts there were."""
        await self._ask(self._prefixes[0])  # whatever ran before, own memory has this one now
        await asyncio.to_thread(self._server.settle, stores_are_done)
        answer = asyncio.create_task(self._completions.ask(self._fresh(PROMPT), self._args.output))
        prefixes = {"alone": None, "own memory": self._prefixes[:1], "tier": self._prefixes[::-1]}[mode]
        prompts = 0
        for prefix in cycle(prefixes or ()):
            if answer.done():
                break
            await self._ask(prefix)
            prompts += 1
            await asyncio.wait((answer,), timeout=self._args.pause)
        times_s = (await answer).token_times_s
        return [after - before for before, after in pairwise(times_s)], prompts

    async def _ask(self, prefix: tuple[int, ...]) -> None:
        await self._completions.ask(prefix + self._fresh(SUFFIX), 1)

    def _fresh(self, count: int) -> tuple[int, ...]:
        self._turn += 1
        return integers(self._args.seed, f"fresh {self._turn}", count, IDS)


async def measure(server: OwnServer, args: argparse.Namespace) -> list[Summary]:
    """All rounds, the modes in changing order; the first round warms up."""
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    prompts = dict.fromkeys(MODES, 0)
    async with open_client(Target(url=server.url), SystemClock()) as client:
        bench = Bench(server, await negotiate(client, await choose_model(client, None), IDS), args)
        await bench.warm_up()
        for turn in range(-1, args.rounds):
            for mode in (*MODES[turn % 3 :], *MODES[: turn % 3]):
                latencies_s, count = await bench.stream(mode)
                if turn >= 0:
                    taken[mode] += latencies_s
                    prompts[mode] += count
    return [Summary(mode=mode, prompts=prompts[mode], inter_token_s=percentiles(taken[mode])) for mode in MODES]


def table(summaries: Sequence[Summary]) -> Table:
    shown = Table(title="Inter-token latency of a running answer, ms")
    for column in ("prompts beside it hit", "prompts", "tokens", "p50", "p90", "p99", "p99 / own memory"):
        shown.add_column(column, justify="right")
    base = next(each.inter_token_s.p99 for each in summaries if each.mode == "own memory")
    for each in summaries:
        part = each.inter_token_s
        shown.add_row(
            each.mode,
            str(each.prompts),
            str(part.count),
            *(f"{value * 1e3:.1f}" for value in (part.p50, part.p90, part.p99)),
            f"{part.p99 / base:.2f}",
        )
    return shown


def spec_of(tier: str, stack: ExitStack) -> str:
    """What follows `--tier`."""
    if tier == "disk":
        return f"disk={stack.enter_context(tempfile.TemporaryDirectory())}/tier:1GiB"
    return f"pool={stack.enter_context(own_redis())}" if tier == "pool" else "dram=1GiB"


def flags_of(args: argparse.Namespace) -> Iterator[str]:
    """Own memory for one prefix and the answer, and a little more."""
    tokens = int(1.25 * args.prefix) + PROMPT + args.output + 64
    yield from ("--model", args.model, "--threads", str(args.threads))
    yield from ("--kv-memory", f"{tokens * args.token_bytes}B", "--model-tokens-max", str(args.prefix + 64))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--token-bytes", type=int, default=23_040, help="KV of one token of it (%(default)s)")
    parser.add_argument("--tier", default="dram", choices=("dram", "disk", "pool"))
    parser.add_argument("--prefix", type=int, default=2048, help="tokens of each prefix (%(default)s)")
    parser.add_argument("--output", type=int, default=256, help="tokens of the running answer (%(default)s)")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between two prompts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2, help="the server's threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the summary here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/decode_beside_loads.py", argv, seed=args.seed)
    with ExitStack() as stack:
        server = stack.enter_context(own_server(*flags_of(args), "--tier", spec_of(args.tier, stack)))
        summaries = asyncio.run(measure(server, args))
    Console().print(table(summaries))
    if args.json is not None:
        results = {"summary": summaries}
        content = script_document("decode_beside_loads", provenance, vars(args), results)
        write_json(args.json, content)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"decode_beside_loads: {error}")
