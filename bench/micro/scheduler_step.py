"""What the engine's own work costs in each step of a steady decode: planning, blocks, books, stop checks.

    python bench/micro/scheduler_step.py --json bench/results/scheduler-step.json

A whole engine over a backend that computes nothing and answers one token always; whoever receives the answers does
nothing with them. Requests have prompts of different lengths, so that in each step about one in sixteen of them fills a
block. A round is as many steps as a block has tokens, twice over. With tiers, a tier in memory takes every block: what
is measured is the engine's thread, offers included, while others move what it stores.
"""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rounds import Case, Sample, parser_of, summarise, table

from kvist.app.clock import SystemCalendar, SystemClock
from kvist.base.errors import KvistError
from kvist.base.ids import BlockId, RequestId, TenantId, TokenId
from kvist.base.units import Bytes, Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.cost.prefill import Work, prefill_model
from kvist.engine.batch import Batch, Drawn
from kvist.engine.below import Below
from kvist.engine.core import EngineCore
from kvist.engine.form import form_of
from kvist.engine.messages import EngineLimits, Event
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.fabric.carry import Reach
from kvist.fabric.claims import BookLimits
from kvist.fabric.control import Fabric
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.settings import FabricSettings, TierSettings
from kvist.geometry.groups import KvGroup
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.tiers.memory import MemoryTier
from kvist.tiers.regions import Region, RegionId, Regions
from kvist.tiers.verified import verified

BLOCK_TOKENS, PROMPT_TOKENS, SPREAD = 16, 100, 64
NO_LIMIT = Tokens(10**9)
SAMPLINGS = {"greedy": Sampling(temperature=0), "sampled": Sampling(temperature=1.0)}
GROUPS = {"full attention": (None,), "full attention and a window of 512": (None, Tokens(512))}


class Still:
    """A backend that computes nothing, and knows when it was called.

    Attributes:
        called_s: by the thread's own clock; returned_s: likewise.
    """

    def __init__(self) -> None:
        self.called_s = self.returned_s = 0.0
        self._answer = Drawn(TokenId(5))

    def run(self, batch: Batch) -> list[Drawn | None]:
        self.called_s = time.thread_time()
        answers = [None if draw is None else self._answer for draw in batch.draws]
        self.returned_s = time.thread_time()
        return answers

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Leaves the buffers as they are."""

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Nothing is ever loaded."""


def below_of(groups: Sequence[KvGroup], blocks: int) -> Below:
    """One tier in memory that has room for so many blocks of each group."""
    regions, clock, name = Regions(), SystemClock(), TierName("dram")
    forms = tuple(form_of(group, "bfloat16", BLOCK_TOKENS) for group in groups)
    size = 2 * blocks * sum(form.record_bytes for form in forms)
    staging = regions.add(Region(RegionId("staging"), 4096 * max(form.record_bytes for form in forms)))
    slab = regions.add(Region(RegionId("dram"), size))
    settings = FabricSettings(
        namespace=namespace_of({}),
        block_tokens=Tokens(BLOCK_TOKENS),
        windows=tuple(group.window for group in groups),
        forms=forms,
        tiers=(
            TierSettings(name=name, kind="dram", limits=BookLimits(bytes_max=size, extent_bytes=2**20), region=slab.id),
        ),
        prefill=prefill_model(Work(parameters=10**9, attention_width=4096), step_tokens=Tokens(1024)),
        staging=staging.id,
        staging_bytes=staging.size,
    )
    movers = Movers(Reach(tiers={name: verified(MemoryTier(name, slab))}, regions=regions, clock=clock))
    return Below(tiers=Fabric(settings, movers, clock, SystemCalendar()), view=regions.view, time_s=clock.now_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured.

    Attributes:
        running: requests that decode.
        windows: by KV group.
        sampling: of all requests.
        has_tiers: whether what fills is stored below.
    """

    running: int
    windows: tuple[Tokens | None, ...]
    sampling: Sampling
    has_tiers: bool


class Decode:
    """An engine whose requests all decode, for as long as one likes."""

    def __init__(self, setting: Setting, steps: int) -> None:
        self.backend, count = Still(), setting.running
        blocks = count * (-(-(PROMPT_TOKENS + 2 * SPREAD + steps) // BLOCK_TOKENS) + 1)
        groups = tuple(
            KvGroup(layers=(layer,), kv_heads=1, head_dim_k=8, head_dim_v=8, window=window)
            for layer, window in enumerate(setting.windows)
        )
        pools = [BlockPool(blocks) for _ in groups]
        cache = PrefixCache(namespace_of({}), pools, setting.windows, block_tokens=BLOCK_TOKENS)
        settings = EngineSettings(
            groups=groups,
            kv_bytes=Bytes(0),
            kv_bytes_per_token=Bytes(0),
            block_tokens=BLOCK_TOKENS,
            sequences_max=count,
        )
        self.below = below_of(groups, blocks) if setting.has_tiers else Below()
        self.core = EngineCore(self.backend, cache, settings, secret=b"", below=self.below)
        for number in range(count):
            self.submit(number, setting.sampling, steps)
        while not self.is_steady(count):
            assert self.core.step(), "some requests cannot run"
        for _ in range(BLOCK_TOKENS):
            self.core.step()

    def submit(self, number: int, sampling: Sampling, steps: int) -> None:
        limits = EngineLimits(
            model_tokens_max=NO_LIMIT,
            prompt_tokens_max=NO_LIMIT,
            output_tokens_max=NO_LIMIT,
            longest_request_tokens=NO_LIMIT,
            sequences_max=number + 1,
            waiting_max=1,
            vocab_size=2**16,
        )
        request = Request(
            id=RequestId(f"request {number}"),
            tenant=TenantId("blue"),
            prompt=(TokenId(number),) * (PROMPT_TOKENS + number % SPREAD),
            output_tokens_max=Tokens(steps + SPREAD),
            sampling=sampling,
            stop_tokens=frozenset({TokenId(2), TokenId(3)}),
        )
        self.core.submit(request, limits, _ignore)

    def is_steady(self, count: int) -> bool:
        statistics = self.core.statistics()
        assert not statistics.finished, "some requests cannot run beside the others"
        return statistics.running == count and statistics.tokens_output >= count

    def step(self) -> tuple[float, float]:
        """Seconds until the backend is called, and from when it has answered."""
        begun_s = time.thread_time()
        self.core.step()
        return self.backend.called_s - begun_s, time.thread_time() - self.backend.returned_s

    def close(self) -> None:
        if isinstance(self.below.tiers, Fabric):
            self.below.tiers.close(10.0)


def _ignore(event: Event) -> None:
    """What the receiver does is not the scheduler's time."""


PARTS = ("whole", "plan, reserve and batch", "commit and hand out")


def measured(names: dict[str, Decode], rounds: int, steps: int) -> list[Sample]:
    """Every engine in every round, each round in another order; a sample is the time of `steps` steps."""
    samples = []
    for turn in range(rounds + 1):
        order = list(names)
        start = turn % len(order)
        for name in (*order[start:], *order[:start]):
            parts = [names[name].step() for _ in range(steps)]
            before_s, after_s = sum(each for each, _ in parts), sum(each for _, each in parts)
            for part, took_s in zip(PARTS, (before_s + after_s, before_s, after_s), strict=True):
                samples.append(Sample(case=f"{name}: {part}", round=turn, cpu_s=took_s))
    return samples


def settings_of(args: argparse.Namespace) -> dict[str, Setting]:
    found = {}
    for count in args.running:
        for windows_name, windows in GROUPS.items():
            for sampling_name, sampling in SAMPLINGS.items():
                for has_tiers in (False, True):
                    if sampling_name == "sampled" and (has_tiers or len(windows) > 1):
                        continue  # what a number for each draw costs depends on neither
                    name = f"{count} {sampling_name}, {windows_name}{', tiers' if has_tiers else ''}"
                    found[name] = Setting(running=count, windows=windows, sampling=sampling, has_tiers=has_tiers)
    return found


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256], help="requests (%(default)s)")
    parser.add_argument("--steps", type=int, default=2 * BLOCK_TOKENS, help="steps per round (%(default)s)")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.steps < 1 or min(args.running) < 1:
        parser.error("--rounds, --steps and --running must be at least 1")
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/micro/scheduler_step.py", argv, seed=args.seed)
    engines = {
        name: Decode(setting, (args.rounds + 3) * args.steps + 64) for name, setting in settings_of(args).items()
    }
    gc.collect()
    gc.freeze()  # as a server does once it is ready: what it was made of is not looked through again and again
    samples = measured(engines, args.rounds, args.steps)
    for engine in engines.values():
        engine.close()
    cases = [
        Case(name=f"{name}: {part}", unit="steps", units=args.steps, run=engine.step)
        for name, engine in engines.items()
        for part in PARTS
    ]
    summaries = summarise(cases, samples)
    Console(width=170).print(table("scheduler_step", summaries))
    if args.json is not None:
        results: dict[str, Sequence[object]] = {"samples": samples, "summary": summaries}
        write_json(args.json, script_document("scheduler_step", provenance, vars(args), results))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"scheduler_step: {error}")
