"""vLLM's blocks, naively: one pool for all groups, references counted, found by hash until they are given away."""

from collections import OrderedDict

Named = tuple[int, bytes]
"""A group, and vLLM's hash of a block."""


class Pool:
    """Blocks 1 to n - 1; block 0 stands where there is none. Freed blocks are given away longest free first."""

    def __init__(self, blocks: int) -> None:
        self._references = [0] * blocks
        self._free = OrderedDict.fromkeys(range(1, blocks))
        self._names: dict[int, Named] = {}
        self._cached: dict[Named, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def find(self, name: Named) -> int | None:
        """The block that holds this."""
        return self._cached.get(name)

    def is_free(self, block: int) -> bool:
        """Whether nobody holds it."""
        return block in self._free

    def touch(self, block: int) -> None:
        """One holder more."""
        self._references[block] += 1
        self._free.pop(block, None)

    def take(self) -> int:
        """A block that holds nothing any more."""
        block, _ = self._free.popitem(last=False)
        self._unname(block)
        self._references[block] = 1
        return block

    def name(self, block: int, name: Named) -> None:
        """From now on the block is found by this, unless another one already is."""
        if block not in self._names and name not in self._cached:
            self._names[block] = name
            self._cached[name] = block

    def release(self, block: int) -> None:
        """One holder less."""
        assert self._references[block] > 0, f"block {block} is nobody's, and was released"
        self._references[block] -= 1
        if not self._references[block]:
            self._free[block] = None

    def forget(self) -> None:
        """Nothing is found by its hash any more."""
        for block in list(self._names):
            self._unname(block)

    def _unname(self, block: int) -> None:
        name = self._names.pop(block, None)
        if name is not None:
            del self._cached[name]
