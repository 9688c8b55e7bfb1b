"""The engine's KV tensors as what a record is made of: blocks, heads, tokens, content, with their distances in bytes.

vLLM hands over one tensor per layer, logically ``[blocks, heads, tokens, content]``; all are views of one allocation.
In which order the dimensions lie there, and what lies between the blocks, strides alone say. Knows tensors; does not
know records or orders.

Laws:
    * What cannot be told apart exactly is refused at start, by the layer's name.
    * The content of one token and head is one run of bytes; raw, the whole block is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kvist.base.errors import ConfigError, WireError
from kvist.blocks.form import PlaneDtype
from kvist.connectors.vllm.shapes import EngineGroup, GroupShape, RecordShape

_WIDE: Mapping[torch.dtype, PlaneDtype] = {
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float32: "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What is known of the inside of a group's blocks.

    Attributes:
        raw: it is packed, so that blocks are moved as they lie.
        block_bytes: of one block of one layer, without what fills it up.
    """

    raw: bool
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerView:
    """One layer's blocks.

    Attributes:
        name: of the layer.
        tensor: whose memory it is; kept alive.
        address: of the first block's first byte.
        shape: [blocks, heads, parts, tokens, content]: a block of the engine is that many parts of its kernels, one
            after the other in tokens; content in items. Raw: [blocks, 1, 1, 1, bytes].
        strides: bytes from one to the next, of each dimension.
        item_bytes: of one number.
        dtype: of the numbers in a record.
        packed: raw: what a block looked like before, so that packed blocks of another shape are not mistaken for these;
            empty otherwise.
    """

    name: str
    tensor: torch.Tensor
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    dtype: PlaneDtype
    packed: str = ""


def group_views(
    kv_caches: Mapping[str, torch.Tensor], group: EngineGroup, blocks: int, inside: Inside
) -> tuple[LayerView, ...]:
    """The layers of a group that this worker holds, in the group's order; layers of the same memory once.

    Args:
        kv_caches: every layer's tensor, ``[blocks * parts, heads, tokens, content]``, whatever its strides.
        group: its layers must be those of this worker.
        blocks: of the engine's pool.
        inside: what is known of one block.

    Raises:
        ConfigError: a layer has no tensor, or one that is not understood; layers are of different shapes.
    """
    views: list[LayerView] = []
    seen = set[tuple[object, ...]]()
    for name in group.layers:
        if name not in kv_caches:
            raise ConfigError(f"group {group.index}: the engine gives no KV tensor for its layer {name}")
        view = _view(name, kv_caches[name], blocks, inside)
        place = (view.address, view.shape, view.strides)
        if place not in seen:
            seen.add(place)
            views.append(view)
    for view in views:
        if (view.shape, view.dtype) != (views[0].shape, views[0].dtype):
            raise ConfigError(
                f"group {group.index} cannot be stored, its layers have blocks of different shapes: {views[0].name} "
                f"{views[0].shape[1:]} {views[0].dtype}, {view.name} {view.shape[1:]} {view.dtype}"
            )
    return tuple(views)


def group_shape(views: Sequence[LayerView]) -> GroupShape:
    """What a worker says of a group's blocks."""
    if not views:
        return GroupShape(layers=(), heads=0, tokens=0, content=0, dtype="uint8")
    _, heads, parts, tokens, content = views[0].shape
    layers = tuple(view.name for view in views)
    return GroupShape(layers=layers, heads=heads, tokens=parts * tokens, content=content, dtype=views[0].dtype)


def check_order(record: RecordShape, pool_blocks: int, blocks: Sequence[int], payload: memoryview) -> None:
    """Refuses an order that is none for a group: it would reach memory that is not its own.

    Raises:
        WireError: saying what does not fit.
    """
    if len(blocks) != record.engine_blocks or payload.nbytes != record.form.payload_bytes:
        raise WireError(
            f"{len(blocks)} blocks and {payload.nbytes} bytes are no record of {record.engine_blocks} blocks and "
            f"{record.form.payload_bytes} bytes"
        )
    if pool_blocks and not (min(blocks) >= 0 and max(blocks) < pool_blocks):
        raise WireError(f"the blocks {tuple(blocks)} are not all of the {pool_blocks} that there are")


def equally_spaced(views: Sequence[LayerView]) -> Iterator[Sequence[LayerView]]:
    """Divides layers into as few as can be copied at once."""
    first = 0
    while first < len(views):
        end = first + 1
        while end < len(views) and _goes_on(views[first : end + 1]):
            end += 1
        yield views[first:end]
        first = end


def _view(name: str, tensor: object, blocks: int, inside: Inside) -> LayerView:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
        found = f"a tensor of {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else repr(type(tensor))
        raise ConfigError(f"{name}: the KV must be one tensor [blocks, heads, tokens, content], not {found}")
    whole, parts = divmod(tensor.shape[0], blocks) if blocks > 0 else (0, 1)
    if parts or not whole or 0 in tensor.shape:
        raise ConfigError(f"{name}: a KV tensor of {tuple(tensor.shape)} does not hold {blocks} blocks")
    item = tensor.dtype.itemsize
    over_all, over_heads, over_tokens, over_content = (stride * item for stride in tensor.stride())
    shape = (blocks, tensor.shape[1], whole, tensor.shape[2], tensor.shape[3])
    strides = (over_all * whole, over_heads, over_all, over_tokens, over_content)
    block_bytes = tensor.shape[1] * whole * tensor.shape[2] * tensor.shape[3] * item
    if block_bytes != inside.block_bytes:
        raise ConfigError(f"{name}: a block of {shape[1:]} {tensor.dtype} is not of {inside.block_bytes} bytes")
    if over_content != item and tensor.shape[3] > 1:
        raise ConfigError(f"{name}: the numbers of one token lie {over_content} bytes apart, so they cannot be copied")
    view = LayerView(
        name=name,
        tensor=tensor,
        address=tensor.data_ptr(),
        shape=shape,
        strides=strides,
        item_bytes=item,
        dtype=_dtype(name, tensor.dtype),
    )
    return _as_it_lies(view) if inside.raw else view


def _as_it_lies(view: LayerView) -> LayerView:
    """The same blocks, seen as bytes.

    Raises:
        ConfigError: a block is not one run of them, in whatever order of its dimensions.
    """
    run = view.item_bytes
    for stride, size in sorted(zip(view.strides[1:], view.shape[1:], strict=True)):
        if size > 1 and stride != run:
            raise ConfigError(
                f"{view.name}: the KV is packed for a processor, and a block, {view.shape[1:]}, is not one run of bytes"
            )
        run *= size
    return replace(
        view,
        shape=(view.shape[0], 1, 1, 1, run),
        strides=(view.strides[0], run, run, run, 1),
        item_bytes=1,
        dtype="uint8",
        packed=f"{'x'.join(map(str, view.shape[1:]))} {view.tensor.dtype} at {'/'.join(map(str, view.strides[1:]))}",
    )


def _dtype(name: str, dtype: torch.dtype) -> PlaneDtype:
    if dtype.itemsize == 1:
        return "uint8"
    if dtype not in _WIDE:
        raise ConfigError(
            f"{name}: KV of {dtype} cannot be stored; of {', '.join(map(str, _WIDE))} or one byte, it can"
        )
    return _WIDE[dtype]


def _goes_on(views: Sequence[LayerView]) -> bool:
    """Whether the last of some views is as far from the one before as these are from each other."""
    same = all(view.strides == views[0].strides for view in views[-2:])
    storages = {view.tensor.untyped_storage().data_ptr() for view in (views[0], views[-1])}
    distance = views[1].address - views[0].address
    return same and len(storages) == 1 and views[-1].address - views[-2].address == distance > 0
