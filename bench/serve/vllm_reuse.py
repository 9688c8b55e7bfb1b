"""A long prompt to a real vLLM: computed, from vLLM's own cache, and from a tier of Kvist's after that was emptied.

    python bench/serve/vllm_reuse.py --rounds 10 --json bench/results/vllm-reuse-smollm2-cpu.json

One server after the other, each with one tier. Each round takes a prompt that nobody has seen: it is computed, asked
for again from vLLM's own cache, and, once that was emptied, from the tier. Ratios are to the same round's computing.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from own_server import own_redis
from own_vllm import BLOCK_TOKENS, OwnVllm, own_vllm
from rich.console import Console
from rich.table import Table

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError, KvistError
from kvist.lab.client import Target, open_client
from kvist.lab.dialect import Completions, choose_model, negotiate
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread

IDS = Span(low=100, high=30_000)
WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round: seconds to the first token of the same prompt, and how much of it was cached."""

    tier: str
    round: int
    cold_ttft_s: float
    own_ttft_s: float
    tier_ttft_s: float
    own_cached_tokens: int
    tier_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One tier; both ratios are to computing."""

    tier: str
    prompt_tokens: int
    cold_ttft_s: Spread
    own_ttft_s: Spread
    tier_ttft_s: Spread
    own_ratio: Spread
    tier_ratio: Spread


async def measure(tier: str, server: OwnVllm, args: argparse.Namespace) -> list[Sample]:
    """All rounds with one tier; the first ones warm up."""
    samples = []
    async with open_client(Target(url=server.url), SystemClock()) as client:
        completions = await negotiate(client, await choose_model(client, None), IDS)
        for turn in range(-WARM_UP, args.rounds):
            prompt = integers(args.seed, f"{tier} {turn}", args.prompt, IDS)
            cold = await ask(completions, prompt)
            await asyncio.to_thread(server.settle_below)
            own = await ask(completions, prompt)
            await asyncio.to_thread(server.forget)
            below = await ask(completions, prompt)
            check_cached(cold[1], own[1], below[1])
            if turn >= 0:
                samples.append(
                    Sample(
                        tier=tier,
                        round=turn,
                        cold_ttft_s=cold[0],
                        own_ttft_s=own[0],
                        tier_ttft_s=below[0],
                        own_cached_tokens=own[1],
                        tier_cached_tokens=below[1],
                    )
                )
    loaded = server.figures().get(f'kvist_tokens_begun_total{{source="{tier}"}}', 0.0)
    if loaded < sum(sample.tier_cached_tokens for sample in samples):
        raise ConfigError(f"only {loaded:,.0f} tokens came from {tier}: the figures would mean nothing")
    return samples


async def ask(completions: Completions, prompt: tuple[int, ...]) -> tuple[float, int]:
    """Seconds to the first token, and tokens that were not computed."""
    answer = await completions.ask(prompt, 1)
    assert answer.usage is not None
    return answer.ttft_s, answer.usage.cached_tokens or 0


def check_cached(cold: int, own: int, below: int) -> None:
    """Refuses a round in which something else was cached than is said."""
    if cold or own != below or own < BLOCK_TOKENS:
        raise ConfigError(f"cached tokens: {cold} when computed, {own} from vLLM, {below} from the tier")


def summarise(tier: str, samples: Sequence[Sample], prompt_tokens: int) -> Summary:
    cold, own, below = ([getattr(sample, f"{name}_ttft_s") for sample in samples] for name in ("cold", "own", "tier"))
    return Summary(
        tier=tier,
        prompt_tokens=prompt_tokens,
        cold_ttft_s=spread(cold),
        own_ttft_s=spread(own),
        tier_ttft_s=spread(below),
        own_ratio=spread(pairwise_ratios(own, cold)),
        tier_ratio=spread(pairwise_ratios(below, cold)),
    )


def table(summaries: Sequence[Summary]) -> Table:
    shown = Table(title="Time to first token of a long prompt under vLLM")
    for column in ("tier", "computed, s", "vLLM's own cache, ms", "tier, ms", "own / computed", "tier / computed"):
        shown.add_column(column, justify="right")
    for each in summaries:
        shown.add_row(
            each.tier,
            f"{each.cold_ttft_s.median:.2f}",
            f"{each.own_ttft_s.median * 1e3:.0f}",
            f"{each.tier_ttft_s.median * 1e3:.0f}",
            f"{each.own_ratio.median:.4f}",
            f"{each.tier_ratio.median:.4f} ({each.tier_ratio.q1:.4f}-{each.tier_ratio.q3:.4f})",
        )
    return shown


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--tiers", default="dram,disk,pool", help="which, with commas (%(default)s)")
    parser.add_argument("--prompt", type=int, default=3000, help="tokens of each prompt (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="with each tier (%(default)s)")
    parser.add_argument("--directory", help="where the disk tier is made (the system's choice)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/vllm_reuse.py", argv, seed=args.seed)
    samples, summaries = [], []
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, own_redis() as url:
        specs = {"dram": "dram=1GiB", "disk": f"disk={directory}/tier:4GiB", "pool": f"pool={url}"}
        for tier in args.tiers.split(","):
            if tier not in specs:
                raise ConfigError(f"--tiers {tier!r}: write dram, disk or pool")
            with own_vllm(args.model, [specs[tier]]) as server:
                found = asyncio.run(measure(tier, server, args))
            samples += found
            summaries.append(summarise(tier, found, args.prompt))
    Console().print(table(summaries))
    if args.json is not None:
        results = {"samples": samples, "summary": summaries}
        write_json(args.json, script_document("vllm_reuse", provenance, vars(args), results))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"vllm_reuse: {error}")
