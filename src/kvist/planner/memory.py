"""What an accelerator's memory holds beside KV: weights, what a step needs meanwhile, and what the driver takes.

Estimates, by formulas that are stated with what they were held against; engines measure instead. Knows shapes and
bytes, no engine's blocks. What a step needs is in `kvist.planner.workspace`.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.geometry.groups import DTYPE_BYTES
from kvist.geometry.layers import AttentionLayer, LatentLayer, ModelLayers
from kvist.planner.sharding import Parallel, stage_layers

Rules = Literal["vllm", "kvist"]
"""Whose rules of memory and blocks a plan follows."""

CONTEXT_BYTES = Bytes(376 * 2**20)
"""What a CUDA context, its libraries and fragments take: 0.35 GiB "non_torch_memory" in the log of vllm#10517."""


_FIGURE_MAX = 10**21
"""A zettabyte, or as many operations per second: beyond any accelerator, and small enough to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One accelerator, or a host whose CPU computes.

    Attributes:
        name: as it is asked for.
        bytes_total: of its memory.
        bytes_per_s: at which it reads that memory.
        flops_bf16, flops_fp8: dense floating-point operations per second; None: it has no fp8.
        host_link_bytes_per_s: in one direction, to the memory of its host; None: its memory is the host's.
    """

    name: str
    bytes_total: Bytes
    bytes_per_s: float
    flops_bf16: float
    flops_fp8: float | None = None
    host_link_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("bytes_total", "bytes_per_s", "flops_bf16", "flops_fp8", "host_link_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _FIGURE_MAX:  # NaN compares false and ends here too
                raise ConfigError(
                    f"machine {self.name!r}: {name} is {value}; it must be above 0 and at most {_FIGURE_MAX:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """What one accelerator's memory holds beside KV, in bytes.

    Attributes:
        weights: of its part of the model.
        workspace: most that a step takes meanwhile.
        reserve: of the driver and libraries.
    """

    weights: Bytes
    workspace: Bytes
    reserve: Bytes

    @property
    def total(self) -> Bytes:
        """All of it."""
        return Bytes(self.weights + self.workspace + self.reserve)


def model_bytes(model: ModelLayers) -> Bytes:
    """Bytes of all weights: embeddings in the model's dtype, all else quantised where the model is."""
    return Bytes(_body_bytes(model) + model.parameters.embedding * DTYPE_BYTES[model.dtype])


def weights_bytes_per_rank(model: ModelLayers, parallel: Parallel, stored: int | None = None) -> Bytes:
    """Bytes of the weights of the accelerator that has most.

    Tensor parallelism divides embeddings and matrices, but not the projections of KV heads that are repeated, nor those
    onto latents. Stages divide layers; the first has the input embeddings and the last the output embeddings, which are
    one and the same tensor for models that tie them and have one stage. Norms, which are not divided, are less than a
    thousandth and are not told apart.

    Args:
        model: the model.
        parallel: how it is spread.
        stored: bytes of all weights where they are known better than by counting; they are divided in proportion.
    """
    dtype_bytes = DTYPE_BYTES[model.dtype]
    scale = Fraction(stored, max(1, model_bytes(model))) if stored is not None else Fraction(1)
    per_layer = Fraction(_body_bytes(model), max(1, len(model.layers)))
    table = min(model.vocab_size * model.hidden_size, model.parameters.embedding)
    output = model.parameters.embedding - table or table * (parallel.pipeline > 1)
    stages = stage_layers(len(model.layers), parallel.pipeline)
    most = Fraction(0)
    for number, stage in enumerate(stages):
        tables = table * (number == 0) + output * (number == len(stages) - 1)
        repeated = sum(_repeated_numbers(model, index, parallel.tensor) for index in stage)
        body = per_layer * len(stage) / parallel.tensor + repeated * Fraction(_body_bits(model)) / 8
        most = max(most, body + Fraction(tables * dtype_bytes, parallel.tensor))
    return Bytes(int(most * scale))


def reserve_bytes(machine: Machine) -> Bytes:
    """Bytes that drivers and libraries take of an accelerator's own memory; a CPU's are the system's business."""
    return CONTEXT_BYTES if machine.host_link_bytes_per_s is not None else Bytes(0)


def kv_bytes_left(machine: Machine, use: MemoryUse, *, utilisation: float, rules: Rules) -> Bytes:
    """Bytes for KV; below 0 where all else already takes more.

    vLLM's fraction is of all the memory, Kvist's (and that of TensorRT-LLM) of what the rest leaves.

    >>> machine = Machine(name="any", bytes_total=Bytes(180 * 10**9), bytes_per_s=1.0, flops_bf16=1.0)
    >>> use = MemoryUse(weights=Bytes(100 * 10**9), workspace=Bytes(0), reserve=Bytes(0))
    >>> kv_bytes_left(machine, use, utilisation=0.8, rules="kvist")
    64000000000
    >>> kv_bytes_left(machine, use, utilisation=0.8, rules="vllm")
    44000000000
    """
    part = Fraction(str(utilisation))
    if rules == "vllm":
        return Bytes(int(machine.bytes_total * part) - use.total)
    free = machine.bytes_total - use.total
    return Bytes(int(free * part) if free > 0 else free)


def _body_bits(model: ModelLayers) -> float:
    return model.weight_bits if model.weight_bits is not None else 8 * DTYPE_BYTES[model.dtype]


def _body_bytes(model: ModelLayers) -> int:
    numbers = model.parameters.total - model.parameters.embedding
    return int(numbers * Fraction(_body_bits(model)) / 8)


def _repeated_numbers(model: ModelLayers, index: int, tensor: int) -> Fraction:
    """Numbers that an accelerator keeps of a layer beyond its equal share."""
    match model.layers[index]:
        case AttentionLayer() as layer if layer.kv_heads < tensor:
            one_head = model.hidden_size * (layer.head_dim_k + layer.head_dim_v)
            return one_head * (1 - Fraction(layer.kv_heads, tensor))
        case LatentLayer() as layer:
            return model.hidden_size * (layer.latent + layer.rope) * (1 - Fraction(1, tensor))
        case _:
            return Fraction(0)
