"""How fast few rows are multiplied with weights, against torch and the speed at which memory is read.

    OMP_NUM_THREADS=2 python bench/micro/products.py --json bench/results/products.json

On all cores and by the wall clock, for what bounds a product of few rows is the memory that cores share. Of each shape
there are as many weights as no cache holds, and a sample multiplies with all of them in turn: the kernel as parts of a
program, as the engine runs it, torch call by call. "read" is a kernel that adds up the weights' bits, divided among
threads in the same way: the limit. Samples are interleaved, each round in another order.

`kvist.engine.backends.cpu.products.ROWS_FEW` follows from it.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from rounds import parser_of
from torch.nn import functional

from kvist.base.errors import KvistError
from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.dots import AHEAD_BYTES
from kvist.engine.backends.cpu.kernel import Kernel, Program, share
from kvist.engine.backends.cpu.numbers import Given, integer, integers, prefetch
from kvist.engine.backends.cpu.products import project_few
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, spread

DTYPE = torch.bfloat16
SHAPES = {
    "SmolLM2 qkv": (960, 576),
    "SmolLM2 output": (576, 576),
    "SmolLM2 gate and up": (3072, 576),
    "SmolLM2 down": (576, 1536),
    "SmolLM2 head": (49152, 576),
    "Gemma 3 qkv": (1536, 640),
    "Gemma 3 gate and up": (4096, 640),
    "Gemma 3 down": (640, 2048),
}
"""Outputs and inputs of projections of SmolLM2-135M and Gemma 3 270M."""

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """All weights of a shape, once; `rows` is 0 where nothing is multiplied."""

    shape: str
    way: str
    rows: int
    round: int
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One way over all rounds but the first; the rates are of the median."""

    shape: str
    way: str
    rows: int
    weight_bytes: int
    took_s: Spread
    gb_per_s: float


def _read(given: Given) -> None:
    """Adds up a thread's share of numbers, with memory asked for ahead as products ask."""
    numbers, found = integers(given, 0), integers(given, 2)
    first, end = share(len(numbers), 64)
    mine, begin, total = numbers[first:end], integer(given, 0) + first * 8, 0
    for place in range(0, len(mine), 64):
        part = mine[place : place + 64]
        for line in range(0, 512, 64):
            prefetch(begin + place * 8 + line + AHEAD_BYTES)
        for i in range(len(part)):
            total += part[i]
    found[0 if first == 0 else 32] = total  # not in a line that both would write


READ = Kernel(_read)


class Weights:
    """Weights of one shape, and each way to pass over them."""

    def __init__(self, shape: tuple[int, int], bytes_min: int, seed: int) -> None:
        outputs, inputs = shape
        count = -(-bytes_min // (outputs * inputs * DTYPE.itemsize))
        self._generator = torch.Generator().manual_seed(seed)
        self.weights = [self._normal(outputs, inputs) for _ in range(count)]
        self.bytes = sum(weight.nbytes for weight in self.weights)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator).to(DTYPE)

    def ways(self, rows: Sequence[int]) -> Iterator[tuple[str, int, Callable[[], object]]]:
        yield "read", 0, self._reading()
        for count in rows:
            x = self._normal(count, self.weights[0].shape[1])
            yield "kernel", count, self._by_kernel(x)
            yield "torch", count, lambda x=x: [functional.linear(x, weight) for weight in self.weights]

    def _reading(self) -> Callable[[], object]:
        program, found = Program(), torch.zeros(64, dtype=torch.int64)
        program.hold(found)
        for weight in self.weights:
            READ(torch.float32, weight.data_ptr(), weight.nbytes // 8, *kernel.vector(found), program=program)
        return lambda: kernel.run(program)

    def _by_kernel(self, x: torch.Tensor) -> Callable[[], object]:
        program = Program()
        program.hold(x)
        for weight in self.weights:
            project_few(x, weight, program=program)
        return lambda: kernel.run(program)


def measure(shape: str, args: argparse.Namespace) -> tuple[list[Sample], list[Summary]]:
    weights = Weights(SHAPES[shape], args.weights_mb * 10**6, args.seed)
    ways = list(weights.ways(args.rows))
    samples = []
    for turn in range(args.rounds + 1):
        start = turn % len(ways)
        for way, rows, call in (*ways[start:], *ways[:start]):
            begun_s = time.perf_counter()
            call()
            took_s = time.perf_counter() - begun_s
            samples.append(Sample(shape=shape, way=way, rows=rows, round=turn, took_s=took_s))
    summaries = []
    for way, rows, _ in ways:
        of_way = [each for each in samples if (each.way, each.rows) == (way, rows) and each.round > 0]
        took = spread([each.took_s for each in of_way])
        rate = weights.bytes / took.median / 1e9
        summaries.append(
            Summary(shape=shape, way=way, rows=rows, weight_bytes=weights.bytes, took_s=took, gb_per_s=rate)
        )
    return samples, summaries


def table(summaries: Sequence[Summary], rows: Sequence[int]) -> Table:
    """GB/s of weights, the kernel's and torch's."""
    shown = Table(title="GB/s of weights: kernel / torch")
    for column in ("shape", "read", *(f"{count} rows" for count in rows)):
        shown.add_column(column, justify="left" if column == "shape" else "right")
    rates = {(each.shape, each.way, each.rows): f"{each.gb_per_s:.1f}" for each in summaries}
    for shape in dict.fromkeys(each.shape for each in summaries):
        pairs = (f"{rates[shape, 'kernel', count]} / {rates[shape, 'torch', count]}" for count in rows)
        shown.add_row(shape, rates[shape, "read", 0], *pairs)
    return shown


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows to try (1 to 64)")
    parser.add_argument("--shapes", nargs="+", default=[*SHAPES], choices=SHAPES, help="weights to try (all)")
    parser.add_argument("--weights-mb", type=int, default=128, help="weights of a shape at least (%(default)s)")
    args = parser.parse_args(argv)
    if args.rounds < 1 or min(args.rows) < 1 or args.weights_mb < 1:
        parser.error("--rounds, --rows and --weights-mb must be at least 1")
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/micro/products.py", argv, seed=args.seed)
    samples: list[Sample] = []
    summaries: list[Summary] = []
    with torch.inference_mode():
        for shape in args.shapes:
            found = measure(shape, args)
            samples, summaries = samples + found[0], summaries + found[1]
    Console(width=180).print(table(summaries, args.rows))
    if args.json is not None:
        content = script_document("products", provenance, vars(args), {"samples": samples, "summary": summaries})
        write_json(args.json, content)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"products: {error}")
