"""How many blocks Kvist's own engine makes of some bytes, and what requests it then takes.

The arithmetic is `kvist.planner.budget`, which start-up and admission use; this asks it for models that are not loaded.
"""

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import Bytes
from kvist.geometry.groups import DTYPE_BYTES, Dtype, KvGroup
from kvist.geometry.layers import AttentionLayer, ModelLayers, attention_groups
from kvist.planner.budget import KvLimits, KvPlan, plan_groups
from kvist.planner.kv_dtype import KvDtype
from kvist.planner.search import largest


def kvist_groups(model: ModelLayers) -> tuple[KvGroup, ...]:
    """The model's layers as groups of Kvist's engine: those that see furthest first.

    Raises:
        ConfigError: a layer is of a kind that the engine does not serve.
    """
    served = []
    for index, layer in enumerate(model.layers):
        if not isinstance(layer, AttentionLayer) or layer.chunk is not None:
            raise ConfigError(
                f"Kvist's own engine does not serve layers such as layer {index} of {model.model_type}:"
                f" {layer}; plan by the rules of vLLM"
            )
        served.append(layer)
    return attention_groups(served)


def kvist_dtype(dtype: KvDtype) -> Dtype:
    """The KV dtype as Kvist's engine knows it.

    Raises:
        ConfigError: it has none such.
    """
    for known in DTYPE_BYTES:
        if known == dtype.name:
            return known
    raise ConfigError(f"Kvist's own engine keeps no KV in {dtype.name}; use one of {', '.join(DTYPE_BYTES)}")


def plan_or_none(groups: tuple[KvGroup, ...], kv_bytes: int, limits: KvLimits) -> KvPlan | None:
    """See `kvist.planner.budget.plan_groups`; None if the bytes do not hold a block of each group."""
    try:
        return plan_groups(groups, kv_bytes, limits)
    except CapacityError:
        return None


def requests_together(groups: tuple[KvGroup, ...], plan: KvPlan | None, limits: KvLimits) -> int:
    """Requests of the longest length allowed that fit together, however many sequences may run at once."""
    if plan is None:
        return 0
    peaks = [limits.peak(group, limits.model_tokens_max) for group in groups]
    return min(have // peak for have, peak in zip(plan.blocks, peaks, strict=True))


def bytes_for_requests(groups: tuple[KvGroup, ...], count: int, limits: KvLimits) -> Bytes:
    """The fewest bytes of a pool in which so many requests of the longest length fit together."""

    def too_few(kv_bytes: int) -> bool:
        return requests_together(groups, plan_or_none(groups, kv_bytes, limits), limits) < count

    enough = limits.request_bytes(groups, limits.model_tokens_max)
    while too_few(enough):
        enough = Bytes(enough * 2)
    return Bytes(largest(0, enough, too_few) + 1)
