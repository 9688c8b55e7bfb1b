"""Records to and from KV tensors in host memory, by strides.

For each layer, or for all layers that lie at one distance from each other, a record is one strided copy whose items are
the longest runs of bytes that record and tensor have in common: from one token of one head up to a block of all layers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvist.connectors.vllm.shapes import RecordShape, Share
from kvist.connectors.vllm.views import LayerView, check_order, equally_spaced

Items = np.ndarray[Any, np.dtype[np.void]]

Done = Callable[[], bool]
"""Whether a copy has been carried out."""

_ITEMS_MIN = 512
"""Smaller arrays numpy copies without letting other threads run; it does not mind cutting runs for that."""


def carried_out() -> bool:
    """A copy on the host is over when the call is."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """Some layers at one distance from each other, as what one copy takes.

    Attributes:
        blocks: the engine's, [blocks, *shape]; holds on to the memory.
        shape, strides: of the other side: one of the engine's blocks in a payload.
        offset: in a payload, of the first of the engine's blocks.
        item: bytes that lie together on both sides.
    """

    blocks: Items
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    item: int


class HostCopies:
    """Copies of one group; one thread at a time.

    Attributes:
        in_bytes, out_bytes: of one record that this worker reads and writes.
    """

    def __init__(self, views: Sequence[LayerView], record: RecordShape, share: Share) -> None:
        """Looks at the tensors, and at which part of a payload is this worker's."""
        assert len(views) == share.layers, f"{len(views)} layers, not {share.layers}"
        self._record = record
        self._writes = share.writes
        self._block_step = 0
        self._layers: list[_Layers] = []
        first = share.layers_first
        for together in equally_spaced(views):
            self._layers.append(_layers_of(together, record, first, share.heads_first))
            first += len(together)
        if views:
            _, _, parts, tokens, content = views[0].shape
            self._block_step = parts * tokens * content * views[0].item_bytes
        self._blocks = views[0].shape[0] if views else 0
        self.in_bytes = sum(math.prod(each.shape) * each.item for each in self._layers) * record.engine_blocks
        self.out_bytes = self.in_bytes if share.writes else 0

    def copy_out(self, blocks: Sequence[int], into: memoryview) -> Done:
        """Fills this worker's part of a payload, unless another one does.

        Raises:
            WireError: they are not what a record of this group is made of.
        """
        check_order(self._record, self._blocks, blocks, into)
        if self._writes:
            for held, payload in self._pairs(blocks, into):
                np.copyto(payload, held)
        return carried_out

    def copy_in(self, blocks: Sequence[int], source: memoryview) -> Done:
        """Fills the engine's blocks from this worker's part of a payload.

        Raises:
            WireError: they are not what a record of this group is made of.
        """
        check_order(self._record, self._blocks, blocks, source)
        for held, payload in self._pairs(blocks, source):
            np.copyto(held, payload)
        return carried_out

    def _pairs(self, blocks: Sequence[int], payload: memoryview) -> Iterator[tuple[Items, Items]]:
        for layers in self._layers:
            kind = f"V{layers.item}"
            for place, block in enumerate(blocks):
                offset = layers.offset + place * self._block_step
                yield layers.blocks[block], np.ndarray(layers.shape, kind, payload, offset, layers.strides)


def _layers_of(views: Sequence[LayerView], record: RecordShape, layers_first: int, heads_first: int) -> _Layers:
    """How some equally spaced layers lie in the tensors, and in a payload."""
    blocks, heads, parts, tokens, content = views[0].shape
    run = content * views[0].item_bytes
    distance = views[1].address - views[0].address if len(views) > 1 else 0
    over_blocks, over_heads, over_parts, over_tokens, _ = views[0].strides
    plane = record.form.planes[0]
    over_heads_there = plane.shape[2] * run
    over_layers_there = plane.shape[1] * over_heads_there
    # Outermost first: layers, heads, parts, tokens.
    sizes = [len(views), heads, parts, tokens]
    here = [distance, over_heads, over_parts, over_tokens]
    there = [over_layers_there, over_heads_there, tokens * run, run]
    while sizes and (sizes[-1] == 1 or here[-1] == there[-1] == run):
        run *= sizes.pop()
        here.pop()
        there.pop()
    item = run // _cuts(run, math.prod(sizes))
    shape = (*sizes, run // item)
    storage = views[0].tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    held: Items = np.ndarray(
        (blocks, *shape), f"V{item}", whole.data, views[0].address - storage.data_ptr(), (over_blocks, *here, item)
    )
    offset = layers_first * over_layers_there + heads_first * over_heads_there
    return _Layers(blocks=held, shape=shape, strides=(*there, item), offset=offset, item=item)


def _cuts(run: int, runs: int) -> int:
    """Into how many items a run is cut, so that one copy has many of them."""
    cuts = 1
    while runs * cuts < _ITEMS_MIN and run % (cuts * 2) == 0 and run // (cuts * 2) >= 64:
        cuts *= 2
    return cuts
