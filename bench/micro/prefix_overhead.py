"""What the prefix cache costs a prompt that it has nothing of, as a share of the time that computing it takes.

    python bench/micro/prefix_overhead.py --json bench/results/prefix-overhead.json

Each round takes one prompt that nobody has seen. An engine computes it, from the submission to the first token; and the
cache's own work is done for it again, with books that are as full as the engine's and give up as many blocks: its
hashes, the look that finds nothing, the claim on what it will compute, the sealing of its blocks after each step, and
keeping them when it ends. Blocks are allocated for a prompt with a cache or without, so that is not timed.
"""

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rounds import parser_of

from kvist.app.engine import read_geometry
from kvist.app.locate import locate
from kvist.base.errors import ConfigError, KvistError
from kvist.base.ids import RequestId, TenantId, TokenId
from kvist.blocks.keys import HashChain, namespace_of, tenant_key
from kvist.blocks.pool import BlockPool
from kvist.blocks.prefix import PrefixCache
from kvist.blocks.table import BlockTable
from kvist.blocks.window import Marks, Retention
from kvist.engine.backends.device import open_device, set_threads, torch_dtype
from kvist.engine.backends.loading import load_model
from kvist.engine.in_flight import InFlight
from kvist.geometry.groups import ModelGeometry
from kvist.lab.draw import Span, integers
from kvist.lab.report import check_writable, script_document, script_provenance, write_json
from kvist.lab.spread import Spread, pairwise_ratios, spread

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from cold_against_transformers import BLOCK_TOKENS, ColdEngine, numbers  # after the path that has it

STEP_TOKENS, LABEL = 1024, "prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One prompt; round 0 warms up and is in no summary.

    Attributes:
        prefill_s: of the engine, to the first token.
        hash_s, match_s, seal_s: of the cache's work alone; claims are part of matching, keeping is of sealing.
    """

    prompt_tokens: int
    round: int
    prefill_s: float
    hash_s: float
    match_s: float
    seal_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All prompts of one length; `share` is of the rounds, everything that the cache does / the prefill."""

    prompt_tokens: int
    prefill_s: Spread
    hash_s: Spread
    match_s: Spread
    seal_s: Spread
    share: Spread


class Books:
    """What a prefix cache does for prompts, without anybody who computes them."""

    def __init__(self, geometry: ModelGeometry, longest: int) -> None:
        """As many blocks as the engine has."""
        pools = [BlockPool(2 * (longest // BLOCK_TOKENS + 2)) for _ in geometry.groups]
        windows = [group.window for group in geometry.groups]
        self._cache = PrefixCache(namespace_of({}), pools, windows, block_tokens=BLOCK_TOKENS)
        self._in_flight = InFlight()
        self._key = tenant_key(bytes(32), TenantId("bench"))

    def begin(self, prompt: list[TokenId]) -> tuple[HashChain, float]:
        """Hashes a prompt; and how long that took."""
        begun_s = time.perf_counter()
        chain = HashChain(self._key, block_tokens=BLOCK_TOKENS)
        chain.extend_to(prompt)
        return chain, time.perf_counter() - begun_s

    def match(self, owner: RequestId, chain: HashChain, prompt: list[TokenId]) -> float:
        """Finds nothing and claims everything.

        Raises:
            ConfigError: something was found.
        """
        begun_s = time.perf_counter()
        hashes = chain.extend_to(prompt)
        hit = self._cache.match(hashes, tokens=len(prompt))
        self._in_flight.claim(owner, hashes[hit.tokens // BLOCK_TOKENS :])
        took_s = time.perf_counter() - begun_s
        if hit.tokens:
            raise ConfigError(f"{hit.tokens} tokens of a new prompt were found")
        return took_s

    def seal(self, owner: RequestId, chain: HashChain, prompt: list[TokenId]) -> float:
        """Seals the blocks of each step and keeps them."""
        table, took_s, marks = BlockTable(self._cache, owner, Retention()), 0.0, Marks(prompt_tokens=len(prompt))
        for start in range(0, len(prompt), STEP_TOKENS):
            end = min(start + STEP_TOKENS, len(prompt))
            table.grow(end)
            begun_s = time.perf_counter()
            table.commit(chain.extend_to(prompt), end, marks)
            self._in_flight.settle(owner, end // BLOCK_TOKENS - start // BLOCK_TOKENS)
            took_s += time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        self._in_flight.drop(owner)
        table.keep_window()
        took_s += time.perf_counter() - begun_s
        table.release()
        return took_s


def measure(args: argparse.Namespace) -> list[Sample]:
    """All rounds, each with every length."""
    files = locate(args.model)
    geometry, longest = read_geometry(files.directory), max(args.lengths)
    model = load_model(files.directory, geometry, dtype=torch_dtype(args.dtype), device=open_device("cpu"))
    engine = ColdEngine(model, geometry, dtype=args.dtype, step=STEP_TOKENS, longest=longest)
    books, samples = Books(geometry, longest), []
    gc.collect()
    gc.freeze()  # as a server does once it is ready
    for turn in range(args.rounds + 1):
        for length in args.lengths:
            prompt = integers(args.seed, f"{LABEL} {turn}, {length}", length, Span(low=100, high=args.id_max))
            tokens, owner = list(map(TokenId, prompt)), RequestId(f"{turn}, {length}")
            begun_s = time.perf_counter()
            engine(prompt)
            prefill_s = time.perf_counter() - begun_s
            chain, hash_s = books.begin(tokens)
            match_s = books.match(owner, chain, tokens)
            seal_s = books.seal(owner, chain, tokens)
            samples.append(
                Sample(
                    prompt_tokens=length,
                    round=turn,
                    prefill_s=prefill_s,
                    hash_s=hash_s,
                    match_s=match_s,
                    seal_s=seal_s,
                )
            )
    return samples


def summarise(samples: Sequence[Sample]) -> list[Summary]:
    """One summary for each length."""
    summaries = []
    for length in dict.fromkeys(sample.prompt_tokens for sample in samples):
        taken = [sample for sample in samples if sample.prompt_tokens == length and sample.round > 0]
        prefills = [each.prefill_s for each in taken]
        summaries.append(
            Summary(
                prompt_tokens=length,
                prefill_s=spread(prefills),
                hash_s=spread([each.hash_s for each in taken]),
                match_s=spread([each.match_s for each in taken]),
                seal_s=spread([each.seal_s for each in taken]),
                share=spread(pairwise_ratios([each.hash_s + each.match_s + each.seal_s for each in taken], prefills)),
            )
        )
    return summaries


def table(summaries: Sequence[Summary]) -> Table:
    """Medians, and the quartiles of the share."""
    shown = Table(title="What the prefix cache costs a cold prompt")
    for column in ("tokens", "prefill, ms", "hash, us", "match, us", "seal, us", "share"):
        shown.add_column(column, justify="right")
    for each in summaries:
        parts = [f"{part.median * 1e6:,.0f}" for part in (each.hash_s, each.match_s, each.seal_s)]
        share = f"{each.share.median:.3%} ({each.share.q1:.3%}-{each.share.q3:.3%})"
        shown.add_row(f"{each.prompt_tokens:,}", f"{each.prefill_s.median * 1e3:,.0f}", *parts, share)
    return shown


def main(argv: Sequence[str]) -> None:
    parser = parser_of(__doc__)
    parser.set_defaults(rounds=9)
    parser.add_argument("--model", default="smollm2", help="a fetched model's name, or a directory (%(default)s)")
    parser.add_argument("--lengths", type=numbers, default=(1024, 3000), help="prompt tokens, with commas (1024,3000)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (%(default)s)")
    parser.add_argument("--id-max", type=int, default=30_000, help="largest token id in a prompt (%(default)s)")
    args = parser.parse_args(argv)
    if args.rounds < 1 or args.threads < 1 or args.id_max < 100:
        parser.error("--rounds and --threads must be at least 1, --id-max at least 100")
    if args.json is not None:
        check_writable(args.json)
    provenance = script_provenance("bench/micro/prefix_overhead.py", argv, seed=args.seed)
    set_threads(args.threads)
    samples = measure(args)
    summaries = summarise(samples)
    Console(width=120).print(table(summaries))
    if args.json is not None:
        results: dict[str, Sequence[object]] = {"samples": samples, "summary": summaries}
        write_json(args.json, script_document("prefix_overhead", provenance, vars(args), results))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvistError as error:
        sys.exit(f"prefix_overhead: {error}")
