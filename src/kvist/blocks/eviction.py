"""Which cached block to give up first, behind a Protocol so that other orders can be tried.

Knows only the order in which blocks became cached; the pool decides when to ask.
"""

from collections import OrderedDict
from typing import Protocol

from kvist.base.ids import BlockId


class EvictionPolicy(Protocol):
    """Orders the CACHED blocks of one pool.

    The pool calls `add` when a block becomes CACHED, `remove` when it stops being CACHED for any reason
    (`choose` does not remove), and never adds a block twice. Called by one thread; each call is expected to
    cost at most O(log n).
    """

    def add(self, block: BlockId) -> None:
        """A block became CACHED. Of the blocks that a sequence releases at its end, the last is added first."""
        ...

    def remove(self, block: BlockId) -> None:
        """A block is no longer CACHED."""
        ...

    def choose(self) -> BlockId:
        """The block to give up next; there is at least one. Does not change the order."""
        ...


class LeastRecentlyUsed:
    """Gives up the block that nobody has held for longest.

    Because a sequence that ends adds its blocks last to first, the tail of a prefix goes before its head, and what
    stays is still reachable.
    """

    def __init__(self) -> None:
        self._order: OrderedDict[BlockId, None] = OrderedDict()

    def add(self, block: BlockId) -> None:
        """Puts the block at the far end of the queue."""
        self._order[block] = None

    def remove(self, block: BlockId) -> None:
        """Takes the block out of the queue, wherever it stands."""
        del self._order[block]

    def choose(self) -> BlockId:
        """The block at the head of the queue."""
        return next(iter(self._order))
