"""Which running request is about to compute which block, so that nobody computes it twice.

A request whose next block is in flight waits for it instead: two equal prompts that arrive together compute
their common prefix once.
"""

from collections import deque
from collections.abc import Iterable

from kvist.base.ids import BlockHash, RequestId


class InFlight:
    """Blocks by the request that will compute them; the first to claim a block has it."""

    def __init__(self) -> None:
        self._claims: dict[RequestId, deque[BlockHash]] = {}
        self._owner: dict[BlockHash, RequestId] = {}

    def __contains__(self, block: BlockHash | None) -> bool:
        return block in self._owner

    def __len__(self) -> int:
        return len(self._owner)

    def claim(self, owner: RequestId, blocks: Iterable[BlockHash]) -> None:
        """The owner will compute these blocks, in this order."""
        claims = self._claims[owner] = deque(blocks)
        for block in claims:
            self._owner.setdefault(block, owner)

    def settle(self, owner: RequestId, count: int) -> None:
        """The owner has computed its next `count` blocks, of which those beyond its claims do not matter."""
        claims = self._claims[owner]
        for _ in range(min(count, len(claims))):
            self._withdraw(owner, claims.popleft())

    def drop(self, owner: RequestId) -> None:
        """The owner will compute nothing more."""
        for block in self._claims.pop(owner):
            self._withdraw(owner, block)

    def _withdraw(self, owner: RequestId, block: BlockHash) -> None:
        if self._owner.get(block) == owner:
            del self._owner[block]
