"""The backend: a transformers model over the paged pool.

Knows how to turn a batch of plain data into one forward pass and back. Everything that another device or
another model family needs lies beside it: `device`, `loading`, `attention`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from kvist.base.errors import CapacityError
from kvist.base.ids import BlockId
from kvist.engine.backend import BackendError
from kvist.engine.backends.attention import PagedStep
from kvist.engine.backends.device import is_out_of_memory
from kvist.engine.backends.kv_store import KvStore
from kvist.engine.backends.masks import MaskCache
from kvist.engine.backends.sampler import draw
from kvist.engine.backends.tiles import TILE_ROWS
from kvist.engine.batch import Batch, Drawn


class TorchBackend:
    """Computes chunks with a model whose attention is `kvist.engine.backends.attention`."""

    def __init__(self, model: PreTrainedModel, store: KvStore) -> None:
        """Binds a loaded model to its KV tensors, which have its dtype and device."""
        self.store = store
        self._model = model
        self._masks = MaskCache(dtype=store.dtype, device=store.device, tile_rows=TILE_ROWS)
        self._places = {
            layer: (group, place)
            for group, layers in enumerate(group.layers for group in store.groups)
            for place, layer in enumerate(layers)
        }

    def run(self, batch: Batch) -> Sequence[Drawn | None]:
        """Writes the KV of the batch and draws where a draw is wanted; see `Backend.run`."""
        with _translated(f"a step of {sum(len(chunk.tokens) for chunk in batch)} tokens"):
            drawn = iter(draw(self.logits(batch), [chunk.draw for chunk in batch if chunk.draw is not None]))
        return [None if chunk.draw is None else next(drawn) for chunk in batch]

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
        tokens = [token for chunk in batch for token in chunk.tokens]
        positions = [chunk.start + offset for chunk in batch for offset in range(len(chunk.tokens))]
        last_rows: list[int] = []
        row = -1
        for chunk in batch:
            row += len(chunk.tokens)
            if chunk.draw is not None:
                last_rows.append(row)
        with torch.inference_mode():
            output = self._model(
                input_ids=torch.tensor([tokens], device=device),
                position_ids=torch.tensor([positions], device=device),
                use_cache=False,
                logits_to_keep=torch.tensor(last_rows, dtype=torch.long, device=device),
                kvist=PagedStep(batch, self.store, self._masks, self._places),
            )
        logits: torch.Tensor = output.logits[0]
        return logits


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Makes ours what torch raises of its own: mostly RuntimeError; a wrong index or shape may be one of two more."""
    try:
        yield
    except (RuntimeError, MemoryError, IndexError, ValueError) as error:
        if is_out_of_memory(error):
            raise CapacityError(f"{what}: {error}") from error
        raise BackendError(f"the model failed: {error}") from error
