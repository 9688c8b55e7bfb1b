"""What each change of a deployment would buy, and the smallest changes that make one fit.

A change is another deployment and its plan: nothing here computes bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes, Tokens
from kvist.planner.deployment import Deployment
from kvist.planner.kv_dtype import KV_DTYPES, KvDtype, vllm_has_kernels
from kvist.planner.plan import Plan, memory_use, plan
from kvist.planner.search import largest
from kvist.planner.sharding import Parallel

Knob = Literal["kv_dtype", "tensor", "pipeline", "utilisation", "kv_bytes", "context", "concurrency", "memory"]

_TENSOR_MAX, _PIPELINE_MAX = 64, 64
"""Beyond these nobody looks."""

_UTILISATION_MAX = 95
"""Percent; above, fragments and other programs leave no room."""

_OFFERED = (
    "float32",
    "bfloat16",
    "float16",
    "fp8",
    "fp8_ds_mla",
    "int8_per_token_head",
    "int4_per_token_head",
    "nvfp4",
)
"""KV dtypes that are worth a try, and not another name for one of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob turned.

    Attributes:
        knob: which.
        value: what it is turned to.
        deployment: with it turned.
        plan: of that.
    """

    knob: Knob
    value: str | int | float
    deployment: Deployment
    plan: Plan


def changes(deployment: Deployment) -> tuple[Change, ...]:
    """What one step of each knob would buy, those that cannot be turned left out."""
    tried = [_with_dtype(deployment, dtype) for dtype in narrower(deployment)]
    if deployment.rules == "vllm":
        tried += [_with_tensor(deployment, tensor) for tensor in _wider(deployment)[:2]]
    if deployment.kv_bytes is None and deployment.utilisation * 100 < _UTILISATION_MAX:
        tried.append(_with_utilisation(deployment, _UTILISATION_MAX))
    if deployment.context_tokens > 1:
        tried.append(_with_context(deployment, deployment.context_tokens // 2))
    return tuple(each for each in tried if each is not None)


def remedies(deployment: Deployment) -> tuple[Change, ...]:
    """The smallest turn of each single knob with which the deployment fits; none for a deployment that does.

    Where no other knob helps, more memory does: the last says how much each accelerator would need.

    Raises:
        ConfigError: the deployment itself cannot be planned.
    """
    if plan(deployment).fits:
        return ()
    found = (
        _first_fitting(_with_dtype(deployment, dtype) for dtype in narrower(deployment)),
        _first_fitting(_with_tensor(deployment, tensor) for tensor in _wider(deployment)),
        _first_fitting(_with_pipeline(deployment, stages) for stages in _more_stages(deployment)),
        _more_kv(deployment),
        _shorter(deployment),
        _fewer(deployment),
        _more_memory(deployment),
    )
    return tuple(each for each in found if each is not None)


def narrower(deployment: Deployment) -> tuple[KvDtype, ...]:
    """KV dtypes with which a token takes fewer bytes and that the engine has kernels for, from those that take most."""
    layers = deployment.model.layers

    def taken(dtype: KvDtype) -> int | None:
        if deployment.rules == "vllm" and not vllm_has_kernels(dtype, layers):
            return None
        try:
            return sum(dtype.token_bytes(layer) for layer in layers)
        except ConfigError:
            return None

    now = sum(deployment.form.token_bytes(layer) for layer in layers)
    sizes = {name: taken(KV_DTYPES[name]) for name in _OFFERED}
    fitting = {name: size for name, size in sizes.items() if size is not None and size < now}
    return tuple(KV_DTYPES[name] for name in sorted(fitting, key=lambda name: -fitting[name]))


def _wider(deployment: Deployment) -> list[int]:
    """Degrees of tensor parallelism above the deployment's, from the least."""
    heads, now = deployment.model.query_heads, deployment.parallel.tensor
    most = _TENSOR_MAX if deployment.rules == "vllm" else 0
    return [degree for degree in range(now + 1, most + 1) if heads % degree == 0 and degree % now == 0]


def _more_stages(deployment: Deployment) -> range:
    most = min(_PIPELINE_MAX, len(deployment.model.layers)) if deployment.rules == "vllm" else 0
    return range(deployment.parallel.pipeline + 1, most + 1)


def _change(knob: Knob, value: str | int | float, make: Callable[[], Deployment]) -> Change | None:
    """The change; None where the model cannot be served so."""
    try:
        changed = make()
        return Change(knob=knob, value=value, deployment=changed, plan=plan(changed))
    except ConfigError:
        return None


def _with_dtype(deployment: Deployment, dtype: KvDtype) -> Change | None:
    form = replace(deployment.form, kv=dtype)
    return _change("kv_dtype", dtype.name, lambda: replace(deployment, form=form))


def _with_tensor(deployment: Deployment, tensor: int) -> Change | None:
    now = deployment.parallel
    return _change(
        "tensor",
        tensor,
        lambda: replace(deployment, parallel=Parallel(tensor=tensor, pipeline=now.pipeline, context=now.context)),
    )


def _with_pipeline(deployment: Deployment, stages: int) -> Change | None:
    return _change(
        "pipeline", stages, lambda: replace(deployment, parallel=replace(deployment.parallel, pipeline=stages))
    )


def _with_utilisation(deployment: Deployment, percent: int) -> Change | None:
    return _change("utilisation", percent / 100, lambda: replace(deployment, utilisation=percent / 100))


def _with_context(deployment: Deployment, tokens: int) -> Change | None:
    return _change("context", tokens, lambda: replace(deployment, context_tokens=Tokens(tokens)))


def _with_concurrency(deployment: Deployment, requests: int) -> Change | None:
    return _change("concurrency", requests, lambda: replace(deployment, concurrency=requests))


def _first_fitting(tried: Iterable[Change | None]) -> Change | None:
    return next((each for each in tried if each is not None and each.plan.fits), None)


def _more_kv(deployment: Deployment) -> Change | None:
    """More of the memory for KV: by percent, or by the bytes that were asked for."""
    if deployment.kv_bytes is None:
        percents = range(int(deployment.utilisation * 100) + 1, _UTILISATION_MAX + 1)
        return _first_fitting(_with_utilisation(deployment, percent) for percent in percents)
    needed = plan(deployment).kv_bytes_needed_per_rank
    if memory_use(deployment).total + needed > deployment.machine.bytes_total:
        return None
    return _change("kv_bytes", needed, lambda: replace(deployment, kv_bytes=needed))


def _shorter(deployment: Deployment) -> Change | None:
    """The longest requests of which as many as wanted fit."""

    def fits(tokens: int) -> bool:
        change = _with_context(deployment, tokens)
        return change is not None and change.plan.fits

    if not fits(1):
        return None
    return _with_context(deployment, largest(1, deployment.context_tokens, fits))


def _fewer(deployment: Deployment) -> Change | None:
    """As many requests as fit: fewer take less workspace too, so there may be more than the plan says."""

    def fits(requests: int) -> bool:
        change = _with_concurrency(deployment, requests)
        return change is not None and change.plan.fits

    if not fits(1):
        return None
    return _with_concurrency(deployment, largest(1, deployment.concurrency, fits))


def _more_memory(deployment: Deployment) -> Change | None:
    """Accelerators with as much memory as it takes."""
    taken, needed = memory_use(deployment).total, plan(deployment).kv_bytes_needed_per_rank
    part = Fraction(str(deployment.utilisation))
    if deployment.kv_bytes is not None:
        total = taken + needed
    elif deployment.rules == "vllm":
        total = -int(-(taken + needed) / part // 1)
    else:
        total = taken - int(-needed / part // 1)
    kv_bytes = None if deployment.kv_bytes is None else needed

    def make() -> Deployment:
        return replace(deployment, machine=replace(deployment.machine, bytes_total=Bytes(total)), kv_bytes=kv_bytes)

    return _change("memory", total, make)
