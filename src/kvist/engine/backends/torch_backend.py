"""The backend: a transformers model over the paged pool.

Knows how to turn a batch of plain data into one forward pass and back. Everything that another device or
another model family needs lies beside it: `device`, `loading`, `attention`.
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from kvist.base.errors import CapacityError
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
        try:
            drawn = iter(draw(self.logits(batch), [chunk.draw for chunk in batch if chunk.draw is not None]))
        # What torch raises of its own: most is a RuntimeError, a wrong index or shape may be one of the last two.
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if is_out_of_memory(error):
                raise CapacityError(f"a step of {sum(len(c.tokens) for c in batch)} tokens: {error}") from error
            raise BackendError(f"the model failed: {error}") from error
        return [None if chunk.draw is None else next(drawn) for chunk in batch]

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
