"""What the engine needs of whatever computes: three verbs, over plain data and bytes."""

from collections.abc import Sequence
from typing import Protocol

from kvist.base.errors import KvistError
from kvist.base.ids import BlockId
from kvist.engine.batch import Batch, Drawn


class BackendError(KvistError):
    """A computation or a copy failed for a reason other than memory."""


class Backend(Protocol):
    """Computes chunks over a paged KV pool that it owns, and copies blocks out of it and into it.

    Called by the engine's thread only.
    """

    def run(self, batch: Batch) -> Sequence[Drawn | None]:
        """Writes the KV of every token in the batch and draws a token for each chunk that wants one.

        Chunks of one batch belong to different sequences and do not read what another chunk of the same batch
        writes. Takes as long as the computation takes.

        Returns:
            One entry per chunk, in order; None where nothing was to be drawn.

        Raises:
            CapacityError: out of memory; KV of this batch may be partly written, nothing else is touched.
            BackendError: anything else; the same holds.
        """
        ...

    def copy_out(self, group: int, blocks: Sequence[BlockId], into: Sequence[memoryview]) -> None:
        """Copies blocks of a KV group to buffers, in the form of `kvist.engine.form.form_of`.

        When the call returns the bytes are there.

        Args:
            group: of the blocks.
            blocks: which; may be none.
            into: for each block as many writable bytes as a payload has.

        Raises:
            CapacityError: out of memory; buffers may be partly written.
            BackendError: anything else; the same holds.
        """
        ...

    def copy_in(self, group: int, blocks: Sequence[BlockId], sources: Sequence[memoryview]) -> None:
        """Copies payloads into blocks of a KV group, all of each block; the reverse of `copy_out`, bit for bit.

        When the call returns the sources are not looked at any more, and every later `run` sees the blocks.

        Args:
            group: of the blocks.
            blocks: which, each once; may be none.
            sources: for each block a payload, which may be read-only.

        Raises:
            CapacityError: out of memory; these blocks may be partly written, nothing else is touched.
            BackendError: anything else; the same holds.
        """
        ...
