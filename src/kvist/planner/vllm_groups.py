"""How vLLM divides a model's layers into groups of equal blocks.

Knows layers and block sizes; not how many blocks there are (`kvist.planner.vllm`). In vLLM all groups draw blocks
from one pool, so one block must take the same bytes whichever group has it. What follows from that:

    1. a model with states gets so many tokens per attention block that the block holds a state; the state is padded;
    2. blocks that are smaller hold more tokens, until all layers' blocks take the same bytes, or are padded;
    3. each kind of layer is divided into groups of about as many layers as the rarest kind has.

Layers that all keep the same tokens are one group whatever their sizes, and none of this is needed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvist.base.errors import ConfigError
from kvist.base.units import Bytes
from kvist.geometry.layers import AttentionLayer, KvLayer, LatentLayer, RecurrentLayer, storing
from kvist.planner.kv_dtype import KvFormat

Kind = Literal["full", "window", "chunk", "state"]

_LATENT_STEP = 128
"""Blocks of latent layers beside states are a multiple of so many tokens."""

_KERNEL_STEP = 16
"""Attention kernels take blocks of a multiple of so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBlock:
    """One block of one layer.

    Attributes:
        layer: the layer's shapes, on one accelerator.
        kind: what it keeps.
        reach: positions of its window or chunk; None: all, or a state.
        block_tokens: tokens that one block holds; of a state, the distance at which states are kept.
        bytes_used: bytes that mean something.
        bytes_taken: those and the padding.
    """

    layer: KvLayer
    kind: Kind
    reach: int | None
    block_tokens: int
    bytes_used: Bytes
    bytes_taken: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmGroup:
    """Layers that share one list of blocks per sequence.

    Attributes:
        layers: indices in the model.
        blocks: one block of each of these layers; all hold the same tokens.
    """

    layers: tuple[int, ...]
    blocks: tuple[LayerBlock, ...]

    @property
    def kind(self) -> Kind:
        """What the layers keep."""
        return self.blocks[0].kind

    @property
    def reach(self) -> int | None:
        """Positions of the layers' window or chunk."""
        return self.blocks[0].reach

    @property
    def block_tokens(self) -> int:
        """Tokens per block."""
        return self.blocks[0].block_tokens

    def bytes_of(self, stage: range) -> Bytes:
        """Bytes of one block in the group's layers that a stage has."""
        taken = (block.bytes_taken for index, block in zip(self.layers, self.blocks, strict=True) if index in stage)
        return Bytes(sum(taken))


def vllm_groups(layers: Sequence[KvLayer], form: KvFormat, block_tokens: int) -> tuple[VllmGroup, ...]:
    """Groups of a whole model's layers.

    Args:
        layers: as one accelerator sees them (`kvist.planner.sharding.sharded`), of all stages.
        form: number formats.
        block_tokens: tokens per block that were asked for; models with states may get more.

    Returns:
        The groups; none for a model that keeps nothing.

    Raises:
        ConfigError: vLLM cannot bring these layers to blocks of one size.
    """
    indices = storing(layers)
    if not indices:
        return ()
    tokens, state_bytes = _aligned(layers, form, block_tokens)
    blocks = {index: _block(layers[index], form, tokens, state_bytes) for index in indices}
    if _alike(list(blocks.values())):
        return (VllmGroup(layers=tuple(blocks), blocks=tuple(blocks.values())),)
    if {block.kind for block in blocks.values()} == {"full", "window"} and _latents_cannot_grow(blocks.values()):
        # vLLM's way out: windows are kept whole, so that all layers keep the same tokens again.
        whole = tuple(replace(block, kind="full", reach=None) for block in blocks.values())
        return (VllmGroup(layers=tuple(blocks), blocks=whole),)
    most = Bytes(max(block.bytes_taken for block in blocks.values()))
    return _divided({index: _of_size(block, most) for index, block in blocks.items()})


def padding_layers(groups: Sequence[VllmGroup]) -> int:
    """Layers' worth of memory that no layer uses, because groups have fewer layers than the largest."""
    most = max((len(group.layers) for group in groups), default=0)
    return sum(most - len(group.layers) for group in groups)


def _aligned(layers: Sequence[KvLayer], form: KvFormat, block_tokens: int) -> tuple[int, Bytes]:
    """Tokens per attention block, and bytes that a state is padded to; 0 bytes where it is not."""
    state = max(form.state_bytes(layer) for layer in layers)
    latents = any(isinstance(layer, LatentLayer) for layer in layers)
    per_token = max(form.token_bytes(layer) for layer in layers)
    if not state or not per_token:
        return block_tokens, Bytes(0)
    step = max(block_tokens, _LATENT_STEP if latents else _KERNEL_STEP)
    tokens = _rounded_up(_parts(state, step * per_token) * step, _KERNEL_STEP)
    return tokens, Bytes(tokens * per_token)


def _block(layer: KvLayer, form: KvFormat, block_tokens: int, state_bytes: Bytes) -> LayerBlock:
    kind: Kind = "full"
    reach: int | None = None
    used = Bytes(form.token_bytes(layer) * block_tokens)
    match layer:
        case AttentionLayer(window=int(window)):
            kind, reach = "window", window
        case AttentionLayer(chunk=int(chunk)):
            kind, reach = "chunk", chunk
        case RecurrentLayer():
            kind, used = "state", form.state_bytes(layer)
    taken = Bytes(max(used, state_bytes)) if kind == "state" else used
    return LayerBlock(
        layer=layer, kind=kind, reach=reach, block_tokens=block_tokens, bytes_used=used, bytes_taken=taken
    )


def _alike(blocks: Sequence[LayerBlock]) -> bool:
    """Whether all layers keep the same tokens, so that one list of blocks does for them."""
    first = blocks[0]
    same = all(
        (each.kind, each.reach, each.block_tokens) == (first.kind, first.reach, first.block_tokens) for each in blocks
    )
    return same and (first.kind != "state" or all(each.bytes_taken == first.bytes_taken for each in blocks))


def _latents_cannot_grow(blocks: Collection[LayerBlock]) -> bool:
    """Whether some latent layer's block fits no whole number of times into the largest, as it would have to."""
    most = max(block.bytes_taken for block in blocks)
    return any(most % block.bytes_taken for block in blocks if isinstance(block.layer, LatentLayer))


def _of_size(block: LayerBlock, size: Bytes) -> LayerBlock:
    """The block with more tokens or padding, so that it takes this size."""
    if block.bytes_taken == size:
        return block
    times, rest = divmod(size, block.bytes_taken)
    if block.kind != "state" and not rest:
        return replace(
            block, block_tokens=block.block_tokens * times, bytes_used=Bytes(block.bytes_used * times), bytes_taken=size
        )
    if isinstance(block.layer, LatentLayer):
        raise ConfigError(
            f"vLLM needs blocks of one size: those of {block.bytes_taken} B of the latent layers do not divide"
            f" {size} B of others; take another KV dtype or block size"
        )
    return replace(block, bytes_taken=size)


def _divided(blocks: dict[int, LayerBlock]) -> tuple[VllmGroup, ...]:
    """Groups of layers whose blocks take the same bytes: of each kind, as many groups as keep them about equal."""
    kinds: dict[LayerBlock, list[int]] = {}
    for index, block in blocks.items():
        kinds.setdefault(block, []).append(index)
    fewest, most = (pick(map(len, kinds.values())) for pick in (min, max))
    size = most if most < fewest * 1.5 else fewest
    groups = []
    for block, indices in kinds.items():
        count = _parts(len(indices), size)
        # Dealt out in turn, so that every stage of a pipeline has some of each group.
        shares = [tuple(indices[first::count]) for first in range(count)]
        groups += [VllmGroup(layers=share, blocks=(block,) * len(share)) for share in shares]
    return tuple(groups)


def _parts(whole: int, size: int) -> int:
    return -(-whole // size)


def _rounded_up(size: int, step: int) -> int:
    return _parts(size, step) * step
