"""What every layer of a model keeps of the tokens it has read: the shapes from which all KV arithmetic follows.

Knows shapes, not bytes of a pool and not machines. The models of the engine (`kvist.geometry.groups`) are a part of
these; what can be planned for is much more than what can be served here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvist.base.units import Tokens
from kvist.geometry.groups import Dtype, KvGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """Keys and values of every token, or of those within reach.

    Attributes:
        kv_heads, head_dim_k, head_dim_v: of the layer.
        window: a query reads so many positions, its own included; None: all.
        chunk: positions are cut into pieces of so many, and a query reads its own piece only; None: they are not.
    """

    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    window: Tokens | None = None
    chunk: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayer:
    """Multi-head latent attention: one compressed vector and one rotated key per token, for all heads together.

    Attributes:
        latent: numbers of the compressed vector (`kv_lora_rank`).
        rope: numbers of the rotated key (`qk_rope_head_dim`).
    """

    latent: int
    rope: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of a recurrent layer's state; its size does not depend on the tokens read.

    Attributes:
        name: "conv" or "ssm", as the field calls them.
        shape: of one sequence, all heads or channels.
        sharded: whether tensor parallelism divides it.
    """

    name: Literal["conv", "ssm"]
    shape: tuple[int, ...]
    sharded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayer:
    """Linear attention, a state-space model or a short convolution: a state per sequence."""

    tensors: tuple[StateTensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLayer:
    """Reads the KV of an earlier layer and keeps none."""

    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLayer:
    """Keeps nothing: a layer that is only a feed-forward block."""


KvLayer = AttentionLayer | LatentLayer | RecurrentLayer | SharedLayer | PlainLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How many numbers a model has.

    Attributes:
        total: all of them.
        active: those that one token is multiplied with: not those of experts that it does not choose, nor a
            table of which it reads one row (an input embedding that is not the output embedding too).
        embedding: of the input and output embeddings and of layers' own, within the total.
    """

    total: int
    active: int
    embedding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """A model as far as planning goes.

    Attributes:
        model_type: the name that its configuration gives its family.
        layers: first to last.
        hidden_size, query_heads, head_dim: of the residual stream and of attention.
        intermediate_size: of the widest feed-forward part that one token passes, all experts that it chooses and
            those that all tokens pass together.
        vocab_size: number of token ids.
        positions_max: longest sequence that the configuration allows.
        dtype: of the weights as stored.
        weight_bits: bits per weight outside of the embeddings, on average, scales and what stays in the dtype
            included, where the configuration names a quantisation that was read; None: those of the dtype.
        parameters: counted from the configuration.
    """

    model_type: str
    layers: tuple[KvLayer, ...]
    hidden_size: int
    query_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    positions_max: Tokens
    dtype: Dtype
    weight_bits: float | None
    parameters: Parameters


def attention_groups(layers: Sequence[AttentionLayer]) -> tuple[KvGroup, ...]:
    """Layers that are alike as groups: those that see furthest first, else in the order of their first layers.

    Args:
        layers: of a model that has attention in all of them, and no chunks.
    """
    kinds: dict[AttentionLayer, list[int]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(layer, []).append(index)
    groups = (
        KvGroup(
            layers=tuple(indices),
            kv_heads=layer.kv_heads,
            head_dim_k=layer.head_dim_k,
            head_dim_v=layer.head_dim_v,
            window=layer.window,
        )
        for layer, indices in kinds.items()
    )
    return tuple(sorted(groups, key=lambda group: (group.window is not None, -(group.window or 0))))


def storing(layers: Sequence[KvLayer]) -> tuple[int, ...]:
    """Indices of the layers that keep something."""
    return tuple(index for index, layer in enumerate(layers) if not isinstance(layer, SharedLayer | PlainLayer))
