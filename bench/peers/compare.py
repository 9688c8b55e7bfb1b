"""Kvist, vLLM and transformers on the same prompts, in turn: one command for every figure of docs/performance.md.

    python bench/peers/compare.py --json bench/results/peers-smollm2-cpu.json
    python bench/peers/compare.py --quick --vllm eager --stages child

Three stages. "child": engines in processes of their own, asked over pipes. "http": `kvist serve` and vLLM's server,
asked as clients ask. "start": both from start to ready, with warm file caches, and with --first-starts also with empty
caches of compiled code. In each round every engine is asked the same new prompts, each round in another order; all are
alive, one is asked, and the next waits until it rests. vLLM takes part in each of the modes named, and in each metric
its fastest counts. Ratios are those of rounds. What was measured is written after every stage, also when one fails.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from engines import Child, Engine, Setting, child, child_commands, environment_of, served, server_commands
from metrics import KVIST, TRANSFORMERS, Sample, Summary, Task, readings, summarise, tasks, without_prefixes
from rich.console import Console
from rich.table import Table
from starts import first_answer_s, started

from kvist.app.locate import locate
from kvist.base.errors import ConfigError, KvistError
from kvist.lab.draw import Span, integers
from kvist.lab.report import Provenance, check_writable, script_document, script_provenance, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from own_server import free_port  # after the path that has it

PEERS = ("vllm", TRANSFORMERS)
MODES = {"child": ("eager", "compiled"), "http": ("eager", "compiled", "reserved"), "start": ("eager",)}
"""Of vLLM, by stage. With one core reserved for the server it computes prompts at half the speed, and a token perhaps
sooner; and what is compiled is never sooner ready."""

COUNTS = (
    ("rounds", 4, "times that each task is done"),
    ("slow_rounds", 3, "of them, those with what takes long"),
    ("starts", 3, "times that each server is started"),
    ("first_starts", 0, "of them, with empty caches of compiled code"),
    ("short", 64, "tokens of a short prompt"),
    ("middle", 1000, "tokens of each of eight prompts"),
    ("long", 3000, "tokens of a long prompt"),
    ("longer", 4096, "tokens of the longest prompt"),
    ("output", 49, "tokens of an answer"),
    ("threads", 2, "of one operation"),
    ("kv_mib", 2048, "size of each KV pool"),
    ("id_max", 30_000, "largest token id of a prompt"),
    ("seed", 0, "prompts follow from it"),
    ("start_s", 400, "longest that a start may take, in seconds"),
)
POSITIVE = {"rounds", "short", "middle", "long", "longer", "output", "threads", "kv_mib", "start_s"}
AT_LEAST = dict.fromkeys(POSITIVE, 1) | {"output": 2, "id_max": 101}


@dataclass(slots=True, kw_only=True)
class Run:
    """What is measured, and what has been so far.

    Attributes:
        args: the options.
        setting: what every engine is started with.
        samples: of all stages.
        failures: of stages that ended early, in words.
        versions: of what took part, by engine.
    """

    args: argparse.Namespace
    setting: Setting
    console: Console
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def engines(self, stage: str) -> list[str]:
        """Names of all that take part in a stage, with their modes: those that may be the fastest in it."""
        modes = [mode for mode in self.args.vllm if mode in MODES[stage]] if "vllm" in self.args.peers else []
        others = [TRANSFORMERS] if TRANSFORMERS in self.args.peers and stage == "child" else []
        return [KVIST, *(f"vllm {mode}" for mode in modes), *others]

    def prompts(self, label: str, task: Task) -> list[tuple[int, ...]]:
        """Random ones that follow from a label."""
        span, seed = Span(low=100, high=self.args.id_max), self.args.seed
        return [
            integers(seed, f"{label}, {task.prompts} x {task.tokens}, {each}", task.tokens, span)
            for each in range(task.prompts)
        ]

    def note(self, stage: str, turn: int, engine: str, seconds: Mapping[str, float]) -> None:
        """Keeps readings."""
        self.samples += [
            Sample(stage=stage, metric=metric, round=turn, engine=engine, seconds=value)
            for metric, value in seconds.items()
        ]


def turned(names: Sequence[str], turn: int) -> Iterator[str]:
    """All of them, each round another one first."""
    start = turn % len(names)
    yield from (*names[start:], *names[:start])


def carry_out(run: Run, engine: Engine, task: Task, label: str) -> dict[str, float]:
    """One task by one engine, and what its replies say.

    Raises:
        ConfigError: what should have been new was not, or the other way round.
    """
    prompts = run.prompts(label, task)
    first = engine.ask(prompts, task.output)
    engine.rest()
    again = engine.ask(prompts, task.again) if task.again else None
    if again is not None:
        engine.rest()
    if any(first.cached) or (again is not None and not all(again.cached)):
        raise ConfigError(
            f"cached tokens {first.cached}, then {again and again.cached}: the figures would mean nothing"
        )
    return readings(task, first, again)


def rounds(run: Run, stage: str, engines: Mapping[str, Engine]) -> None:
    """All rounds of one stage; what comes before them warms up."""
    args = run.args
    sizes = {name: getattr(args, name) for name in ("short", "middle", "long", "longer", "output")}
    planned = tasks(**(sizes if stage == "child" else sizes | {"longer": 0}))
    for name, engine in engines.items():
        for task in planned[:1] if name == TRANSFORMERS else planned[:3]:
            mine = without_prefixes(task) if name == TRANSFORMERS else task
            assert mine is not None
            carry_out(run, engine, mine, f"{stage} warm-up")
    for turn in range(args.rounds):
        for task in planned:
            for name in turned(list(engines), turn):
                mine = without_prefixes(task) if name == TRANSFORMERS else task
                if mine is None or (mine.is_slow and turn >= args.slow_rounds):
                    continue
                run.note(stage, turn, name, carry_out(run, engines[name], mine, f"{stage} {turn}"))
        run.console.print(f"{stage}: round {turn + 1} of {args.rounds}", highlight=False)


def children(run: Run) -> None:
    """The stage of child processes."""
    commands = child_commands(run.setting)
    with ExitStack() as stack:
        engines: dict[str, Child] = {}
        for name in run.engines("child"):
            environment = environment_of(name, run.args.threads)
            engines[name] = stack.enter_context(child(commands[name], environment, run.args.start_s))
            engines[name].rest()
            run.versions |= engines[name].about
            run.console.print(f"child: {name} is ready", highlight=False)
        rounds(run, "child", engines)


def servers(run: Run) -> None:
    """The stage of servers that stay."""
    with ExitStack() as stack:
        engines = {}
        for name in run.engines("http"):
            port = free_port()
            url, command = f"http://127.0.0.1:{port}", server_commands(run.setting, port)[name]
            environment = environment_of(name, run.args.threads)
            process, _ = stack.enter_context(started(command, environment, url, run.args.start_s))
            engines[name] = stack.enter_context(served(url, process, run.args.id_max))
            engines[name].rest()
            run.console.print(f"http: {name} is ready", highlight=False)
        rounds(run, "http", engines)


def starts(run: Run) -> None:
    """The stage of starts, one server at a time."""
    names = run.engines("start")
    for name in names:  # what is read from disk once comes from memory afterwards
        start(run, name)
    for turn in range(run.args.starts):
        for name in turned(names, turn):
            run.note("start", turn, name, start(run, name))
    for turn in range(run.args.first_starts):
        for name in turned(names, turn):
            with tempfile.TemporaryDirectory() as empty:
                run.note("first start", turn, name, start(run, name, Path(empty)))


def start(run: Run, name: str, empty: Path | None = None) -> dict[str, float]:
    """Starts one server once; seconds to ready and to its first answer.

    Args:
        run: what is measured.
        name: of the engine, with its mode.
        empty: where it finds that nothing has been compiled yet; None: it finds what it has compiled before.
    """
    port = free_port()
    # The cache directory has the model too, so that without one the model is named by its own directory.
    setting = run.setting if empty is None else replace(run.setting, model=run.setting.directory)
    environment = environment_of(name, run.args.threads, {} if empty is None else compiled_in(empty, name))
    url = f"http://127.0.0.1:{port}"
    with started(server_commands(setting, port)[name], environment, url, run.args.start_s) as (process, ready_s):
        answered_s = ready_s + first_answer_s(url)
        run.console.print(f"start: {name} ready after {ready_s:.1f} s", highlight=False)
        process.rest()
    return {"ready": ready_s, "first_answer": answered_s}


def compiled_in(directory: Path, name: str) -> dict[str, str]:
    """What makes an engine keep what it compiles in another directory."""
    if name == KVIST:
        return {"KVIST_CACHE": str(directory)}
    return {"VLLM_CACHE_ROOT": str(directory / "vllm"), "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}


def table(summaries: Sequence[Summary]) -> Table:
    """Medians, ratios and goals."""
    shown = Table(title="Kvist against its peers: seconds, ratios of the rounds with quartiles")
    for column in ("stage", "metric", "Kvist, s", "peer, s", "peer", "ratio", "goal"):
        shown.add_column(column, justify="right" if column.endswith(" s") else "left")
    for each in summaries:
        ratio = f"{each.ratio.median:.2f} ({each.ratio.q1:.2f}-{each.ratio.q3:.2f}) of {each.ratio.count}"
        goal = "" if each.goal is None else f"{'<=' if each.is_at_most else '>='} {each.goal:g}"
        reached = {None: "", True: " yes", False: " NO"}[each.is_reached]
        seconds = f"{each.ours_s.median:.4g}", f"{each.theirs_s.median:.4g}"
        shown.add_row(each.stage, each.metric, *seconds, each.mode, ratio, goal + reached)
    return shown


def chosen(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Names out of those that are known, separated by commas."""
    found = tuple(text.split(","))
    if unknown := [name for name in found if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return found


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = MODES["http"]
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--peers", type=partial(chosen, known=PEERS), default=PEERS, help=",".join(PEERS))
    parser.add_argument("--vllm", type=partial(chosen, known=modes), default=modes, help=",".join(modes))
    parser.add_argument("--stages", type=partial(chosen, known=tuple(STAGES)), default=tuple(STAGES))
    parser.add_argument("--quick", action="store_true", help="2 rounds, and 1 of what is slow; 1 start")
    for name, default, what in COUNTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"{what} (%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.slow_rounds, args.starts = 2, 1, 1
    for name, *_ in COUNTS:
        if getattr(args, name) < AT_LEAST.get(name, 0):
            parser.error(f"--{name.replace('_', '-')} must be at least {AT_LEAST.get(name, 0)}")
    return args


def write(run: Run, provenance: Provenance) -> None:
    """Writes what there is."""
    if run.args.json is not None:
        results = {"samples": run.samples, "summary": summarise(run.samples)}
        content = script_document("peers", provenance, vars(run.args), results)
        write_json(run.args.json, content | {"versions": run.versions, "failures": run.failures})


def asked_to_end(*_: object) -> NoReturn:
    """Ends all stages; what was started is ended on the way out."""
    sys.exit("compare: was asked to end")


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    # An end that is asked for is an end like any other: children are ended too.
    signal.signal(signal.SIGTERM, asked_to_end)
    provenance = script_provenance("bench/peers/compare.py", argv, seed=args.seed)
    directory = str(locate(args.model).directory)
    shared = {name: getattr(args, name) for name in ("model", "threads", "dtype", "kv_mib")}
    setting = Setting(directory=directory, **shared)
    run = Run(args=args, setting=setting, console=Console(stderr=True))
    for stage in args.stages:
        try:
            STAGES[stage](run)
        except KvistError as error:
            run.failures.append(f"{stage}: {error}")
            run.console.print(run.failures[-1], style="red", highlight=False, markup=False)
        except SystemExit:
            run.failures.append(f"{stage}: was asked to end")
            raise
        finally:
            write(run, provenance)
    Console(width=150).print(table(summarise(run.samples)))
    return 1 if run.failures else 0


STAGES: dict[str, Callable[[Run], None]] = {"child": children, "http": servers, "start": starts}

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"compare: {error}")
