"""What Kvist costs a real vLLM when nothing is ever used again: random prompts to one with it and to one without.

    python bench/serve/vllm_overhead.py --starts 6 --pairs 12 --json bench/results/vllm-overhead-smollm2-cpu.json

Each round sends one prompt that nobody has seen to each server, in changing order, and waits until what was offered to
the tiers is there and workers no longer spin, so that the next one has the machine for itself. Two processes of the
same program differ by more than what is looked for, so both servers are started several times: a ratio is that of the
medians of one start, with / without, and confidence intervals are those of the mean of their logarithms.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from own_server import own_redis
from own_vllm import OwnVllm, own_vllm
from rich.console import Console
from tier_overhead import IDS, ratio, table

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError, KvistError
from kvist.lab.client import Target, open_client
from kvist.lab.dialect import choose_model, negotiate
from kvist.lab.draw import integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json

WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt to one server, as its client saw it; or the medians of all that one server was sent."""

    start: int
    round: int
    has_tiers: bool
    ttft_s: float
    latency_s: float


async def measure(start: int, servers: dict[bool, OwnVllm], args: argparse.Namespace) -> list[Sample]:
    """All rounds of one start; the first ones warm up."""
    clock, samples = SystemClock(), []
    async with (
        open_client(Target(url=servers[False].url), clock) as without,
        open_client(Target(url=servers[True].url), clock) as with_tiers,
    ):
        asked = {
            key: await negotiate(client, await choose_model(client, None), IDS)
            for key, client in ((False, without), (True, with_tiers))
        }
        for turn in range(-WARM_UP, args.pairs):
            for key in (turn % 2 == 0, turn % 2 == 1):
                prompt = integers(args.seed, f"{start} {turn}", args.prompt, IDS)
                answer = await asked[key].ask(prompt, args.output)
                await asyncio.to_thread(servers[key].settle_below)
                await asyncio.to_thread(servers[key].rest)
                if turn >= 0:
                    seen = {"ttft_s": answer.ttft_s, "latency_s": answer.latency_s}
                    samples.append(Sample(start=start, round=turn, has_tiers=key, **seen))
    check_stored(servers[True], args)
    return samples


def check_stored(server: OwnVllm, args: argparse.Namespace) -> None:
    """Refuses figures of a run in which the tiers were given nothing."""
    stored = server.figures().get('kvist_stores_total{outcome="done"}', 0.0)
    if stored < args.pairs:
        raise ConfigError(f"{stored:,.0f} blocks were stored in {args.pairs} rounds: the figures would mean nothing")


def medians(samples: Sequence[Sample]) -> list[Sample]:
    """Of each server of each start."""
    found = []
    for start, key in sorted({(sample.start, sample.has_tiers) for sample in samples}):
        own = [sample for sample in samples if (sample.start, sample.has_tiers) == (start, key)]
        seen = {what: statistics.median(getattr(sample, what) for sample in own) for what in ("ttft_s", "latency_s")}
        found.append(Sample(start=start, round=0, has_tiers=key, **seen))
    return found


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt (%(default)s)")
    parser.add_argument("--output", type=int, default=32, help="tokens of each answer (%(default)s)")
    parser.add_argument("--starts", type=int, default=6, help="of both servers, at least 2 (%(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="rounds of each start (%(default)s)")
    parser.add_argument("--tiers", default="dram,disk,pool", help="which, with commas (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser.parse_args(argv)


def started(start: int, args: argparse.Namespace) -> list[Sample]:
    """Starts both servers, in changing order, and measures."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(own_redis())
        specs = {"dram": "dram=512MiB", "disk": f"disk={directory}/tier:1GiB", "pool": f"pool={url}"}
        tiers = {True: [specs[name] for name in args.tiers.split(",")], False: []}
        order = (start % 2 == 0, start % 2 == 1)
        servers = {key: stack.enter_context(own_vllm(args.model, tiers[key])) for key in order}
        return asyncio.run(measure(start, servers, args))


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/vllm_overhead.py", argv, seed=args.seed)
    if args.starts < 2:
        raise ConfigError(f"--starts {args.starts}: one start shows nothing; give at least 2")
    samples = [sample for start in range(args.starts) for sample in started(start, args)]
    ratios = [ratio(what, medians(samples)) for what in ("ttft_s", "latency_s")]
    Console().print(table(ratios))
    if args.json is not None:
        results = {"samples": samples, "summary": ratios}
        write_json(args.json, script_document("vllm_overhead", provenance, vars(args), results))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"vllm_overhead: {error}")
