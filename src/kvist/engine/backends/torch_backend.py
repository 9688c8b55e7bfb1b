"""The backend: a transformers model over the paged pool.

Knows how to turn a batch of plain data into one forward pass and back. Everything that another device or
another model family needs lies beside it: `device`, `loading`, `attention`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from transformers import PreTrainedModel

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId
from kvist.engine.backend import BackendError
from kvist.engine.backends.attention import PagedStep, Step
from kvist.engine.backends.cpu.step import CpuMemory, CpuStep
from kvist.engine.backends.device import is_out_of_memory, runs_kernels
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.sampler import draw
from kvist.engine.backends.tiles import TILE_ROWS
from kvist.engine.batch import Batch, Drawn, Integers

LayOut = Callable[[Batch], Step]
"""Makes a step's attention of its batch."""


def by_torch(store: KvStore) -> LayOut:
    """Attention by operations of torch: on any device, in any dtype."""
    masks = MaskCache(dtype=store.dtype, device=store.device, tile_rows=TILE_ROWS)
    places = _places(store)
    return lambda batch: PagedStep(batch, store, masks, places)


def by_kernels(store: KvStore) -> LayOut:
    """Attention by kernels, which fused layers need; where `runs_kernels` says so."""
    memory = CpuMemory(store, _places(store))
    return lambda batch: CpuStep(batch, memory)


def _places(store: KvStore) -> dict[int, tuple[int, int]]:
    """For each layer of the model its group and its index within the group."""
    return {
        layer: (group, place)
        for group, layers in enumerate(group.layers for group in store.groups)
        for place, layer in enumerate(layers)
    }


class TorchBackend:
    """Computes chunks with a model whose attention is `kvist.engine.backends.attention`."""

    def __init__(self, model: PreTrainedModel, store: KvStore, lay_out: LayOut | None = None) -> None:
        """Binds a loaded model to its KV tensors, which have its dtype and device.

        Args:
            model: with layers as they were, or fused; one step of it is computed at a time.
            store: its KV tensors.
            lay_out: how steps attend; None takes kernels where there are some.
        """
        self.store = store
        self._model = model
        kernels = runs_kernels(store.device, store.dtype)
        self._lay_out = lay_out or (by_kernels(store) if kernels else by_torch(store))

    def run(self, batch: Batch) -> Sequence[Drawn | None]:
        """Writes the KV of the batch and draws where a draw is wanted; see `Backend.run`."""
        with _translated(f"a step of {len(batch.tokens)} tokens"):
            drawn = iter(draw(self.logits(batch), [spec for spec in batch.draws if spec is not None]))
        return [None if spec is None else next(drawn) for spec in batch.draws]

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Copies blocks to buffers; see `Backend.copy_out`."""
        with _translated(f"copying {len(blocks)} blocks out"):
            self.store.copy_out(group, blocks, into)

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Copies payloads into blocks; see `Backend.copy_in`."""
        with _translated(f"copying {len(blocks)} blocks in"):
            self.store.copy_in(group, blocks, sources)

    def logits(self, batch: Batch) -> torch.Tensor:
        """Writes the KV of the batch; returns [chunks that want a draw, vocab]."""
        device = self.store.device
        last_rows = [
            end - 1 for end, spec in zip(accumulate(batch.counts), batch.draws, strict=True) if spec is not None
        ]
        with torch.inference_mode():
            output = self._model(
                input_ids=_row(batch.tokens, device),
                position_ids=_row(batch.positions, device),
                use_cache=False,
                logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
                kvist=self._lay_out(batch),
            )
        logits: torch.Tensor = output.logits[0]
        return logits


def _row(column: Integers, device: torch.device) -> torch.Tensor:
    """A copy of a column as [1, rows]."""
    return torch.frombuffer(column, dtype=torch.int64).to(device, copy=True).unsqueeze(0)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Makes ours what torch raises of its own: mostly RuntimeError; a wrong index or shape may be one of two more."""
    try:
        yield
    except (RuntimeError, MemoryError, IndexError, ValueError) as error:
        if is_out_of_memory(error):
            raise CapacityError(f"{what}: {error}") from error
        raise BackendError(f"the model failed: {error}") from error
