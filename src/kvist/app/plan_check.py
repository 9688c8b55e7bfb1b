"""Compares a plan with what a running server reports, figure by figure, and says where each difference is from.

Knows figures; that settings differ, and what that changes, is found by `kvist.app.plan_as_run`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvist.app.plan import AUTO, Answer
from kvist.app.plan_as_run import AsRun, as_run
from kvist.app.plan_reported import Reported
from kvist.base.errors import ConfigError
from kvist.base.units import format_bytes
from kvist.planner.capacity import vllm_pool
from kvist.planner.plan import Plan

Figure = int | float | str

_WEIGHTS_PART = 0.05
"""By more than this part weights differ only if they are others."""

_FLAGS = {"vllm": "vLLM", "kvist": "Kvist's own engine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure; None: not planned, or not reported.

    Attributes:
        name: with its unit, as in the JSON of the plan.
        planned: before anything was compared.
        reported: by the server.
    """

    name: str
    planned: Figure | None
    reported: Figure | None

    @property
    def difference(self) -> int | float | None:
        """Reported less planned; None where one of them is no number."""
        if isinstance(self.planned, int | float) and isinstance(self.reported, int | float):
            return self.reported - self.planned
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The comparison.

    Attributes:
        reported: what the server said.
        rows: the figures.
        reasons: a sentence for each setting that differs, and for each estimate that was measured.
        doubts: a sentence for each difference that nothing explains; none: the plan is right about this server.
    """

    reported: Reported
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]
    doubts: tuple[str, ...]


def checked(answer: Answer, reported: Reported) -> Check:
    """Compares.

    Raises:
        ConfigError: the plan is by the rules of another engine.
    """
    if answer.deployment.rules != reported.rules:
        raise ConfigError(
            f"{reported.url} is {_FLAGS[reported.rules]}, and the plan is by the rules of"
            f" {_FLAGS[answer.deployment.rules]}; give --engine {reported.rules}"
        )
    run = as_run(answer.deployment, reported)
    rows = tuple(_rows(answer, run, reported))
    reasons, doubts = [*run.reasons], [*run.doubts]
    if run.plan.blocks != reported.blocks:
        doubts.append(_other_blocks(run, reported))
    elif reported.rules == "vllm":
        _compare_tokens(run, reported, reasons, doubts)
    else:
        _compare_sizes(run.plan, reported, reasons, doubts)
    return Check(reported=reported, rows=rows, reasons=tuple(reasons), doubts=tuple(doubts))


def _rows(answer: Answer, run: AsRun, reported: Reported) -> Iterator[Row]:
    planned, asked = answer.plan, answer.deployment
    yield Row(name="context_tokens", planned=asked.context_tokens, reported=reported.tokens_max)
    own_dtype = run.deployment.form.kv.name if reported.dtype == AUTO else reported.dtype
    yield Row(name="kv_dtype", planned=asked.form.kv.name, reported=own_dtype)
    for tokens in sorted(set(planned.block_tokens)):
        yield Row(name="block_tokens", planned=tokens, reported=reported.block_tokens)
    pools = zip(planned.blocks, reported.blocks, strict=False)
    for pool, (count, own) in enumerate(pools):
        name = "blocks" if len(planned.blocks) == 1 else f"blocks_of_pool_{pool}"
        yield Row(name=name, planned=count, reported=own)
    yield Row(name="kv_bytes", planned=_pool_bytes(planned), reported=_own_bytes(run.plan, reported))
    yield Row(name="tokens_capacity", planned=planned.tokens_capacity, reported=reported.tokens)
    if reported.rules == "vllm":
        yield Row(name="concurrency_printed", planned=planned.concurrency_printed, reported=reported.concurrency)
        return
    yield Row(name="kv_bytes_per_token", planned=planned.kv_bytes_per_token, reported=reported.bytes_per_token)
    yield Row(name="weights_bytes", planned=planned.weights_bytes, reported=reported.weights_bytes)
    yield Row(name="workspace_bytes", planned=planned.workspace_bytes_per_rank, reported=reported.workspace_bytes)


def _pool_bytes(found: Plan) -> int:
    """Bytes of all blocks of an accelerator."""
    return sum(count * size for count, size in zip(found.blocks, found.block_bytes_per_rank, strict=True))


def _own_bytes(found: Plan, reported: Reported) -> int | None:
    """Of the server: vLLM tells blocks only, whose size follows from its settings."""
    if reported.rules == "kvist":
        return reported.kv_bytes
    return reported.blocks[0] * sum(found.block_bytes_per_rank)


def _other_blocks(run: AsRun, reported: Reported) -> str:
    planned, own = (" + ".join(f"{count:,}" for count in counts) for counts in (run.plan.blocks, reported.blocks))
    return (
        f"with all the settings that the server tells, the plan has {planned} blocks and the server {own}: it serves"
        " another model, or was started in a way that it does not tell"
    )


def _compare_tokens(run: AsRun, reported: Reported, reasons: list[str], doubts: list[str]) -> None:
    """The figures that vLLM derives from its blocks."""
    before = vllm_pool(run.deployment, run.plan.blocks[0]).printed_tokens_before_2026()
    if reported.tokens is None:
        reasons.append(
            "this release reports no KV cache size in tokens; what its log calls so may be of the formula before 2026,"
            f" which gives {before:,}"
        )
    elif reported.tokens == run.plan.tokens_capacity:
        return
    elif reported.tokens == before:
        reasons.append(
            f"the server counts {before:,} tokens by the formula before 2026: blocks of one group, times their tokens"
        )
    else:
        doubts.append(
            f"of as many blocks the plan counts {run.plan.tokens_capacity:,} tokens and the server {reported.tokens:,}:"
            " its release has other rules, or it takes longer steps than are usual"
        )


def _compare_sizes(found: Plan, reported: Reported, reasons: list[str], doubts: list[str]) -> None:
    """What Kvist's own engine measures, against what the plan says or estimates."""
    if reported.bytes_per_token != found.kv_bytes_per_token:
        doubts.append(
            f"a token takes {found.kv_bytes_per_token:,} bytes of KV in the plan and {reported.bytes_per_token:,} in"
            " the server: it serves another model"
        )
    own = reported.weights_bytes
    if own is not None and own != found.weights_bytes:
        why = f"weights: planned {format_bytes(found.weights_bytes)}, the server holds {format_bytes(own)}"
        if abs(own - found.weights_bytes) > _WEIGHTS_PART * found.weights_bytes:
            doubts.append(f"{why}: those of another model, or in another format")
        else:
            reasons.append(f"{why}; files hold more than weights, and what is counted leaves out norms")
    if reported.workspace_bytes is not None and reported.workspace_bytes != found.workspace_bytes_per_rank:
        planned, measured = (format_bytes(each) for each in (found.workspace_bytes_per_rank, reported.workspace_bytes))
        reasons.append(f"workspace: the plan estimates {planned}, and a full step of the server took {measured}")
