"""Measures what a cached prefix does to the time to first token of one server, one request at a time.

For each prefix length and repeat it sends two prompts with a fresh prefix in common: the first is cold, the second
may be warm. The two follow each other at once, and the lengths take turns, so that whatever drifts on the
machine meets cold and warm alike. A pair at the largest length goes first, uncounted, and shows whether the server
caches at all and says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.lab.answer import Answer
from kvist.lab.client import ServedModel
from kvist.lab.dialect import Completions
from kvist.lab.draw import Span
from kvist.lab.failure import CallError
from kvist.lab.workload import prompt_pair

_COLD_CACHED_MAX = 0.05  # a server that matches token by token may hit a token or two of any prompt

_NO_COUNTS = (
    "{url} does not say how many prompt tokens came from its cache (usage.prompt_tokens_details.cached_tokens), so cold"
    " and warm cannot be told apart; vLLM says it with --enable-prompt-tokens-details"
)
_NO_HITS = (
    "{url} took 0 of {prompt:,} prompt tokens from its cache although it had just seen the first {prefix:,}: its prefix"
    " cache is off, too small, or the prefix is shorter than one block"
)
_NOT_COLD = (
    "{url} had {cached:,} of {prompt:,} tokens of a cold prompt in its cache: it has seen these prompts before;"
    " use another --seed"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftSettings:
    """What to measure.

    Attributes:
        lengths: prefix lengths, in tokens.
        suffix_tokens: tokens that follow the prefix and differ within a pair.
        repeats: pairs per length.
        output_tokens: answer length to ask for.
        token_ids: ids that prompts are made of.
        seed: what the prompts follow from; must be fresh for a server whose cache outlives the run.
    """

    lengths: tuple[int, ...]
    suffix_tokens: int
    repeats: int
    output_tokens: int
    token_ids: Span
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftRow:
    """One measured request.

    Attributes:
        prefix_tokens: length of the prefix that the pair has in common.
        repeat: which pair of that length, from 0.
        phase: the first or the second of the pair.
        ttft_s: time to first token; latency_s: time to the end of the answer.
        prompt_tokens: length of the prompt as the server counts it.
        cached_tokens: of these from its cache; None when it does not say, as some do for none.
        output_tokens: length of the answer.
    """

    prefix_tokens: int
    repeat: int
    phase: Literal["cold", "warm"]
    ttft_s: float
    latency_s: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int


def check_fits(settings: TtftSettings, model: ServedModel) -> None:
    """Refuses lengths that the model cannot take, before anything is sent.

    Raises:
        ConfigError: the longest prompt and its answer exceed the model's maximum.
    """
    longest = max(settings.lengths) + settings.suffix_tokens + settings.output_tokens
    if model.tokens_max is not None and longest > model.tokens_max:
        raise ConfigError(
            f"a prefix of {max(settings.lengths):,} tokens with a suffix of {settings.suffix_tokens} and"
            f" {settings.output_tokens} output tokens is {longest:,} tokens, but {model.name!r} takes at most"
            f" {model.tokens_max:,} (its max_model_len); ask for shorter --lengths"
        )
    pairs = len(settings.lengths) * settings.repeats + 1
    if pairs > settings.token_ids.size:
        raise ConfigError(
            f"{pairs:,} pairs of prompts need as many different first tokens, but --token-ids holds"
            f" {settings.token_ids.size:,}; widen it or ask for fewer repeats"
        )


async def run_ttft(
    completions: Completions, settings: TtftSettings, advance: Callable[[], None]
) -> tuple[TtftRow, ...]:
    """Measures every pair, in the order in which the rows are returned.

    Args:
        completions: the server to ask.
        settings: what to measure.
        advance: called once after each request, the two uncounted ones included.

    Raises:
        ConfigError: the model cannot take the lengths.
        CallError: a request failed, the server reports no cached tokens, or a cold prompt was not cold.
    """
    check_fits(settings, completions.model)
    await _measure_pair(completions, settings, (max(settings.lengths), -1), advance)
    rows: list[TtftRow] = []
    for repeat in range(settings.repeats):
        for length in settings.lengths:
            rows += await _measure_pair(completions, settings, (length, repeat), advance)
    return tuple(rows)


async def _measure_pair(
    completions: Completions, settings: TtftSettings, place: tuple[int, int], advance: Callable[[], None]
) -> tuple[TtftRow, TtftRow]:
    """Sends the pair of one (length, repeat); repeat -1 is the uncounted one."""
    length, repeat = place
    index = 0 if repeat < 0 else 1 + repeat * len(settings.lengths) + settings.lengths.index(length)
    pair = prompt_pair(settings.seed, index, length, settings.suffix_tokens, settings.token_ids)
    cold = _row(place, "cold", await completions.ask(pair.cold, settings.output_tokens), completions.client.url)
    advance()
    _check_cold(cold, completions.client.url)
    warm = _row(place, "warm", await completions.ask(pair.warm, settings.output_tokens), completions.client.url)
    advance()
    if repeat < 0:
        _check_warm(warm, completions.client.url)
    return cold, warm


def _row(place: tuple[int, int], phase: Literal["cold", "warm"], answer: Answer, url: str) -> TtftRow:
    if answer.usage is None:
        raise CallError(_NO_COUNTS.format(url=url), kind="malformed")
    return TtftRow(
        prefix_tokens=place[0],
        repeat=place[1],
        phase=phase,
        ttft_s=answer.ttft_s,
        latency_s=answer.latency_s,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.cached_tokens,
        output_tokens=answer.output_tokens,
    )


def _check_cold(row: TtftRow, url: str) -> None:
    cached = row.cached_tokens or 0
    if cached > _COLD_CACHED_MAX * row.prompt_tokens:
        raise CallError(_NOT_COLD.format(url=url, cached=cached, prompt=row.prompt_tokens), kind="not_cold")


def _check_warm(row: TtftRow, url: str) -> None:
    if row.cached_tokens is None:
        raise CallError(_NO_COUNTS.format(url=url), kind="no_cache_counts")
    if row.cached_tokens == 0:
        raise CallError(_NO_HITS.format(url=url, prompt=row.prompt_tokens, prefix=row.prefix_tokens), kind="no_hits")
