"""What a TTFT run showed, by prefix length, with its spread; pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.lab.spread import Spread, pairwise_ratios, spread
from kvist.lab.ttft import TtftRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftSummary:
    """All pairs of one prefix length.

    Attributes:
        prefix_tokens: the length.
        prompt_tokens: the warm prompts' length as the server counts it (median).
        cached_tokens: of these from the cache (median, never above it); cached_tokens_min: in the worst pair.
        cold_ttft_s: time to first token of the first prompts; warm_ttft_s: of the second ones.
        speedup: ratio of the medians, cold over warm.
        speedup_pairwise: the ratio of each pair.
    """

    prefix_tokens: int
    prompt_tokens: int
    cached_tokens: int
    cached_tokens_min: int
    cold_ttft_s: Spread
    warm_ttft_s: Spread
    speedup: float
    speedup_pairwise: Spread


def summarise_ttft(rows: Sequence[TtftRow]) -> tuple[TtftSummary, ...]:
    """One summary per prefix length, shortest first."""
    return tuple(_of_length(rows, length) for length in sorted({row.prefix_tokens for row in rows}))


def explain_ttft(summary: TtftSummary) -> str:
    """Why the warm requests of a length were faster, or that they were not, in one sentence."""
    computed = summary.prompt_tokens - summary.cached_tokens
    fact = (
        f"{summary.cached_tokens:,} of {summary.prompt_tokens:,} prompt tokens came from the cache and only"
        f" {computed:,} were computed"
    )
    if summary.speedup > 1:
        return (
            f"At {summary.prefix_tokens:,} tokens warm is {summary.speedup:.1f}x faster"
            f" (median pair {summary.speedup_pairwise.median:.1f}x) because {fact}."
        )
    return f"At {summary.prefix_tokens:,} tokens warm is not faster ({summary.speedup:.2f}x) although {fact}."


def shortfalls(summaries: Sequence[TtftSummary], ratios_max: Sequence[float]) -> tuple[str, ...]:
    """Lengths whose warm TTFT is a larger part of the cold one than allowed, in words; empty when all are within.

    Args:
        summaries: by length, shortest first.
        ratios_max: one bound of warm / cold (medians) per summary, in the same order.
    """
    return tuple(
        f"at {summary.prefix_tokens:,} tokens warm TTFT is {1 / summary.speedup:.4f} of cold,"
        f" above the bound of {bound:g} ({summary.speedup:.1f}x instead of at least {1 / bound:.1f}x)"
        for summary, bound in zip(summaries, ratios_max, strict=True)
        if 1 / summary.speedup > bound
    )


def _of_length(rows: Sequence[TtftRow], length: int) -> TtftSummary:
    cold = [row for row in rows if row.prefix_tokens == length and row.phase == "cold"]
    warm = [row for row in rows if row.prefix_tokens == length and row.phase == "warm"]
    cold_s, warm_s = [row.ttft_s for row in cold], [row.ttft_s for row in warm]
    cached = [row.cached_tokens or 0 for row in warm]
    of_cold, of_warm = spread(cold_s), spread(warm_s)
    return TtftSummary(
        prefix_tokens=length,
        prompt_tokens=statistics.median_low(row.prompt_tokens for row in warm),
        cached_tokens=statistics.median_low(cached),
        cached_tokens_min=min(cached),
        cold_ttft_s=of_cold,
        warm_ttft_s=of_warm,
        speedup=of_cold.median / of_warm.median,
        speedup_pairwise=spread(pairwise_ratios(cold_s, warm_s)),
    )
