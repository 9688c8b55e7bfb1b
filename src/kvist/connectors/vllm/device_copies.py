"""Records to and from KV tensors in the memory of a device, beside what it computes.

    out   compute stream: blocks ──▶ scratch    beside: scratch ──▶ payload      so sources are never read late
    in    beside: payload ──▶ scratch ──▶ blocks, once the compute stream is done with what was ordered before

The compute stream waits for neither; whoever ordered a copy asks whether it is over.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from kvist.base.errors import CapacityError
from kvist.connectors.vllm.host_copies import Done, HostCopies, carried_out
from kvist.connectors.vllm.shapes import RecordShape, Share
from kvist.connectors.vllm.views import LayerView, check_order, equally_spaced


class DeviceCopies:
    """Copies of one group; one thread at a time.

    Attributes:
        in_bytes, out_bytes: of one record that this worker reads and writes.
    """

    def __init__(
        self, views: Sequence[LayerView], record: RecordShape, share: Share, side: torch.cuda.Stream | None
    ) -> None:
        """Looks at the tensors.

        Args:
            views: the group's layers that this worker has.
            record: what payloads look like.
            share: which part of them is this worker's.
            side: a stream beside the one that computes; None: the device has none, and each call waits.
        """
        assert len(views) == share.layers, f"{len(views)} layers, not {share.layers}"
        self._record = record
        self._share = share
        self._side = side
        self._runs = [_blocks_of(together) for together in equally_spaced(views)]
        self._blocks = views[0].shape[0] if views else 0
        self.in_bytes = sum(run[0].numel() for run in self._runs) * record.engine_blocks
        self.out_bytes = self.in_bytes if share.writes else 0

    def copy_out(self, blocks: Sequence[int], into: memoryview) -> Done:
        """Fills this worker's part of a payload, unless another one does; the blocks are read before what follows.

        Raises:
            WireError: they are not what a record of this group is made of.
        """
        check_order(self._record, self._blocks, blocks, into)
        if not (self._share.writes and self._runs):
            return carried_out
        # [layers, heads, blocks, parts, tokens, bytes], as the payload has them.
        scratch = [torch.stack([run[block] for block in blocks], dim=2) for run in self._runs]
        with self._beside():
            for run, target in zip(scratch, self._parts(into, scratch), strict=True):
                for layer, place in zip(run, target, strict=True):  # the heads of one layer lie together
                    place.copy_(layer, non_blocking=True)
                if self._side is not None:
                    run.record_stream(self._side)
            return self._once_done()

    def copy_in(self, blocks: Sequence[int], source: memoryview) -> Done:
        """Fills the engine's blocks from this worker's part of a payload.

        Raises:
            WireError: they are not what a record of this group is made of.
        """
        check_order(self._record, self._blocks, blocks, source)
        if not self._runs:
            return carried_out
        with self._beside():
            shapes = [torch.Size((*run.shape[1:3], len(blocks), *run.shape[3:])) for run in self._runs]
            scratch = [torch.empty(shape, dtype=torch.uint8, device=self._runs[0].device) for shape in shapes]
            for held, run, origin in zip(self._runs, scratch, self._parts(source, scratch), strict=True):
                for layer, place in zip(run, origin, strict=True):
                    layer.copy_(place, non_blocking=True)
                for place, block in enumerate(blocks):
                    held[block].copy_(run[:, :, place])
            return self._once_done()

    def _parts(self, payload: memoryview, scratch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This worker's part of a payload, as some layers after the other."""
        layers, heads, _, _ = self._record.form.planes[0].shape
        whole = torch.frombuffer(payload, dtype=torch.uint8).view(layers, heads, *scratch[0].shape[2:])
        share = self._share
        mine = whole[share.layers_first :, share.heads_first : share.heads_first + share.heads]
        return list(torch.split(mine[: share.layers], [len(run) for run in scratch]))

    def _beside(self) -> AbstractContextManager[object]:
        """Runs what follows on the stream beside, after all that the compute stream has been given so far."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        return torch.cuda.stream(self._side)

    def _once_done(self) -> Done:
        if self._side is None:
            return carried_out
        event: torch.cuda.Event = self._side.record_event()
        return event.query


Copies = HostCopies | DeviceCopies


def copies_of(views: Sequence[LayerView], record: RecordShape, share: Share, side: torch.cuda.Stream | None) -> Copies:
    """How blocks of these tensors are copied."""
    if not views or views[0].tensor.device.type == "cpu":
        return HostCopies(views, record, share)
    return DeviceCopies(views, record, share, side)


def side_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream beside the one that computes, where the device has such."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]  # torch has no types for it


def pinned(memory: memoryview) -> Callable[[], None]:
    """Tells CUDA of memory, so that it copies to and from it without the host; returns what undoes it.

    Raises:
        CapacityError: it refuses.
    """
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types for it
    code = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if code:
        raise CapacityError(f"the device refuses {memory.nbytes} bytes of shared memory with error {code}")
    return partial(runtime.cudaHostUnregister, address)


def _blocks_of(views: Sequence[LayerView]) -> torch.Tensor:
    """Some equally spaced layers as bytes, [blocks, layers, heads, parts, tokens, bytes]; the same memory."""
    first = views[0]
    storage = first.tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=first.tensor.device).set_(storage)
    distance = views[1].address - first.address if len(views) > 1 else 0
    blocks, *inner = first.shape
    inner[-1] *= first.item_bytes
    strides = (first.strides[0], distance, *first.strides[1:-1], 1)
    return whole.as_strided((blocks, len(views), *inner), strides, first.address - storage.data_ptr())
