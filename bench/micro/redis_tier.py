"""How fast the Redis tier reads and writes, against the same package's bare `get` and `set`, and what that costs.

    python bench/micro/redis_tier.py redis://127.0.0.1:6379 --json bench/results/redis-tier.json

Each round every contestant moves the same records, each round in another order, and each verb on its own:
  * the tier, into and from memory of ours, as the fabric calls it;
  * `get` and `set` of the `redis` package with hiredis, from bytes and to bytes that are thrown away, one at a time;
  * the same in one pipeline.
`find` asks for 8,192 keys, half of them there: one round trip of the tier, one pipeline of the package.

Ratios are of one round, tier / package: above 1 the tier is faster. Their interval is where the median lies with 95 %
confidence. Processor time is that of this process. Keys are under a prefix of their own, and are removed at the end.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from redis import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.base.units import format_bytes
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread
from kvist.tiers.ports import Address, Found, Read, Stored, Write
from kvist.tiers.redis import RedisTier
from kvist.tiers.redis_keys import RedisKeys
from kvist.tiers.redis_settings import RedisSettings, parse_redis_url

PREFIX = "kvist-bench"
TENANT = TenantTag(bytes(16))
TIER, PACKAGE, PIPELINE = "tier", "package", "pipeline"
FOUND_KEYS = 8192

Move = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One contestant's round; round 0 warms up and is in no summary."""

    verb: str
    record_bytes: int
    round: int
    contestant: str
    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One verb at one length.

    Attributes:
        tier_s, package_s, pipeline_s: seconds of a round.
        tier_cpu_s, package_cpu_s: of this process, median.
        nbytes: moved in a round; 0 for `find`.
        over_package, over_pipeline: how many times faster the tier is.
        over_package_low, over_package_high: 95 % confidence interval of the median.
    """

    verb: str
    record_bytes: int
    nbytes: int
    tier_s: Spread
    package_s: Spread
    pipeline_s: Spread
    tier_cpu_s: float
    package_cpu_s: float
    over_package: Spread
    over_package_low: float
    over_package_high: float
    over_pipeline: Spread


def address_of(number: int) -> Address:
    """One of many."""
    block_hash = BlockHash(blake3(number.to_bytes(8, "little")).digest())
    return Address(key=BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", block_hash), tenant=TENANT)


def proven(done: object, wanted: object) -> None:
    """Stops the benchmark where somebody did not do what is measured."""
    if done != wanted:
        raise ConfigError(f"the server answered {str(done)[:200]}, not {str(wanted)[:200]}")


def record_moves(tier: RedisTier, client: Redis, size: int, count: int) -> dict[str, dict[str, Move]]:
    """What each contestant does to write and to read records of one length."""
    addresses = [address_of(number) for number in range(count)]
    records = [memoryview(bytearray(blake3(bytes([number])).digest(length=size))) for number in range(count)]
    plain = [bytes(record) for record in records]
    reads = [Read(address=each, into=memoryview(bytearray(size))) for each in addresses]
    writes = [
        Write(address=each, record=record, created_unix_s=0.0) for each, record in zip(addresses, records, strict=True)
    ]
    names = RedisKeys(f"{PREFIX}.plain").encode(addresses)

    def pipelined(fill: Callable[[Redis], object], wanted: object) -> None:
        with client.pipeline(transaction=False) as pipeline:
            fill(pipeline)
            proven(pipeline.execute() == wanted, wanted=True)

    return {
        "write": {
            TIER: lambda: proven(list(tier.write(writes)), [Stored()] * count),
            PACKAGE: lambda: proven([client.set(*each) for each in zip(names, plain, strict=True)], [True] * count),
            PIPELINE: lambda: pipelined(
                lambda pipeline: [pipeline.set(*each) for each in zip(names, plain, strict=True)], [True] * count
            ),
        },
        "read": {
            TIER: lambda: proven(list(tier.read(reads)), [Found()] * count),
            PACKAGE: lambda: proven([len(client.get(name)) for name in names], [size] * count),
            PIPELINE: lambda: pipelined(lambda pipeline: [pipeline.get(name) for name in names], plain),
        },
    }


def find_moves(tier: RedisTier, client: Redis) -> dict[str, Move]:
    """What each contestant does to ask for keys, half of which are there."""
    addresses = [address_of(number) for number in range(FOUND_KEYS)]
    names = RedisKeys(PREFIX).encode(addresses)
    half = [Write(address=each, record=memoryview(bytes(512)), created_unix_s=0.0) for each in addresses[::2]]
    tier.write(half)
    there = [True, False] * (FOUND_KEYS // 2)

    def pipelined() -> None:
        with client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.exists(name)
            proven([bool(each) for each in pipeline.execute()], there)

    return {TIER: lambda: proven(list(tier.find(addresses)), there), PIPELINE: pipelined}


def rounds_of(verb: str, size: int, moves: dict[str, Move], rounds: int) -> list[Sample]:
    """Every contestant in every round."""
    clock, names, samples = SystemClock(), list(moves), []
    for turn in range(rounds + 1):
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            begun_cpu_s, begun_s = time.process_time(), clock.now_s()
            moves[name]()
            seconds, cpu_s = clock.now_s() - begun_s, time.process_time() - begun_cpu_s
            samples.append(
                Sample(verb=verb, record_bytes=size, round=turn, contestant=name, seconds=seconds, cpu_s=cpu_s)
            )
    return samples


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median lies with 95 % confidence, whatever the distribution: two of the values."""
    ordered, count = sorted(values), len(values)
    outside = 0
    reach = 0.0
    while outside < count // 2:
        reach += math.comb(count, outside) / 2**count
        if reach > 0.025:
            break
        outside += 1
    lowest = max(0, outside - 1)
    return ordered[lowest], ordered[count - 1 - lowest]


def summarise(samples: Sequence[Sample], nbytes: int) -> Summary:
    """One verb at one length."""
    kept = [sample for sample in samples if sample.round]
    took = {
        name: [each.seconds for each in kept if each.contestant == name] for name in {each.contestant for each in kept}
    }
    cpu = {name: spread([each.cpu_s for each in kept if each.contestant == name]).median for name in took}
    package = PACKAGE if PACKAGE in took else PIPELINE  # nobody asks for thousands of keys one by one
    ratios = pairwise_ratios(took[package], took[TIER])
    low, high = median_interval(ratios)
    return Summary(
        verb=kept[0].verb,
        record_bytes=kept[0].record_bytes,
        nbytes=nbytes,
        tier_s=spread(took[TIER]),
        package_s=spread(took[package]),
        pipeline_s=spread(took[PIPELINE]),
        tier_cpu_s=cpu[TIER],
        package_cpu_s=cpu[package],
        over_package=spread(ratios),
        over_package_low=low,
        over_package_high=high,
        over_pipeline=spread(pairwise_ratios(took[PIPELINE], took[TIER])),
    )


def measure(args: argparse.Namespace) -> tuple[list[Sample], list[Summary]]:
    """All verbs at all lengths."""
    server = parse_redis_url(args.url)
    tier = RedisTier("bench", RedisSettings(server=server, prefix=PREFIX, timeout_s=60.0), SystemClock())
    samples, summaries = [], []
    with Redis.from_url(args.url) as client:
        try:
            for size in args.record_bytes:
                count = max(1, args.bytes // size)
                for verb, moves in record_moves(tier, client, size, count).items():
                    found = rounds_of(verb, size, moves, args.rounds)
                    samples += found
                    summaries.append(summarise(found, count * size))
                remove(client)
            found = rounds_of("find", 0, find_moves(tier, client), args.rounds)
            return samples + found, [*summaries, summarise(found, 0)]
        finally:
            remove(client)
            tier.close()


def remove(client: Redis) -> None:
    """All that the benchmark wrote."""
    for name in client.scan_iter(match=f"{PREFIX}*", count=1000):
        client.unlink(name)


def table(summaries: Sequence[Summary]) -> Table:
    """Speeds or times, ratios with their intervals, and processor time."""
    shown = Table(title="records to and from Redis: medians")
    for column in ("", "tier", "package", "pipeline", "tier / package", "tier / pipeline", "cpu: tier", "package"):
        shown.add_column(column, justify="right")
    for each in summaries:

        def speed(took: Spread, nbytes: int = each.nbytes) -> str:
            return f"{nbytes / took.median / 1e9:.2f} GB/s" if nbytes else f"{took.median * 1e3:.2f} ms"

        def cost(cpu_s: float, nbytes: int = each.nbytes) -> str:
            return f"{cpu_s / nbytes * 1e9:.3f} s/GB" if nbytes else f"{cpu_s * 1e3:.2f} ms"

        shown.add_row(
            f"{each.verb} {format_bytes(each.record_bytes)}" if each.nbytes else f"{each.verb} {FOUND_KEYS:,}",
            *map(speed, (each.tier_s, each.package_s, each.pipeline_s)),
            f"{each.over_package.median:.2f} ({each.over_package_low:.2f}-{each.over_package_high:.2f})",
            f"{each.over_pipeline.median:.2f}",
            *map(cost, (each.tier_cpu_s, each.package_cpu_s)),
        )
    return shown


def parser_of() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a server with nothing to lose and some room, such as redis://127.0.0.1:6379")
    parser.add_argument(
        "--record-bytes", type=int, nargs="+", default=[307_712, 737_792, 2**20, 4 * 2**20], help="lengths of records"
    )
    parser.add_argument("--bytes", type=int, default=16 * 2**20, help="moved at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="times that each is measured (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser


def main(argv: Sequence[str]) -> None:
    parser = parser_of()
    args = parser.parse_args(argv)
    if min(args.rounds, *args.record_bytes) < 1 or max(args.record_bytes) > 512 * 10**6:
        parser.error("--rounds must be at least 1, --record-bytes from 1 to 512 million")
    if args.json is not None:
        check_writable(args.json)
    server = parse_redis_url(args.url)
    provenance = script_provenance("bench/micro/redis_tier.py", [str(server), *argv[1:]], seed=0)
    samples, summaries = measure(args)
    Console(width=140).print(table(summaries))
    if args.json is not None:
        results = {"samples": samples, "summary": summaries}
        content = script_document("redis_tier", provenance, vars(args) | {"url": str(server)}, results)
        write_json(args.json, content)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (KvistError, RedisError, OSError) as error:
        sys.exit(f"redis_tier: {error}")
