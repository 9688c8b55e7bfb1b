"""Cold prefill of the engine against transformers' own forward pass, interleaved in one process.

    python bench/serve/cold_against_transformers.py --json bench/results/cold.json
    python bench/serve/cold_against_transformers.py --step-tokens 512,1024,2048 --pairs 9

Each round takes one prompt that nobody has seen and gives it to every contestant, each round in another order: the
engine, once for each size of a step (from the submission to the first token, so with hashing, admission and drawing),
and transformers' model with its own attention (sdpa), both with a cache, as `generate` prefills, and without. The
ratio of a round is engine / transformers: below 1 the engine is faster.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvist.app.clock import SystemClock
from kvist.app.engine import read_geometry
from kvist.app.locate import locate
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.base.units import Tokens
from kvist.blocks.keys import namespace_of
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.engine.backends.device import open_device, set_threads, torch_dtype
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.loading import load_model
from kvist.engine.backends.torch_backend import TorchBackend
from kvist.engine.core import EngineCore
from kvist.engine.messages import Admitted, EngineLimits, Event, TokenDrawn
from kvist.engine.request import Request, Sampling
from kvist.engine.settings import EngineSettings
from kvist.geometry.groups import ModelGeometry
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread

BLOCK_TOKENS = 16
CACHED, UNCACHED = "transformers, with cache", "transformers, no cache"

Contestant = Callable[[Sequence[int]], int]
"""Takes a prompt and returns the most likely next token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt given to one contestant; round 0 warms up and is in no summary."""

    prompt_tokens: int
    round: int
    contestant: str
    first_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The engine, with steps of one size, against both ways of transformers at one length.

    Attributes:
        engine_s, cached_s, uncached_s: seconds to the first token.
        against_cached, against_uncached: ratios of the rounds, engine / transformers.
    """

    prompt_tokens: int
    step_tokens: int
    engine_s: Spread
    cached_s: Spread
    uncached_s: Spread
    against_cached: Spread
    against_uncached: Spread


class ColdEngine:
    """An engine that is asked for one token at a time, on the test's own thread."""

    def __init__(self, model: PreTrainedModel, geometry: ModelGeometry, *, dtype: str, step: int, longest: int) -> None:
        """Allocates a pool for two prompts of the longest length."""
        blocks = [2 * (longest // BLOCK_TOKENS + 2)] * len(geometry.groups)
        store = KvStore(
            geometry.groups, blocks, block_tokens=BLOCK_TOKENS, dtype=torch_dtype(dtype), device=open_device("cpu")
        )
        cache = PrefixCache(
            namespace_of({"step": str(step)}),
            [BlockPool(count) for count in blocks],
            [group.window for group in geometry.groups],
            block_tokens=BLOCK_TOKENS,
        )
        settings = EngineSettings(
            groups=geometry.groups,
            kv_bytes=store.nbytes,
            kv_bytes_per_token=geometry.bytes_per_token(dtype),
            block_tokens=BLOCK_TOKENS,
            step_tokens=step,
            sequences_max=1,
        )
        self._core = EngineCore(TorchBackend(model, store), cache, settings, secret=bytes(32))
        self._limits = EngineLimits(
            model_tokens_max=Tokens(longest + 1),
            prompt_tokens_max=Tokens(longest),
            output_tokens_max=Tokens(1),
            longest_request_tokens=Tokens(longest + 1),
            sequences_max=1,
            waiting_max=1,
            vocab_size=geometry.vocab_size,
        )
        self._asked = 0

    def __call__(self, prompt: Sequence[int]) -> int:
        """The first token of an answer; nothing of the prompt may come from the cache."""
        events: list[Event] = []
        self._asked += 1
        request = Request(
            id=RequestId(str(self._asked)),
            tenant=TenantId("bench"),
            prompt=tuple(map(TokenId, prompt)),
            output_tokens_max=Tokens(1),
            sampling=Sampling(temperature=0),
            stop_tokens=frozenset(),
        )
        self._core.submit(request, self._limits, events.append)
        while self._core.has_work:
            self._core.step()
        admitted, drawn, *_ = events
        if not (isinstance(admitted, Admitted) and isinstance(drawn, TokenDrawn)) or admitted.tokens_cached:
            raise ConfigError(f"no cold answer to {len(prompt)} tokens: {events}")
        return drawn.token


def forward(model: PreTrainedModel, *, use_cache: bool) -> Contestant:
    """Transformers' own forward pass, which needs the logits of the last token alone."""

    def first_token(prompt: Sequence[int]) -> int:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([prompt]), use_cache=use_cache, logits_to_keep=1)
        return int(output.logits[0, -1].argmax())

    return first_token


def contestants(args: argparse.Namespace) -> dict[str, Contestant]:
    """All who take part, by name; the engines share one model and transformers has its own."""
    files = locate(args.model)
    geometry = read_geometry(files.directory)
    longest = max(args.lengths)
    if longest >= geometry.positions_max:
        raise ConfigError(f"--lengths {longest} does not fit the model's {geometry.positions_max} positions")
    dtype = torch_dtype(args.dtype)
    ours = load_model(files.directory, geometry, dtype=dtype, device=open_device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(
        files.directory, dtype=dtype, attn_implementation="sdpa", local_files_only=True
    ).eval()
    found: dict[str, Contestant] = {
        CACHED: forward(theirs, use_cache=True),
        UNCACHED: forward(theirs, use_cache=False),
    }
    for step in args.step_tokens:
        found[engine_name(step)] = ColdEngine(ours, geometry, dtype=args.dtype, step=step, longest=longest)
    return found


def engine_name(step: int) -> str:
    return f"engine, steps of {step}"


def measure(args: argparse.Namespace, found: dict[str, Contestant], console: Console) -> list[Sample]:
    """All rounds of all lengths; the first round of each length warms up."""
    clock, samples, names = SystemClock(), [], list(found)
    for length in args.lengths:
        for turn in range(args.pairs + 1):
            prompt = integers(args.seed, f"{length} tokens, round {turn}", length, Span(low=100, high=args.id_max))
            for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
                begun_s = clock.now_s()
                found[name](prompt)
                took_s = clock.now_s() - begun_s
                samples.append(Sample(prompt_tokens=length, round=turn, contestant=name, first_token_s=took_s))
            console.print(f"{length:,} tokens: round {turn} of {args.pairs}", highlight=False)
    return samples


def summarise(samples: Sequence[Sample], step_tokens: Sequence[int]) -> list[Summary]:
    """One summary for each length and size of a step."""
    summaries = []
    for length in dict.fromkeys(sample.prompt_tokens for sample in samples):
        taken = [sample for sample in samples if sample.prompt_tokens == length and sample.round > 0]

        def of(name: str, taken: Sequence[Sample] = taken) -> list[float]:
            return [sample.first_token_s for sample in taken if sample.contestant == name]

        for step in step_tokens:
            engine = of(engine_name(step))
            summaries.append(
                Summary(
                    prompt_tokens=length,
                    step_tokens=step,
                    engine_s=spread(engine),
                    cached_s=spread(of(CACHED)),
                    uncached_s=spread(of(UNCACHED)),
                    against_cached=spread(pairwise_ratios(engine, of(CACHED))),
                    against_uncached=spread(pairwise_ratios(engine, of(UNCACHED))),
                )
            )
    return summaries


def table(summaries: Sequence[Summary]) -> Table:
    """Medians, and the quartiles of the ratios."""
    shown = Table(title="Cold prefill against transformers with a cache and without: seconds, ratios")
    for column in ("tokens", "step", "engine", "cached", "uncached", "against cached", "against uncached"):
        shown.add_column(column, justify="right")
    for each in summaries:
        seconds = [f"{part.median:.3f}" for part in (each.engine_s, each.cached_s, each.uncached_s)]
        ratios = [
            f"{part.median:.2f} ({part.q1:.2f}-{part.q3:.2f})" for part in (each.against_cached, each.against_uncached)
        ]
        shown.add_row(f"{each.prompt_tokens:,}", f"{each.step_tokens:,}", *seconds, *ratios)
    return shown


def numbers(text: str) -> tuple[int, ...]:
    """Positive whole numbers, separated by commas."""
    found = tuple(int(part) for part in text.split(","))
    if any(number < 1 for number in found):
        raise ValueError(text)
    return found


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--lengths", type=numbers, default=(1024, 2048, 4096), help="prompt tokens (1024,2048,4096)")
    parser.add_argument("--step-tokens", type=numbers, default=(1024,), help="sizes of a step to try (1024)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds of each length (%(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="prompts follow from it (%(default)s)")
    parser.add_argument("--id-max", type=int, default=30_000, help="largest token id in a prompt (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all samples and the summary here")
    args = parser.parse_args(argv)
    if args.pairs < 1 or args.threads < 1 or args.id_max < 100:
        parser.error("--pairs and --threads must be at least 1, --id-max at least 100")
    return args


def main(argv: Sequence[str]) -> int:
    args = arguments(argv)
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/serve/cold_against_transformers.py", argv, seed=args.seed)
    set_threads(args.threads)
    samples = measure(args, contestants(args), Console(stderr=True))
    summaries = summarise(samples, args.step_tokens)
    Console().print(table(summaries))
    if args.json is not None:
        results = {"samples": samples, "summary": summaries}
        content = script_document("cold_against_transformers", provenance, vars(args), results) | {
            "torch_version": torch.__version__
        }
        write_json(args.json, content)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KvistError as error:
        sys.exit(f"cold_against_transformers: {error}")
