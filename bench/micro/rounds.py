"""What the benchmarks of single structures have in common: interleaved rounds, a table, and one JSON document.

A case is something that can be done again and again with the same result. Each round does every case once, each round
in another order, so that whatever else the machine does meets all of them alike. Round 0 warms up and is in no summary.
What is taken is processor time: these structures neither wait nor use threads, and the figures are per core.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Something to be timed.

    Attributes:
        name: what it is, in words.
        unit: what it does many of, in the plural.
        units: how many of them at once.
        run: does it; what it takes is the measurement.
        prepare: done before each run, and not timed.
    """

    name: str
    unit: str
    units: int
    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One case in one round."""

    case: str
    round: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One case over all rounds but the first; `ns_per_unit` and `units_per_s` are of the median."""

    case: str
    unit: str
    units: int
    took_cpu_s: Spread
    ns_per_unit: float
    units_per_s: float


def measure(cases: Sequence[Case], rounds: int) -> list[Sample]:
    """Every case in every round."""
    samples = []
    for turn in range(rounds + 1):
        start = turn % len(cases)
        for case in (*cases[start:], *cases[:start]):
            case.prepare()
            begun_s = time.process_time()
            case.run()
            samples.append(Sample(case=case.name, round=turn, cpu_s=time.process_time() - begun_s))
    return samples


def summarise(cases: Sequence[Case], samples: Sequence[Sample]) -> list[Summary]:
    """One summary for each case."""
    summaries = []
    for case in cases:
        took = spread([sample.cpu_s for sample in samples if sample.case == case.name and sample.round > 0])
        summaries.append(
            Summary(
                case=case.name,
                unit=case.unit,
                units=case.units,
                took_cpu_s=took,
                ns_per_unit=took.median / case.units * 1e9,
                units_per_s=case.units / took.median,
            )
        )
    return summaries


def table(title: str, summaries: Sequence[Summary]) -> Table:
    """Medians, and the quartiles of the time."""
    shown = Table(title=title)
    for column in ("case", "units", "ms", "quartiles", "ns per unit", "million per s"):
        shown.add_column(column, justify="left" if column == "case" else "right")
    for each in summaries:
        took = each.took_cpu_s
        shown.add_row(
            each.case,
            f"{each.units:,} {each.unit}",
            f"{took.median * 1e3:.3f}",
            f"{took.q1 * 1e3:.3f}-{took.q3 * 1e3:.3f}",
            f"{each.ns_per_unit:,.0f}",
            f"{each.units_per_s / 1e6:.2f}",
        )
    return shown


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all of these benchmarks take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="times that each case is measured (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="tokens follow from it (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    return parser


def run(name: str, argv: Sequence[str], parser: argparse.ArgumentParser, make: Callable[..., Sequence[Case]]) -> None:
    """Measures what `make` makes of the parsed options, shows it, and writes it down where that was asked for."""
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance(f"bench/micro/{name}.py", argv, seed=args.seed)
    cases = make(args)
    samples = measure(cases, args.rounds)
    summaries = summarise(cases, samples)
    Console(width=150).print(table(name, summaries))
    if args.json is not None:
        results: dict[str, Sequence[object]] = {"samples": samples, "summary": summaries}
        content = script_document(name, provenance, vars(args), results)
        write_json(args.json, content)
