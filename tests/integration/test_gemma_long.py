"""Gemma answers 32,000 tokens, cold and warm alike, within memory that does not grow with the square of the length.

In float32, where a warm answer must be the cold one. Five of six layers look back 512 tokens: of those, a sequence
holds a window and a step, and the cache keeps a window every 4,096 tokens and one before the prompt's end.
"""

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvist.app.memory import bytes_peak, bytes_resident, start_peak
from kvist.base.units import format_bytes
from kvist.engine.backends.tokenizer import load_tokenizer
from kvist.engine.messages import BlockCounts
from kvist.planner.budget import blocks_held_peak
from real.engine import BLOCK_TOKENS, Answer, RealEngine, blocks_for, greedy, load_weights
from real.prompts import book

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(3600)]

PROMPT_TOKENS = 32_000
OUTPUT_TOKENS = 16
STEP_TOKENS = 1024
CHECKPOINT_TOKENS = 4096
KV_BYTES = 512 * 2**20
GROWTH_MAX = 300 * 2**20
"""Beyond weights and KV. One layer's scores of one step, written out, would take 500 MiB by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRuns:
    """A cold run, a warm run and one that asks something else about the same book.

    Attributes:
        answers: by run.
        used_most: by KV group, the most blocks that were in use after any step.
        counts: blocks by state when all was over.
        peak, before: bytes resident at most, and before the first run.
    """

    engine: RealEngine
    answers: dict[str, Answer]
    used_most: list[int]
    counts: tuple[BlockCounts, ...]
    peak: int
    before: int


def resident_at_rest() -> int:
    """Bytes resident once what is free has gone back to the system: loading leaves much that would hide growth."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return bytes_resident()


@pytest.fixture(scope="module")
def runs() -> LongRuns:
    weights = load_weights("gemma3-270m", "float32")
    bounds = {"tokens_max": weights.geometry.positions_max, "step_tokens": STEP_TOKENS}
    engine = RealEngine(weights, blocks_for(weights, KV_BYTES, **bounds), **bounds, keep=(0, OUTPUT_TOKENS - 1))
    tokens = load_tokenizer(weights.files.directory).encode(book(30))
    prompt = tokens[:PROMPT_TOKENS]
    other = prompt[: PROMPT_TOKENS - 100] + tokens[-60:]
    used_most = [0] * len(engine.cache.pools)

    def note() -> None:
        for group, counts in enumerate(engine.core.statistics().blocks):
            used_most[group] = max(used_most[group], counts.used)

    answers: dict[str, Answer] = {}
    before = resident_at_rest()
    start_peak()
    for run, asked in (("cold", prompt), ("warm", prompt), ("other end", other)):
        answers[run] = engine.submit(greedy(run, asked, OUTPUT_TOKENS))
        engine.run(note)
    return LongRuns(
        engine=engine,
        answers=answers,
        used_most=used_most,
        counts=engine.core.statistics().blocks,
        peak=bytes_peak(),
        before=before,
    )


def test_warm_answers_what_cold_answered(runs: LongRuns) -> None:
    cold, warm = runs.answers["cold"], runs.answers["warm"]
    assert len(cold.tokens) == OUTPUT_TOKENS
    assert cold.tokens == warm.tokens
    assert len(set(cold.tokens)) > 1
    for index in (0, OUTPUT_TOKENS - 1):
        difference = runs.engine.backend.kept["cold", index] - runs.engine.backend.kept["warm", index]
        assert float(difference.abs().max()) <= 1e-3


def test_warm_computes_only_the_last_block_and_is_far_faster(runs: LongRuns, measured: Callable[[str], None]) -> None:
    cold, warm, other = (runs.answers[run] for run in ("cold", "warm", "other end"))
    measured(f"TTFT at 32,000 tokens: cold {cold.ttft_s:.1f} s, warm {warm.ttft_s:.2f} s, other {other.ttft_s:.2f} s")
    assert cold.tokens_cached == 0
    assert warm.tokens_cached == (PROMPT_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert cold.ttft_s > 20 * warm.ttft_s


def test_another_end_of_the_same_book_is_warm_too(runs: LongRuns) -> None:
    assert runs.answers["other end"].tokens_cached == (PROMPT_TOKENS - 100) // BLOCK_TOKENS * BLOCK_TOKENS


def test_the_window_holds_and_keeps_a_bounded_number_of_blocks(runs: LongRuns) -> None:
    full, windowed = runs.engine.core._settings.groups
    assert windowed.window == 512
    longest = PROMPT_TOKENS + OUTPUT_TOKENS - 1
    for group, most in zip((full, windowed), runs.used_most, strict=True):
        assert most <= blocks_held_peak(group, longest, step_tokens=STEP_TOKENS, block_tokens=BLOCK_TOKENS)
    assert runs.used_most[0] == -(-longest // BLOCK_TOKENS)
    window_blocks = windowed.window // BLOCK_TOKENS
    # Regular checkpoints; then the end of each of two prompts and outputs, with the slack of 128 tokens before it.
    kept_most = longest // CHECKPOINT_TOKENS * window_blocks + 2 * (window_blocks + 128 // BLOCK_TOKENS + 2)
    assert [counts.used for counts in runs.counts] == [0, 0]
    assert window_blocks <= runs.counts[1].cached <= kept_most
    assert runs.counts[0].cached > 6 * runs.counts[1].cached


def test_memory_stays_within_its_bound(runs: LongRuns, measured: Callable[[str], None]) -> None:
    measured(f"peak memory {format_bytes(runs.peak)}, {format_bytes(runs.peak - runs.before)} above weights and KV")
    assert runs.peak - runs.before <= GROWTH_MAX
    assert runs.engine.store.nbytes <= KV_BYTES
