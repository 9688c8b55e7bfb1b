"""vLLM's hashes of one sequence as ours: one per block of the fabric, from the last fine hash inside it.

vLLM hashes every so many tokens, and each hash stands for all before it; so a longer block's hash is its last one.
"""

from collections.abc import Sequence

from kvist.base.ids import BlockHash
from kvist.blocks.keys import TenantKey, foreign_hasher


class ForeignChain:
    """The hashes of one sequence's full blocks, made as vLLM's grow. About a microsecond per block."""

    def __init__(self, key: TenantKey, scheme: bytes, *, adapter: bytes, stride: int) -> None:
        """Starts an empty chain.

        Args:
            key: of the tenant.
            scheme: how vLLM hashes, and what its chains start from.
            adapter: digest of the adapter's files; empty for none.
            stride: fine hashes per block.
        """
        assert stride > 0, f"a block has {stride} hashes"
        self._hashed = foreign_hasher(key, scheme, adapter)
        self._stride = stride
        self._hashes: list[BlockHash] = []
        self._last: bytes | None = None

    def extend_to(self, hashes: Sequence[bytes]) -> Sequence[BlockHash]:
        """Hashes every block that is full by now, and returns the whole chain, which the caller must not change.

        Args:
            hashes: of the sequence, from its first token on. If it is no longer the sequence that it was (the end of
                one that is fed piece by piece is taken back), the chain is made anew.
        """
        stride, done = self._stride, len(self._hashes)
        if done and (len(hashes) < done * stride or hashes[done * stride - 1] != self._last):
            self._hashes, done = [], 0
        full = len(hashes) // stride
        if full > done:
            self._hashes += [self._hashed(hashes[index * stride - 1]) for index in range(done + 1, full + 1)]
            self._last = hashes[full * stride - 1]
        return self._hashes
