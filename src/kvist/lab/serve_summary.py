"""What a serve run showed: rates, latencies, hits and errors; pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvist.lab.serve import Broken, Completed, ServeRun
from kvist.lab.spread import Percentiles, percentiles
from kvist.lab.workload import PlannedRequest, tokens_reusable


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSummary:
    """All requests of one run. Latencies and tokens are those of the completed ones.

    Attributes:
        requests: planned; completed plus failed make as many.
        errors: failures by kind.
        duration_s: from the first start to the last end.
        requests_per_s, output_tokens_per_s, total_tokens_per_s: completed work over the duration; total is
            prompt plus output.
        prompt_tokens, output_tokens: sums.
        cached_tokens: prompt tokens from the server's cache; cached_fraction: of all prompt tokens; None when it
            never says.
        reusable_fraction: what a cache without limits could have served of the plan from the run's own requests.
        ttft_s: time to first token; latency_s: time to the end; None when nothing completed.
        inter_token_s: times between token events, of all answers together; None when no answer had two.
        time_per_output_token_s: mean time per token after the first, one value per answer; None likewise.
        short_answers: answers shorter than asked for, as a server that ignores or refuses ignore_eos gives them.
        late_s_max: the most that this client was behind its own plan.
    """

    requests: int
    completed: int
    failed: int
    errors: dict[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    cached_fraction: float | None
    reusable_fraction: float
    ttft_s: Percentiles | None
    inter_token_s: Percentiles | None
    time_per_output_token_s: Percentiles | None
    latency_s: Percentiles | None
    short_answers: int
    late_s_max: float


def summarise_serve(run: ServeRun, plan: Sequence[PlannedRequest]) -> ServeSummary:
    """Sums up a run of a plan."""
    done = [row for row in run.rows if isinstance(row, Completed)]
    broken = [row for row in run.rows if isinstance(row, Broken)]
    prompt_tokens = sum(row.prompt_tokens for row in done)
    output_tokens = sum(row.output_tokens for row in done)
    counts = [row.cached_tokens for row in done if row.cached_tokens is not None]
    cached_tokens = sum(counts) if counts else None  # servers that say nothing of a miss do say something of a hit
    per_token = [row.time_per_output_token_s for row in done if row.time_per_output_token_s is not None]
    return ServeSummary(
        requests=len(run.rows),
        completed=len(done),
        failed=len(broken),
        errors=dict(sorted(Counter(row.error_kind for row in broken).items())),
        duration_s=run.duration_s,
        requests_per_s=len(done) / run.duration_s,
        output_tokens_per_s=output_tokens / run.duration_s,
        total_tokens_per_s=(prompt_tokens + output_tokens) / run.duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
        cached_fraction=None if cached_tokens is None else cached_tokens / max(prompt_tokens, 1),
        reusable_fraction=tokens_reusable(tuple(plan)) / sum(len(request.prompt) for request in plan),
        ttft_s=_percentiles([row.ttft_s for row in done]),
        inter_token_s=_percentiles([gap for row in done for gap in row.gaps_s]),
        time_per_output_token_s=_percentiles(per_token),
        latency_s=_percentiles([row.latency_s for row in done]),
        short_answers=sum(row.output_tokens < row.output_tokens_asked for row in done),
        late_s_max=max((row.late_s for row in done), default=0.0),
    )


def remarks(summary: ServeSummary) -> tuple[str, ...]:
    """What a reader of the numbers must know to read them rightly, a sentence each."""
    found = []
    if summary.cached_fraction is None:
        found.append("The server does not say how many prompt tokens came from its cache.")
    elif summary.failed == 0 and summary.cached_fraction > summary.reusable_fraction + 0.01:
        found.append(
            f"{summary.cached_fraction:.1%} of the prompt tokens were cached, but the run's own requests explain at"
            f" most {summary.reusable_fraction:.1%}: the server had seen these prompts before; use another --seed."
        )
    if summary.short_answers:
        found.append(
            f"{summary.short_answers} of {summary.completed} answers were shorter than asked for: the model ended them."
        )
    if summary.late_s_max > 0.1:
        found.append(
            f"Requests left this client up to {summary.late_s_max:.2f} s after their planned time: the client, not only"
            " the server, was the bottleneck."
        )
    return tuple(found)


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    return percentiles(values) if values else None
