"""Where the time of a prefill and of a decode step goes, part by part, and how far each part is from what bounds it.

    python bench/micro/step_profile.py --rounds 20 --json bench/results/step-profile-smollm2-cpu.json

Puts a watch around the functions that layers on a CPU are made of and computes real steps with them: prefills of one
prompt and decode steps over its context. What is left of a step is everything between: embedding, the table of
rotations, transformers' graph, Python. Each part's bytes and floating-point operations follow from the shapes it was
called with. In the same rounds the machine's limits are measured: memory read by our own kernel and by torch's sum, and
a wide product of matrices; a part's bound is the time that its bytes or its operations take there, whichever is more.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from step_parts import Part, Watch, installed
from torch.nn import functional

from kvist.app.engine import read_geometry
from kvist.app.locate import locate
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import BlockId, RequestId, TokenId
from kvist.engine.backends.cpu.products import project
from kvist.engine.backends.device import open_device, set_threads
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.batch import Batch, BlockRun, Chunk, DrawSpec, batch_of
from kvist.engine.request import Sampling
from kvist.geometry.groups import ModelGeometry
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, spread

BLOCK_TOKENS = 16
STEP_TOKENS = 1024
READ_BYTES = 2**28
"""Read for a limit; more than any cache holds."""

MATRIX = 2048
REST = "between"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One part of one step in one round; the whole step is the part named "step"."""

    case: str
    part: str
    round: int
    seconds: float
    calls: int
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What the machine does at most, measured in the same rounds: bytes or operations per second."""

    what: str
    per_s: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One part of one case.

    Attributes:
        case, part: which.
        calls: in a step.
        took_s: a step's time in it.
        share: of the step's median.
        bytes, flops: that a step's calls need at least.
        bound_s: what these take at the machine's limits.
        of_bound: bound / time; 1 is as fast as the machine allows, None where nothing is counted.
    """

    case: str
    part: str
    calls: int
    took_s: Spread
    share: float
    bytes: int
    flops: int
    bound_s: float
    of_bound: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Steps that are computed one after the other, as one.

    Attributes:
        name: in words.
        steps: in their order.
        rounds: in how many it takes part after the first; None: in all.
    """

    name: str
    steps: tuple[Batch, ...]
    rounds: int | None = None


def chunk(sequence: int, tokens: Sequence[int], start: int, capacity: int, groups: int) -> Chunk:
    """Tokens of one of several sequences that lie one after the other in the pool, `capacity` blocks each."""
    blocks = -(-(start + len(tokens)) // BLOCK_TOKENS)
    first = sequence * capacity
    run = BlockRun(first=0, blocks=tuple(BlockId(first + each) for each in range(blocks)))
    return Chunk(
        request_id=RequestId(str(sequence)),
        tokens=tuple(map(TokenId, tokens)),
        start=start,
        runs=(run,) * groups,
        draw=DrawSpec(sampling=Sampling(temperature=0), uniform=0.5),
    )


def cases(args: argparse.Namespace, groups: int, capacity: int) -> list[Case]:
    """A prefill, and a decode step alone and of several; in this order, because the first writes what others read."""

    def prompt(sequence: int, length: int) -> Case:
        tokens = integers(args.seed, f"sequence {sequence}", length, Span(low=1, high=args.id_max))
        starts = range(0, length, STEP_TOKENS)
        pieces = [chunk(sequence, tokens[at : at + STEP_TOKENS], at, capacity, groups) for at in starts]
        name = f"prefill of {length:,} tokens" if sequence == 0 else f"sequence {sequence}"
        steps = tuple(batch_of([piece], block_tokens=BLOCK_TOKENS) for piece in pieces)
        return Case(name=name, steps=steps, rounds=args.prefill_rounds if sequence == 0 else 0)

    def decode(sequences: Sequence[int], length: int) -> Case:
        chunks = [chunk(each, (1,), length, capacity, groups) for each in sequences]
        name = f"decode of {len(chunks)} after {length:,} tokens"
        return Case(name=name, steps=(batch_of(chunks, block_tokens=BLOCK_TOKENS),))

    others = [prompt(sequence, args.middle) for sequence in range(1, args.together)]
    return [
        prompt(0, args.long),
        *others,
        decode([0], args.short),
        decode([0], args.long),
        decode(range(args.together), args.middle),
    ]


def limits(dtype: torch.dtype) -> dict[str, tuple[Callable[[], object], int]]:
    """What is done to find the machine's limits, and how many bytes or operations it is."""
    columns = 1024
    weight = torch.ones(READ_BYTES // columns // dtype.itemsize, columns, dtype=dtype)
    floats, row = torch.ones(READ_BYTES // 4), torch.ones(1, columns, dtype=dtype)
    wide = torch.ones(STEP_TOKENS, MATRIX, dtype=dtype), torch.ones(MATRIX, MATRIX, dtype=dtype)
    return {
        "read by our kernel": (lambda: project(row, weight), READ_BYTES),
        "read by sum": (floats.sum, READ_BYTES),
        "matrix product": (lambda: functional.linear(*wide), 2 * STEP_TOKENS * MATRIX * MATRIX),
    }


def backend_of(args: argparse.Namespace, capacity: int) -> tuple[TorchBackend, ModelGeometry]:
    """A backend with memory for all sequences."""
    files = locate(args.model)
    geometry = read_geometry(files.directory)
    device, dtype = open_device("cpu"), getattr(torch, args.dtype)
    model = load_model(files.directory, geometry, dtype=dtype, device=device)
    blocks = [capacity * args.together] * len(geometry.groups)
    store = KvStore(geometry.groups, blocks, block_tokens=BLOCK_TOKENS, dtype=dtype, device=device)
    return TorchBackend(model, store), geometry


def profiled(backend: TorchBackend, case: Case, turn: int, watch: Watch) -> list[Sample]:
    """One case in one round: first without a look at its parts, which is what "step" tells, then by parts."""
    begun_s = time.perf_counter()
    for step in case.steps:
        backend.run(step)
    took_s = time.perf_counter() - begun_s
    watch.parts = {}
    for watch.step in case.steps:
        backend.run(watch.step)
    watch.step = None
    if not any(name.startswith("product") for name in watch.parts):
        raise ConfigError("no part was met: this model keeps transformers' own layers")
    inside = sum(part.seconds for part in watch.parts.values())
    watch.parts |= {REST: Part(seconds=max(0.0, took_s - inside)), "step": Part(seconds=took_s)}
    return [
        Sample(
            case=case.name,
            part=name,
            round=turn,
            seconds=part.seconds,
            calls=part.calls,
            bytes=part.bytes,
            flops=part.flops,
        )
        for name, part in watch.parts.items()
    ]


def summarise(samples: Sequence[Sample], bounds: Sequence[Limit]) -> list[Summary]:
    """One summary for each part of each case."""
    per_s = {limit.what: limit.per_s.median for limit in bounds}
    read = max(per_s["read by our kernel"], per_s["read by sum"])
    found: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        found.setdefault((sample.case, sample.part), []).append(sample)
    whole = {case: spread([each.seconds for each in of]).median for (case, part), of in found.items() if part == "step"}
    summaries = []
    for (case, part), of in found.items():
        took, one = spread([each.seconds for each in of]), of[0]
        bound_s = max(one.bytes / read, one.flops / per_s["matrix product"])
        summaries.append(
            Summary(
                case=case,
                part=part,
                calls=one.calls,
                took_s=took,
                share=took.median / whole[case],
                bytes=one.bytes,
                flops=one.flops,
                bound_s=bound_s,
                of_bound=bound_s / took.median if bound_s else None,
            )
        )
    return summaries


def measure(args: argparse.Namespace) -> tuple[list[Sample], list[Limit]]:
    """All rounds; the first warms up."""
    capacity = -(-(max(args.long, args.middle) + 2) // BLOCK_TOKENS)
    tried, samples = limits(getattr(torch, args.dtype)), []
    rates: dict[str, list[float]] = {what: [] for what in tried}
    backend, geometry = backend_of(args, capacity)
    watch = Watch(kv_heads=geometry.groups[0].kv_heads)
    with installed(watch):
        for turn in range(args.rounds + 1):
            for case in cases(args, len(geometry.groups), capacity):
                if case.rounds is None or turn <= case.rounds:
                    found = profiled(backend, case, turn, watch)
                    samples += found if turn > 0 else []
            for what, (run, size) in tried.items():
                begun_s = time.perf_counter()
                run()
                rates[what].append(size / (time.perf_counter() - begun_s))
    return samples, [Limit(what=what, per_s=spread(each[1:])) for what, each in rates.items()]


def table(summaries: Sequence[Summary]) -> Table:
    """Parts of all cases."""
    shown = Table(title="Steps by parts")
    for column in ("case", "part", "calls", "ms", "share", "GB/s", "GFLOP/s", "of what the machine does"):
        shown.add_column(column, justify="left" if column in ("case", "part") else "right")
    for each in summaries:
        took = each.took_s.median
        rates = [f"{amount / took / 1e9:,.1f}" if amount else "" for amount in (each.bytes, each.flops)]
        of_bound = "" if each.of_bound is None else f"{each.of_bound:.0%}"
        shown.add_row(each.case, each.part, str(each.calls), f"{took * 1e3:.2f}", f"{each.share:.0%}", *rates, of_bound)
    return shown


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    counts = (("rounds", 20), ("prefill_rounds", 5), ("short", 64), ("middle", 1000), ("long", 3000), ("together", 8))
    for name, default in (*counts, ("threads", 2), ("id_max", 30_000), ("seed", 0)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="(%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/micro/step_profile.py", argv, seed=args.seed)
    set_threads(args.threads)
    samples, bounds = measure(args)
    summaries = summarise(samples, bounds)
    console = Console(width=150)
    console.print(table(summaries))
    for limit in bounds:
        console.print(f"{limit.what}: {limit.per_s.median / 1e9:,.1f} G/s", highlight=False)
    if args.json is not None:
        results = {"samples": samples, "limits": bounds, "summary": summaries}
        write_json(args.json, script_document("step_profile", provenance, vars(args), results))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"step_profile: {error}")
