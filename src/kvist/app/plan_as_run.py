"""Makes a plan again with the settings that a running server has, one after the other, and says what each changes.

    planned -> longest request -> blocks -> KV dtype -> (steps, sequences) -> memory -> as it runs

Knows settings and plans; does not compare figures (`kvist.app.plan_check`). Settings that a server does not tell are
looked for among the usual ones, when its figures are those of one of them to the block.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvist.app.plan import AUTO
from kvist.app.plan_reported import Reported
from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens, format_bytes
from kvist.geometry.groups import DTYPE_BYTES, Dtype
from kvist.geometry.layers import RecurrentLayer
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KvDtype, kv_dtype
from kvist.planner.plan import Plan, plan
from kvist.planner.sharding import Parallel

_ESTIMATES_PART = 0.05
"""Of all memory: by no more than this are estimates of weights, workspace and libraries off."""

_STEP_TOKENS = tuple(2**power for power in range(8, 18))
_TENSOR_MAX = 64


@dataclass(slots=True)
class AsRun:
    """A deployment on its way from what was planned to what runs.

    Attributes:
        deployment: so far; plan: of it.
        reasons: a sentence for each setting that differs.
        doubts: a sentence for each difference that no setting explains.
    """

    deployment: Deployment
    plan: Plan
    reasons: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def turn(self, why: str, **changes: object) -> None:
        """Changes settings; those that cannot be planned are a doubt, and are left."""
        try:
            changed = replace(self.deployment, **changes)  # type: ignore[arg-type]  # names and values of its fields
            found = plan(changed)
        except ConfigError as error:
            self.doubts.append(f"{why}; that cannot be planned: {error}")
            return
        self.reasons.append(f"{why}; {_effect(self.plan, found)}")
        self.deployment, self.plan = changed, found


def as_run(deployment: Deployment, reported: Reported) -> AsRun:
    """The deployment with every setting that the server tells.

    Raises:
        ConfigError: the deployment itself cannot be planned.
    """
    run = AsRun(deployment, plan(deployment))
    if reported.engines > 1:
        run.reasons.append(f"{reported.engines} engines share the address: what is reported is of one of them")
    _longest(run, reported)
    _blocks(run, reported)
    _dtype(run, reported)
    if reported.rules == "kvist":
        _kvist_settings(run, reported)
    else:
        _prefixes(run, reported)
    _memory(run, reported)
    if run.plan.blocks != reported.blocks:
        _hidden_spread(run, reported)
    if reported.rules == "vllm":
        _hidden_steps(run, reported)
    return run


def _longest(run: AsRun, reported: Reported) -> None:
    own, most = reported.model_tokens_max or reported.tokens_max, run.deployment.model.positions_max
    if own is None or own == run.deployment.context_tokens:
        return
    if own > most:
        run.doubts.append(
            f"the server takes requests of {own:,} tokens, and this model has {most:,} positions: it serves another"
            " model, or one whose configuration was changed"
        )
        return
    why = f"longest request: planned for {run.deployment.context_tokens:,} tokens, the server takes {own:,}"
    run.turn(why, context_tokens=Tokens(own))


def _blocks(run: AsRun, reported: Reported) -> None:
    # With states vLLM makes blocks longer than was asked for, as the plan does, and reports those.
    if reported.block_tokens not in run.plan.block_tokens:
        planned = " or ".join(str(each) for each in sorted(set(run.plan.block_tokens)))
        why = f"blocks: planned of {planned} tokens, the server has them of {reported.block_tokens}"
        run.turn(why, block_tokens=reported.block_tokens)


def _dtype(run: AsRun, reported: Reported) -> None:
    own = run.deployment.model.dtype if reported.dtype == AUTO else reported.dtype
    try:
        told = kv_dtype(own)
    except ConfigError:
        run.doubts.append(f"the server keeps KV in {own!r}, a format that Kvist does not know")
        return
    planned = run.deployment.form.kv
    if not _same(planned, told):
        why = f"KV dtype: planned {planned.name}, the server keeps it in {told.name}"
        run.turn(why, form=replace(run.deployment.form, kv=told))


def _prefixes(run: AsRun, reported: Reported) -> None:
    """States are kept once more for prefixes; for all else it makes no difference."""
    own, has_states = reported.prefix_caching, any(isinstance(e, RecurrentLayer) for e in run.deployment.model.layers)
    if has_states and own is not None and own != run.deployment.prefix_caching:
        run.turn(f"prefix caching is {'on' if own else 'off'} in the server", prefix_caching=own)


def _kvist_settings(run: AsRun, reported: Reported) -> None:
    asked = run.deployment
    for what, name, own in (
        ("sequences at once", "concurrency", reported.sequences_max),
        ("tokens of a step", "step_tokens", reported.step_tokens),
        ("tokens between kept windows", "window_checkpoint_tokens", reported.window_checkpoint_tokens),
    ):
        planned = getattr(asked, name)
        if own is not None and own != planned:
            run.turn(f"{what}: planned {planned:,}, the server has {own:,}", **{name: own})


def _memory(run: AsRun, reported: Reported) -> None:
    """Memory for KV, where blocks are still not the same."""
    asked, found = run.deployment, run.plan
    if found.blocks == reported.blocks:
        return
    block_bytes, left = sum(found.block_bytes_per_rank), format_bytes(max(0, found.kv_bytes_left_per_rank))
    if reported.blocks_given is not None:
        why = f"the server was told to make {reported.blocks_given:,} blocks, whatever its memory holds"
        run.turn(why, kv_bytes=Bytes(reported.blocks_given * block_bytes))
    elif reported.kv_bytes is not None:
        if reported.kv_bytes != asked.kv_bytes:
            why = f"KV memory: the plan leaves {left}, the server has {format_bytes(reported.kv_bytes)} of it"
            run.turn(why, kv_bytes=reported.kv_bytes)
    elif reported.utilisation is not None:
        if asked.kv_bytes is not None or asked.utilisation != reported.utilisation:
            how = f"{left} for KV" if asked.kv_bytes is not None else f"utilization {asked.utilisation:g}"
            why = f"memory: planned with {how}, the server has utilization {reported.utilisation:g}"
            run.turn(why, kv_bytes=None, utilisation=reported.utilisation)
        _measured(run, reported)


def _measured(run: AsRun, reported: Reported) -> None:
    """An engine measures what all else takes, where a plan can only estimate."""
    own = reported.blocks[0] * sum(run.plan.block_bytes_per_rank)
    difference, total = own - run.plan.kv_bytes_left_per_rank, run.deployment.machine.bytes_total
    if run.plan.blocks == reported.blocks:
        return
    size = f"{format_bytes(abs(difference))} {'more' if difference > 0 else 'less'}"
    part = abs(difference) / total
    why = (
        f"memory: the server has {size} for KV than the plan leaves, {part:.1%} of all there is; it measured what"
        " weights, workspace and libraries take, and the plan estimates that"
    )
    if part > _ESTIMATES_PART:
        run.doubts.append(f"{why}, but not so wrongly: is it this GPU, this model, and nobody else's memory beside?")
    run.turn(why, kv_bytes=Bytes(max(1, own)))


def _hidden_spread(run: AsRun, reported: Reported) -> None:
    """Whether blocks are those of another dtype of the model, or of more GPUs: servers do not tell either."""
    for what, changed in _spreads(run.deployment, is_auto=reported.dtype == AUTO):
        try:
            is_it = plan(changed).blocks == reported.blocks
        except ConfigError:
            continue
        if is_it:
            why = f"the server does not say so, but it has the blocks of {what}"
            run.turn(why, model=changed.model, form=changed.form, parallel=changed.parallel)
            return


def _spreads(asked: Deployment, *, is_auto: bool) -> Iterator[tuple[str, Deployment]]:
    for dtype in DTYPE_BYTES if is_auto else ():
        yield f"a model that is run in {dtype}", _in_dtype(asked, dtype)
    if asked.rules == "vllm":
        heads = asked.model.query_heads
        for tensor in (each for each in range(1, _TENSOR_MAX + 1) if heads % each == 0):
            yield f"a tensor parallelism of {tensor}", replace(asked, parallel=Parallel(tensor=tensor))


def _in_dtype(asked: Deployment, dtype: Dtype) -> Deployment:
    return replace(asked, model=replace(asked.model, dtype=dtype), form=replace(asked.form, kv=kv_dtype(dtype)))


def _hidden_steps(run: AsRun, reported: Reported) -> None:
    """Which length of a step makes vLLM count as many requests as it does: windows hold what a step computes."""
    own = reported.concurrency
    if own is None or run.plan.blocks != reported.blocks or _close(run.plan.concurrency_printed, own):
        return
    for tokens in (run.deployment.step_tokens, *_STEP_TOKENS):
        if _close(plan(_in_flight(run.deployment, tokens)).concurrency_printed, own):
            why = (
                f"steps: the server counts with {tokens:,} tokens in flight, in one step or in two of half as many that"
                f" overlap; planned were {run.deployment.step_tokens * run.deployment.steps_in_flight:,}"
            )
            run.turn(why, step_tokens=tokens, asynchronous=False)
            return


def _in_flight(asked: Deployment, tokens: int) -> Deployment:
    return replace(asked, step_tokens=tokens, asynchronous=False)


def _effect(before: Plan, after: Plan) -> str:
    if before.blocks != after.blocks:
        return f"with that the plan has {_count(after)} blocks instead of {_count(before)}"
    if before.tokens_capacity != after.tokens_capacity:
        return f"with that the plan has {after.tokens_capacity:,} tokens instead of {before.tokens_capacity:,}"
    return "that changes neither blocks nor tokens"


def _count(found: Plan) -> str:
    return " + ".join(f"{count:,}" for count in found.blocks)


def _same(one: KvDtype, other: KvDtype) -> bool:
    """Whether two names are of formats of one size: fp8 is fp8_e4m3."""
    return replace(one, name="") == replace(other, name="")


def _close(planned: float | None, own: float) -> bool:
    return planned is not None and math.isclose(planned, own, rel_tol=1e-6)
