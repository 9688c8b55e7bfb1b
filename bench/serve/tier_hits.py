"""A hit in a tier against the same hit in the engine's own memory: what the way through the fabric adds.

    python bench/serve/tier_hits.py --tiers dram,disk,pool --pairs 30 --json bench/results/tier-hits-smollm2-cpu.json

For each tier a server runs whose own memory holds one of two prompts and not both. They take turns, each asked for
twice with another last word: the first time its prefix comes from the tier, the second time from the engine's own
memory. Between the rounds the same bytes are moved in the plainest way: memcpy block by block for DRAM, direct reads
for a disk, bare `get` for a pool. A tier's excess is (its TTFT - bytes / that bandwidth) / TTFT in own memory.
"""

import argparse
import asyncio
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis
from own_server import OwnServer, own_redis, own_server, stores_are_done
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
SUFFIX = 16
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One round: a prefix from the tier, then the same from the engine's own memory."""

    tier: str
    round: int
    tier_ttft_s: float
    own_ttft_s: float
    plain_s: float
    tier_cached_tokens: int
    own_cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One tier.

    Attributes:
        bytes: of the prefix.
        plain_gb_s: the plainest way to move them.
        excess: of each round, (tier_ttft_s - bytes / plain) / own_ttft_s.
    """

    tier: str
    prefix_tokens: int
    bytes: int
    tier_ttft_s: Spread
    own_ttft_s: Spread
    plain_gb_s: Spread
    ratio: Spread
    excess: Spread


def plain_copy(block: int, count: int) -> Callable[[], None]:
    """memcpy, block by block in a mixed order."""
    source = np.frombuffer(mmap.mmap(-1, block * count), dtype=np.uint8)
    target = np.frombuffer(mmap.mmap(-1, block * count), dtype=np.uint8)
    source[:], target[:] = 1, 0
    order = [(index * 7919) % count * block for index in range(count)]

    def copy() -> None:
        for offset in order:
            np.copyto(target[offset : offset + block], source[offset : offset + block])

    return copy


def plain_read(directory: str, block: int, count: int) -> Callable[[], None]:
    """Direct reads, one after the other, of a file that is as large."""
    size = -(-block // 4096) * 4096
    path = Path(directory) / "plain"
    buffer = mmap.mmap(-1, size)
    buffer.write(os.urandom(size))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    for index in range(count):
        os.pwrite(handle, buffer, index * size)
    os.fsync(handle)

    def read() -> None:
        for index in range(count):
            os.preadv(handle, [buffer], index * size)

    return read


def plain_get(url: str, block: int, count: int) -> Callable[[], None]:
    """The client's own `get`, one value after the other."""
    client = redis.Redis.from_url(url)
    for index in range(count):
        client.set(f"plain:{index}", os.urandom(block))

    def get() -> None:
        for index in range(count):
            client.get(f"plain:{index}")

    return get


def setup(tier: str, stack: ExitStack, args: argparse.Namespace) -> tuple[str, Callable[[], None]]:
    """What follows `--tier`, and the plainest way to move as much."""
    block, count = args.token_bytes * BLOCK_TOKENS, args.prefix // BLOCK_TOKENS
    if tier == "dram":
        return "dram=1GiB", plain_copy(block, count)
    if tier == "disk":
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=args.directory))
        return f"disk={directory}/tier:2GiB", plain_read(directory, block, count)
    if tier == "pool":
        url = stack.enter_context(own_redis())
        return f"pool={url}", plain_get(url, block, count)
    raise ConfigError(f"--tiers {tier!r}: write dram, disk or pool")


async def measure(tier: str, server: OwnServer, plain: Callable[[], None], args: argparse.Namespace) -> list[Sample]:
    """All rounds of one tier; the first two warm up."""
    clock, samples = SystemClock(), []
    prefixes = [integers(args.seed, f"{tier} {name}", args.prefix, IDS) for name in ("a", "b")]
    suffixes = iter_suffixes(args.seed)
    async with open_client(Target(url=server.url), clock) as client:
        completions = await negotiate(client, await choose_model(client, None), IDS)
        for prefix in prefixes:
            await completions.ask(prefix + next(suffixes), 1)
            await asyncio.to_thread(server.settle, stores_are_done)
        for turn in range(args.pairs + 2):
            prefix = prefixes[turn % 2]
            from_tier = await ask(completions, prefix + next(suffixes))
            from_own = await ask(completions, prefix + next(suffixes))
            await asyncio.to_thread(server.settle, stores_are_done)
            begun_s = clock.now_s()
            plain()
            plain_s = clock.now_s() - begun_s
            if turn >= 2:
                samples.append(
                    Sample(
                        tier=tier,
                        round=turn - 2,
                        tier_ttft_s=from_tier[0],
                        own_ttft_s=from_own[0],
                        plain_s=plain_s,
                        tier_cached_tokens=from_tier[1],
                        own_cached_tokens=from_own[1],
                    )
                )
        check_came_from_tier(server, tier, (args.pairs + 2) * args.prefix)
    return samples


def iter_suffixes(seed: int) -> Iterator[tuple[int, ...]]:
    """Ends of prompts, no two alike."""
    turn = 0
    while True:
        yield integers(seed, f"suffix {turn}", SUFFIX, IDS)
        turn += 1


async def ask(completions: Completions, prompt: tuple[int, ...]) -> tuple[float, int]:
    """Seconds to the first token, and tokens that were not computed."""
    answer = await completions.ask(prompt, 1)
    assert answer.usage is not None
    return answer.ttft_s, answer.usage.cached_tokens or 0


def check_came_from_tier(server: OwnServer, tier: str, tokens: int) -> None:
    """Refuses figures of a run in which the tier was not what answered."""
    found = server.metrics().get(f'kvist_tokens_cached_total{{tier="{tier}"}}', 0.0)
    if found < 0.95 * tokens:
        raise ConfigError(f"{found:,.0f} tokens came from {tier}, not about {tokens:,}: the figures would mean nothing")


def summarise(tier: str, samples: Sequence[Sample], args: argparse.Namespace) -> Summary:
    size = args.prefix * args.token_bytes
    own = [sample.own_ttft_s for sample in samples]
    return Summary(
        tier=tier,
        prefix_tokens=args.prefix,
        bytes=size,
        tier_ttft_s=spread([sample.tier_ttft_s for sample in samples]),
        own_ttft_s=spread(own),
        plain_gb_s=spread([size / sample.plain_s / 1e9 for sample in samples]),
        ratio=spread(pairwise_ratios([sample.tier_ttft_s for sample in samples], own)),
        excess=spread(pairwise_ratios([sample.tier_ttft_s - sample.plain_s for sample in samples], own)),
    )


def table(summaries: Sequence[Summary]) -> Table:
    shown = Table(title="A hit in a tier against the same hit in the engine's own memory")
    for column in ("tier", "TTFT, ms", "own memory, ms", "plain, GB/s", "ratio", "without the plain copy"):
        shown.add_column(column, justify="right")
    for each in summaries:
        shown.add_row(
            each.tier,
            f"{each.tier_ttft_s.median * 1e3:.1f}",
            f"{each.own_ttft_s.median * 1e3:.1f}",
            f"{each.plain_gb_s.median:.2f}",
            f"{each.ratio.median:.2f} ({each.ratio.q1:.2f}-{each.ratio.q3:.2f})",
            f"{each.excess.median:.2f} ({each.excess.q1:.2f}-{each.excess.q3:.2f})",
        )
    return shown


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--token-bytes", type=int, default=23_040, help="KV of one token of it (%(default)s)")
    parser.add_argument("--tiers", default="dram,disk,pool", help="which, with commas (%(default)s)")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens of the prefix (%(default)s)")
    parser.add_argument("--pairs", type=int, default=30, help="rounds of each tier (%(default)s)")
    parser.add_argument("--directory", help="where the disk tier is made (the system's choice)")
    parser.add_argument("--threads", type=int, default=2, help="the server's threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/tier_hits.py", argv, seed=args.seed)
    samples, summaries = [], []
    own_bytes = int(1.02 * (args.prefix + SUFFIX) * args.token_bytes)  # room for one of the two prompts
    for tier in args.tiers.split(","):
        with ExitStack() as stack:
            spec, plain = setup(tier, stack, args)
            memory = ("--kv-memory", str(own_bytes) + "B", "--model-tokens-max", str(args.prefix + 2 * SUFFIX))
            flags = ("--model", args.model, "--threads", str(args.threads), "--tier", spec, *memory)
            server = stack.enter_context(own_server(*flags))
            found = asyncio.run(measure(tier, server, plain, args))
        samples += found
        summaries.append(summarise(tier, found, args))
    Console().print(table(summaries))
    if args.json is not None:
        results = {"samples": samples, "summary": summaries}
        content = script_document("tier_hits", provenance, vars(args), results)
        write_json(args.json, content)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"tier_hits: {error}")
