"""How fast the disk tier reads and writes, against plain direct I/O with as many requests at once.

    python bench/micro/disk_tier.py /some/directory --json bench/results/disk-tier.json
    python bench/micro/disk_tier.py /some/directory --computing

Each round every contestant moves the same records, each round in another order: the tier, index and all, called as the
fabric's movers call it, from a few threads with many records each; io_uring over a file of its own, called likewise and
nothing else; and as many threads as requests at once, each with one `preadv` or `pwritev` at a time. Records are new to
the tier when it writes them, as they are in use; the files have been written before. With --computing a thread of pure
Python runs beside, as an engine's does. Ratios are of one round, tier / other: above 1 the tier is faster.
"""

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from rich.console import Console
from rich.table import Table

from kvist.app.clock import SystemClock
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_files import Piece
from kvist.tiers.disk_ring import RingFiles
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import Address, Found, Place, Read, Stored, Write
from kvist.tiers.regions import Region, RegionId

TENANT = TenantTag(bytes(16))
VERBS = ("read", "write")
TIER, RING, THREADS = "tier", "io_uring", "threads"

Move = Callable[[str, Sequence[int]], None]
"""Reads or writes the records with these numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All records moved by one contestant; round 0 warms up and is in no summary."""

    verb: str
    round: int
    contestant: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The tier against both; bytes per second, and ratios of the rounds."""

    verb: str
    tier: Spread
    io_uring: Spread
    threads: Spread
    tier_over_io_uring: Spread
    tier_over_threads: Spread


class Records:
    """So many records of one length, in memory and at places in a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.length = args.record_bytes
        self.count = args.bytes // self.length
        self.batch = args.depth // args.lanes
        self.place_bytes = -(-self.length // 4096) * 4096
        self._region = Region(RegionId("bench"), self.count * self.place_bytes)

    def view(self, number: int, length: int | None = None) -> memoryview:
        """A record's memory, of another one than its place's neighbours."""
        return self._region.view(number * self.place_bytes, length or self.length)

    def offset(self, number: int) -> int:
        """Where it lies in a file."""
        return number * self.place_bytes


def tier_move(tier: DiskTier, records: Records) -> Move:
    """The tier; before it writes, it forgets."""
    per_segment = tier.segment_bytes // records.place_bytes

    def address(number: int) -> Address:
        key = BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", BlockHash(blake3(number.to_bytes(8)).digest()))
        segment, index = divmod(number, per_segment)
        offset = segment * tier.segment_bytes + index * records.place_bytes
        return Address(key=key, tenant=TENANT, place=Place(offset=offset, length=records.place_bytes))

    addresses = [address(number) for number in range(records.count)]

    def move(verb: str, batch: Sequence[int]) -> None:
        if verb == "read":
            reads = [Read(address=addresses[each], into=records.view(each)) for each in batch]
            worked = list(tier.read(reads)) == [Found()] * len(batch)
        else:
            writes = [Write(address=addresses[each], record=records.view(each), created_unix_s=0.0) for each in batch]
            worked = list(tier.write(writes)) == [Stored()] * len(batch)
        if not worked:
            raise ConfigError(f"the tier did not {verb} all of {batch}")

    return move


def ring_move(fd: int, port: RingFiles, records: Records) -> Move:
    """Nothing but io_uring."""

    def move(verb: str, batch: Sequence[int]) -> None:
        pieces = [Piece(fd, records.offset(each), records.view(each)) for each in batch]
        moved = port.read(pieces) if verb == "read" else port.write(pieces)
        if list(moved) != [records.length] * len(batch):
            raise ConfigError(f"io_uring did not {verb} all of {batch}: {moved}")

    return move


def plain_move(fd: int, records: Records) -> Move:
    """One system call per record."""

    def move(verb: str, batch: Sequence[int]) -> None:
        for number in batch:
            views, offset = [records.view(number)], records.offset(number)
            moved = os.preadv(fd, views, offset) if verb == "read" else os.pwritev(fd, views, offset)
            if moved != records.length:
                raise ConfigError(f"{verb} of record {number} moved {moved} bytes")

    return move


def in_threads(move: Move, threads: ThreadPoolExecutor, batch: int) -> Move:
    """The same by several threads, each with so many records per call."""

    def moves(verb: str, order: Sequence[int]) -> None:
        batches = (order[start : start + batch] for start in range(0, len(order), batch))
        for _ in threads.map(lambda each: move(verb, each), batches):
            pass

    return moves


@contextmanager
def contestants(args: argparse.Namespace, records: Records) -> Iterator[dict[str, tuple[Move, Callable[[], object]]]]:
    """All who take part, with what each does before it writes; their files are removed at the end."""
    folder = args.directory / "tier"
    budget = records.count * records.place_bytes + 256 * 2**20
    settings = DiskSettings(directory=folder, bytes_max=budget, bytes_free_min=0)
    tier, port = DiskTier("disk", settings), RingFiles()
    path = args.directory / "plain"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(fd, 0, records.count * records.place_bytes)
        with ThreadPoolExecutor(args.lanes) as few, ThreadPoolExecutor(args.depth) as many:
            yield {
                TIER: (
                    in_threads(tier_move(tier, records), few, records.batch),
                    lambda: tier.delete([entry.address for entry in tier.entries()]),
                ),
                RING: (in_threads(ring_move(fd, port, records), few, records.batch), lambda: None),
                THREADS: (in_threads(plain_move(fd, records), many, 1), lambda: None),
            }
    finally:
        tier.close()
        port.close()
        os.close(fd)
        path.unlink()
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@contextmanager
def computing(*, wanted: bool) -> Iterator[None]:
    """A thread that computes all the time, or none."""
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    if wanted:
        thread.start()
    yield
    ended.set()
    if wanted:
        thread.join()


def measure(args: argparse.Namespace, records: Records) -> list[Sample]:
    """All rounds; the first one writes the files for the first time."""
    clock, samples = SystemClock(), []
    with contestants(args, records) as found, computing(wanted=args.computing):
        for turn in range(args.rounds + 1):
            names = list(found)
            drawn = integers(args.seed, f"round {turn}", records.count, Span(low=0, high=2**30))
            order = sorted(range(records.count), key=lambda number: drawn[number])
            for verb in reversed(VERBS):
                for name in (*names[turn % 3 :], *names[: turn % 3]):
                    move, forget = found[name]
                    if verb == "write":
                        forget()
                    begun_s = clock.now_s()
                    move(verb, order)
                    samples.append(Sample(verb=verb, round=turn, contestant=name, seconds=clock.now_s() - begun_s))
    return samples


def summarise(samples: Sequence[Sample], nbytes: int) -> list[Summary]:
    """Both directions."""
    summaries = []
    for verb in VERBS:
        speeds = {
            name: [
                nbytes / each.seconds for each in samples if (each.verb, each.contestant) == (verb, name) and each.round
            ]
            for name in (TIER, RING, THREADS)
        }
        summaries.append(
            Summary(
                verb=verb,
                tier=spread(speeds[TIER]),
                io_uring=spread(speeds[RING]),
                threads=spread(speeds[THREADS]),
                tier_over_io_uring=spread(pairwise_ratios(speeds[TIER], speeds[RING])),
                tier_over_threads=spread(pairwise_ratios(speeds[TIER], speeds[THREADS])),
            )
        )
    return summaries


def table(summaries: Sequence[Summary]) -> Table:
    """Medians, and the quartiles of the ratios."""
    shown = Table(title="records to and from disk, GB/s")
    for column in ("", "tier", "io_uring alone", "threads", "tier / io_uring", "tier / threads"):
        shown.add_column(column, justify="right")
    for each in summaries:
        speeds = (f"{found.median / 1e9:.2f}" for found in (each.tier, each.io_uring, each.threads))
        ratios = (
            f"{found.median:.3f} ({found.q1:.3f}-{found.q3:.3f})"
            for found in (each.tier_over_io_uring, each.tier_over_threads)
        )
        shown.add_row(each.verb, *speeds, *ratios)
    return shown


def parser_of() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="on the disk to be measured; files are made there and removed")
    parser.add_argument("--record-bytes", type=int, default=737_792, help="length of a record (%(default)s)")
    parser.add_argument("--bytes", type=int, default=256 * 2**20, help="of all records (%(default)s)")
    parser.add_argument("--depth", type=int, default=32, help="requests at once (%(default)s)")
    parser.add_argument("--lanes", type=int, default=2, help="threads that call the tier (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="times that each is measured (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the order of records follows from it (%(default)s)")
    parser.add_argument("--computing", action="store_true", help="a thread of pure Python computes beside")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser


def main(argv: Sequence[str]) -> None:
    parser = parser_of()
    args = parser.parse_args(argv)
    if (
        min(args.rounds, args.lanes, args.depth // max(1, args.lanes)) < 1
        or args.record_bytes % 512
        or not 0 < args.record_bytes <= args.bytes
    ):
        parser.error("--record-bytes must be a multiple of 512 and fit into --bytes; all counts at least 1")
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/micro/disk_tier.py", argv, seed=args.seed)
    records = Records(args)
    samples = measure(args, records)
    summaries = summarise(samples, records.count * records.length)
    Console(width=120).print(table(summaries))
    if args.json is not None:
        results = {"samples": samples, "summary": summaries}
        content = script_document("disk_tier", provenance, vars(args), results)
        write_json(args.json, content)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (KvistError, OSError) as error:
        sys.exit(f"disk_tier: {error}")
