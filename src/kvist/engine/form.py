"""What a block of a KV group looks like outside the engine, whichever backend computes it."""

from kvist.blocks.form import Form, Part, Plane
from kvist.geometry.groups import Dtype, KvGroup


def form_of(group: KvGroup, dtype: Dtype, block_tokens: int) -> Form:
    """The form of one group's records, all layers and heads in one part.

    Two planes, keys then values, each ``[layers, kv_heads, block_tokens, head_dim]``: copying into a pool that keeps
    them apart then moves runs of `block_tokens * head_dim` numbers.

    Args:
        group: of the model.
        dtype: in which the KV is kept.
        block_tokens: tokens per block.
    """
    shape = (len(group.layers), group.kv_heads, block_tokens)
    return Form(
        planes=(Plane("k", dtype, (*shape, group.head_dim_k)), Plane("v", dtype, (*shape, group.head_dim_v))),
        part=Part(layers_first=0, layers=len(group.layers), heads_first=0, heads=group.kv_heads),
    )
