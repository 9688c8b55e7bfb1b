"""What the engine needs of whatever computes: one verb, over plain data."""

from collections.abc import Sequence
from typing import Protocol

from kvist.base.errors import KvistError
from kvist.engine.batch import Batch, Drawn


class BackendError(KvistError):
    """A computation failed for a reason other than memory."""


class Backend(Protocol):
    """Computes chunks over a paged KV pool that it owns."""

    def run(self, batch: Batch) -> Sequence[Drawn | None]:
        """Writes the KV of every token in the batch and draws a token for each chunk that wants one.

        Chunks of one batch belong to different sequences and do not read what another chunk of the same batch
        writes. Called by the engine's thread only; takes as long as the computation takes.

        Returns:
            One entry per chunk, in order; None where nothing was to be drawn.

        Raises:
            CapacityError: out of memory; KV of this batch may be partly written, nothing else is touched.
            BackendError: anything else; the same holds.
        """
        ...
