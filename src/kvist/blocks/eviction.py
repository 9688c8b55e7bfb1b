"""Which cached block to give up first, behind a Protocol so that other orders can be tried.

Knows only the order in which blocks became cached, and is told which have a copy elsewhere; the pool decides when
to ask.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from kvist.base.ids import BlockId

IsCopied = Callable[[BlockId], bool]
"""Whether a cached block has a copy in a tier below."""


class EvictionPolicy(Protocol):
    """Orders the CACHED blocks of one pool.

    The pool calls `add` when a block becomes CACHED, `remove` when it stops being CACHED for any reason
    (`choose` does not remove), and never adds a block twice. Called by one thread; each call is expected to
    cost at most O(log n), and a bounded number of questions to `is_copied`.
    """

    def add(self, block: BlockId) -> None:
        """A block became CACHED. Of the blocks that a sequence releases at its end, the last is added first."""
        ...

    def remove(self, block: BlockId) -> None:
        """A block is no longer CACHED."""
        ...

    def choose(self, is_copied: IsCopied) -> BlockId:
        """The block to give up next; there is at least one. Does not change the order.

        Args:
            is_copied: may be asked of CACHED blocks; answers can change between calls.
        """
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

    def choose(self, is_copied: IsCopied) -> BlockId:  # noqa: ARG002 - this order does not look at copies
        """The block at the head of the queue."""
        return next(iter(self._order))


class CopiesFirst(LeastRecentlyUsed):
    """Least recently used, but of the next few it rather gives up one that can be loaded again.

    Only a few are looked at, so that what nobody wants does not stay for ever because it could not be copied. Who had
    no copy is not asked about again at once, so that evictions stay cheap while no tier takes anything.
    """

    LOOK_AHEAD = 64
    """Blocks at the head of the queue among which one with a copy is looked for."""

    ASKED_FOR = 16
    """So many choices later all of them are asked about again."""

    def __init__(self) -> None:
        super().__init__()
        self._without: set[BlockId] = set()
        self._choices = 0

    def remove(self, block: BlockId) -> None:
        """Takes the block out of the queue, and forgets what was known of it."""
        super().remove(block)
        self._without.discard(block)

    def choose(self, is_copied: IsCopied) -> BlockId:
        """The first near the head of the queue that has a copy, as far as is known, else the one at the head."""
        self._choices += 1
        if self._choices % self.ASKED_FOR == 0:
            self._without.clear()
        for block in islice(self._order, self.LOOK_AHEAD):
            if block not in self._without:
                if is_copied(block):
                    return block
                self._without.add(block)
        return next(iter(self._order))
