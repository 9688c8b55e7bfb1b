"""From which length on loading a prefix beats computing it again, for each tier, before anything was measured.

Asks `kvist.cost`, the models that the fabric decides with, with the machine's published figures as priors. Computing is
assumed to run at the machine's full speed, which it never does: so loading pays off no later than said here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvist.base.units import Tokens
from kvist.cost.estimate import estimate_of
from kvist.cost.load import LoadModel, Medium, load_model
from kvist.cost.prefill import PrefillModel, Work, prefill_model
from kvist.geometry.layers import AttentionLayer, LatentLayer, ModelLayers
from kvist.planner.deployment import Deployment
from kvist.planner.search import largest
from kvist.planner.sharding import rank_layers
from kvist.planner.useful import reach, useful_bytes

MEDIA: tuple[Medium, ...] = ("dram", "disk", "pool")

_FINE = 64
"""Lengths tried between two powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """One tier.

    Attributes:
        medium: what it is made of.
        tokens: least whole number of blocks from which on loading is faster, up to the deployment's longest request;
            None: it is not, at any such length.
        load_s, prefill_s: of the deployment's longest request, loaded and computed.
    """

    medium: Medium
    tokens: Tokens | None
    load_s: float
    prefill_s: float


def break_even(deployment: Deployment, media: Sequence[Medium] = MEDIA) -> tuple[BreakEven, ...]:
    """The answer for each medium, in order."""
    prefill = prefill_of(deployment)
    return tuple(_of(deployment, medium, prefill) for medium in media)


def prefill_of(deployment: Deployment) -> PrefillModel:
    """What computing is expected to take: all accelerators together, at the speed of the weights' format."""
    model, machine = deployment.model, deployment.machine
    fp8 = machine.flops_fp8 is not None and model.weight_bits == 8
    flops = machine.flops_fp8 if fp8 and machine.flops_fp8 is not None else machine.flops_bf16
    work = Work(
        # Looking up an embedding computes nothing; the output embedding is computed for the last token only.
        parameters=max(1, model.parameters.active - model.parameters.embedding),
        attention_width=attention_width(model),
        operations_per_s=flops * deployment.parallel.ranks,
    )
    return prefill_model(work, step_tokens=Tokens(deployment.step_tokens))


def attention_width(model: ModelLayers) -> int:
    """Query heads times head size, summed over the layers that see all positions."""
    seeing = (layer for layer in model.layers if isinstance(layer, AttentionLayer | LatentLayer))
    return model.query_heads * model.head_dim * sum(1 for layer in seeing if reach(layer) is None)


def load_of(deployment: Deployment, medium: Medium) -> LoadModel:
    """What loading is expected to take into one accelerator: no faster than its link to the host.

    The memory of a host is faster than any link, so for an accelerator of its own memory the link is all that counts.
    """
    prior = load_model(medium)
    link = deployment.machine.host_link_bytes_per_s
    if link is None:
        return prior
    bandwidth = link if medium == "dram" else min(link, prior.bandwidth)
    return LoadModel(estimate=estimate_of((prior.latency_s, 1 / bandwidth)))


def _of(deployment: Deployment, medium: Medium, prefill: PrefillModel) -> BreakEven:
    load = load_of(deployment, medium)
    layers = rank_layers(deployment.model, deployment.parallel, 0)
    longest, block = deployment.context_tokens, deployment.block_tokens_asked

    def load_s(tokens: int) -> float:
        part = -(-tokens // deployment.parallel.context)
        return load.predict_s(useful_bytes(layers, deployment.form, part))

    def loses(blocks: int) -> bool:
        return load_s(blocks * block) >= prefill.predict_s(0, blocks * block)

    first = _first_winning(max(1, longest // block), loses)
    return BreakEven(
        medium=medium,
        tokens=None if first is None else Tokens(first * block),
        load_s=load_s(longest),
        prefill_s=prefill.predict_s(0, longest),
    )
