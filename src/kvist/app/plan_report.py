"""An answer of the planner as JSON: every figure under its own name, which says its unit.

`kvist.planner.plan.Plan` says what the figures of the plan are; those of a change are the same.
"""

from collections.abc import Mapping
from dataclasses import asdict

from kvist.app.plan import Answer, words
from kvist.app.plan_flags import engine_flags
from kvist.planner.changes import Change
from kvist.planner.plan import Plan

Json = dict[str, object]

_OF_CHANGE = (
    "fits",
    "concurrent_requests",
    "longest_request_tokens",
    "tokens_capacity",
    "kv_bytes_per_token",
    "kv_bytes_per_token_per_rank",
    "kv_bytes_per_request",
    "kv_bytes_left_per_rank",
    "missing_bytes_per_rank",
)


def report(answer: Answer) -> Json:
    """The whole answer, as values that a JSON encoder takes."""
    return {
        **_asked(answer),
        **figures(answer.plan),
        "changes": [_change(each) for each in answer.changes],
        "remedies": [_change(each) for each in answer.remedies],
        "break_even": [asdict(each) for each in answer.break_even],
        "flags": [asdict(each) for each in engine_flags(answer)],
    }


def figures(plan: Plan) -> Json:
    """The figures of a plan; `blocks` are those of all pools together, which are one pool by vLLM's rules."""
    return {**asdict(plan), "blocks": sum(plan.blocks), "blocks_per_pool": list(plan.blocks)}


def _asked(answer: Answer) -> Json:
    """What the plan is for, with every default filled in."""
    asked, machine = answer.deployment, answer.deployment.machine
    return {
        "model": answer.model.name,
        "model_type": asked.model.model_type,
        "parameters": asked.model.parameters.total,
        "weights_from": answer.model.weights_from,
        "engine": asked.rules,
        "gpu": machine.name,
        "gpu_memory_bytes": machine.bytes_total,
        "tensor_parallel": asked.parallel.tensor,
        "pipeline_parallel": asked.parallel.pipeline,
        "context_parallel": asked.parallel.context,
        "context_tokens": asked.context_tokens,
        "concurrency": asked.concurrency,
        "kv_dtype": asked.form.kv.name,
        "state_dtype": asked.form.ssm,
        "utilization": None if asked.kv_bytes is not None else asked.utilisation,
        "batch_tokens": asked.step_tokens,
    }


def _change(change: Change) -> Json:
    found: Mapping[str, object] = figures(change.plan)
    named = {"change": change.knob, "to": change.value, "words": words(change)}
    return {**named, **{name: found[name] for name in _OF_CHANGE}}
