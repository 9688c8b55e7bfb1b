"""A model's KV, as groups of layers that keep the same kind of state.

Knows shapes and bytes; does not know where they came from, nor any tensor library. Everything else
that asks "how much" or "which layers" asks here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvist.base.units import Bytes, Tokens

Dtype = Literal["bfloat16", "float16", "float32"]

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


def token_bytes(*, kv_heads: int, head_dim_k: int, head_dim_v: int, vector_bytes: Callable[[int], int]) -> Bytes:
    """KV bytes that one token takes in one attention layer: the one formula, whatever the number format.

    Args:
        kv_heads: of the layer.
        head_dim_k: numbers per key head and token.
        head_dim_v: numbers per value head and token.
        vector_bytes: bytes of a vector of so many numbers.

    >>> token_bytes(kv_heads=8, head_dim_k=128, head_dim_v=128, vector_bytes=lambda numbers: 2 * numbers)
    4096
    """
    return Bytes(kv_heads * (vector_bytes(head_dim_k) + vector_bytes(head_dim_v)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that keep the same kind of attention state.

    Attributes:
        layers: indices of the layers, ascending.
        kv_heads: key/value heads per layer.
        head_dim_k: numbers per key head and token.
        head_dim_v: numbers per value head and token.
        window: how many positions a query may look back, itself included; None means all of them.
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    window: Tokens | None = None

    def bytes_per_token(self, dtype: Dtype) -> Bytes:
        """KV bytes that one token takes over all layers of this group."""
        per_layer = token_bytes(
            kv_heads=self.kv_heads,
            head_dim_k=self.head_dim_k,
            head_dim_v=self.head_dim_v,
            vector_bytes=lambda numbers: numbers * DTYPE_BYTES[dtype],
        )
        return Bytes(len(self.layers) * per_layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    """What the shapes of a model say about its KV and about the requests it can take.

    Attributes:
        architecture: the name in the model's own configuration, such as ``LlamaForCausalLM``.
        layers: number of decoder layers.
        query_heads: query heads per layer.
        hidden_size: width of the residual stream.
        vocab_size: number of token ids the model can emit.
        positions_max: longest sequence whose KV depends on nothing but the tokens before it.
        groups: KV groups, those that see furthest first: full attention, then windows from long to short;
            together they cover every layer once.
        rope: rope parameters as sorted (name, value) pairs: part of the identity of every block.
        dtype: dtype in which the weights are stored.
    """

    architecture: str
    layers: int
    query_heads: int
    hidden_size: int
    vocab_size: int
    positions_max: Tokens
    groups: tuple[KvGroup, ...]
    rope: tuple[tuple[str, str], ...]
    dtype: Dtype

    def bytes_per_token(self, dtype: Dtype) -> Bytes:
        """KV bytes of one token in every layer, windows disregarded."""
        return Bytes(sum(group.bytes_per_token(dtype) for group in self.groups))
