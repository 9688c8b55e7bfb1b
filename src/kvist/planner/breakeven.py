"""From which length on loading a prefix beats computing it again, for each tier, before anything was measured.

Asks `kvist.cost`, the models that the fabric decides with, with the machine's published figures as priors. Computing is
assumed to run at the machine's full speed, which it never does: so loading pays off no later than said here.
"""

from collections.abc import Callable, Iterator, Sequence
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
"""Lengths are tried in distances of such a part of them."""


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
    # What is narrower than 8 bits is computed in bf16; scales make a little more of 8.
    in_8_bits = model.weight_bits is not None and 8 <= model.weight_bits < 9
    flops = machine.flops_fp8 if in_8_bits and machine.flops_fp8 is not None else machine.flops_bf16
    work = Work(
        # The output embedding is computed for the last token only.
        parameters=max(1, model.parameters.active - model.vocab_size * model.hidden_size),
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

    A host's memory is faster than any link, so from there the link is all that counts. Its disks and its network are
    shared by all accelerators, which are taken to be in one host.
    """
    prior = load_model(medium)
    link = deployment.machine.host_link_bytes_per_s
    if link is None:
        return prior
    bandwidth = link if medium == "dram" else min(link, prior.bandwidth / deployment.parallel.ranks)
    return LoadModel(estimate=estimate_of((prior.latency_s, 1 / bandwidth)))


def _of(deployment: Deployment, medium: Medium, prefill: PrefillModel) -> BreakEven:
    load = load_of(deployment, medium)
    parallel = deployment.parallel
    stages = [rank_layers(deployment.model, parallel, stage) for stage in range(parallel.pipeline)]
    longest, block = deployment.context_tokens, deployment.block_tokens_asked

    def load_s(tokens: int) -> float:
        part = -(-tokens // parallel.context)
        return load.predict_s(max(useful_bytes(layers, deployment.form, part) for layers in stages))

    def loses(blocks: int) -> bool:
        return load_s(blocks * block) >= prefill.predict_s(0, blocks * block)

    first = _first_winning(max(1, longest // block), loses)
    return BreakEven(
        medium=medium,
        tokens=None if first is None else Tokens(first * block),
        load_s=load_s(longest),
        prefill_s=prefill.predict_s(0, longest),
    )


def _first_winning(count: int, loses: Callable[[int], bool]) -> int | None:
    """The least number of blocks, at most `count`, from which on nothing loses; None if `count` itself does.

    Computing takes more and more for each further token and loading does not, so once that wins it stays so; but every
    step begins with a fixed cost, and so a few blocks may win before more of them lose. Lengths are therefore tried all
    the way down, in distances that grow with them.
    """
    if loses(count):
        return None
    lengths = list(_lengths(count))
    last = next((index for index in reversed(range(len(lengths))) if loses(lengths[index])), None)
    if last is None:
        return 1
    return largest(lengths[last], lengths[last + 1] - 1, loses) + 1


def _lengths(count: int) -> Iterator[int]:
    """1, 2, 3, ... to `count`, in distances of a 64th of the length and more."""
    length = 1
    while length < count:
        yield length
        length += max(1, length // _FINE)
    yield count
