"""Whose turn it is to be evicted: by class, by tenant, and extent by extent.

Knows which records may be evicted (acknowledged, not held, not pinned, not about to be removed) and in which order;
does not evict. Three questions, each O(1):

    first_of_class     frees a place of exactly the length that is wanted
    first_of_tenant    keeps a tenant within its quota at nobody else's expense
    oldest_extent      frees an extent for another class: the one whose last use is longest ago

For a record that is one too many, whatever its length, `firsts` names the first of each class.

An extent with one record that must stay is not among the extents.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvist.blocks.keys import BlockKey, TenantTag
from kvist.fabric.policies import EvictionOrder
from kvist.fabric.rows import Row


class _Queue:
    """An eviction order that knows how long it is."""

    __slots__ = ("count", "order")

    def __init__(self, order: EvictionOrder) -> None:
        self.order = order
        self.count = 0


@dataclass(slots=True)
class _Extent:
    """Counts of one extent's records, by whether they have a turn, and when one was last used."""

    staying: int = 0
    leaving: int = 0
    used: int = 0


class Turns:
    """The orders of one tier's records. Called by `Book` alone, which looks records up by key."""

    def __init__(
        self, extents: int, make_order: Callable[[], EvictionOrder], has_quota: Callable[[TenantTag], bool]
    ) -> None:
        """Starts without records.

        Args:
            extents: of the tier's space.
            make_order: of the records of one class, and of those of one class and tenant.
            has_quota: whether a tenant ever has to make room for itself; the answer does not change.
        """
        self._make_order = make_order
        self._has_quota = has_quota
        self._classes: dict[int, _Queue] = {}
        self._tenants: dict[TenantTag, dict[int, _Queue]] = {}
        self._extents = [_Extent() for _ in range(extents)]
        self._extent_order: OrderedDict[int, None] = OrderedDict()
        self._moment = 0

    def enter(self, row: Row) -> None:
        """A record took its place; it has no turn yet."""
        self._extents[row.extent].staying += 1
        self._extent_order.pop(row.extent, None)

    def leave(self, row: Row) -> None:
        """A record without a turn gave its place back."""
        self._extents[row.extent].staying -= 1
        self._settle(row)

    def allow(self, row: Row) -> None:
        """A record gets a turn, behind all others."""
        for queues in self._orders(row):
            queue = queues.get(row.place.length)
            if queue is None:
                queue = queues[row.place.length] = _Queue(self._make_order())
            queue.order.add(row.key)
            queue.count += 1
        extent = self._extents[row.extent]
        extent.staying -= 1
        extent.leaving += 1
        self._settle(row)

    def forbid(self, row: Row) -> None:
        """A record has no turn any more and stays."""
        self._unqueue(row)
        extent = self._extents[row.extent]
        extent.staying += 1
        extent.leaving -= 1
        self._extent_order.pop(row.extent, None)

    def drop(self, row: Row) -> None:
        """A record with a turn gave its place back; its extent keeps its own turn."""
        self._unqueue(row)
        extent = self._extents[row.extent]
        extent.leaving -= 1
        if not extent.leaving:
            self._extent_order.pop(row.extent, None)

    def touch(self, row: Row) -> None:
        """A record with a turn was wanted, without being held."""
        for queues in self._orders(row):
            queues[row.place.length].order.touch(row.key)
        self._settle(row)

    def first_of_class(self, length: int) -> BlockKey | None:
        """The first record with places of this length; None when none has a turn."""
        queue = self._classes.get(length)
        return queue.order.choose() if queue is not None and queue.count else None

    def firsts(self) -> list[BlockKey]:
        """The first record of each class that has one."""
        return [queue.order.choose() for queue in self._classes.values() if queue.count]

    def first_of_tenant(self, tenant: TenantTag, length: int) -> BlockKey:
        """A tenant's first record: of this length if it has one, else of the length of which it has most.

        The tenant has a quota, and a record with a turn.
        """
        queues = self._tenants[tenant]
        queue = queues.get(length)
        if queue is None or not queue.count:
            queue = max(queues.values(), key=lambda each: each.count)
        return queue.order.choose()

    def bytes_of_tenant(self, tenant: TenantTag) -> int:
        """Bytes of the records with a turn of a tenant that has a quota."""
        return sum(length * queue.count for length, queue in self._tenants.get(tenant, {}).items())

    def oldest_extent(self) -> int | None:
        """The extent whose last use is longest ago, of those whose records all have a turn."""
        return next(iter(self._extent_order), None)

    def used(self, extent: int) -> int:
        """When a record of the extent was last used, comparable with `Row.used`."""
        return self._extents[extent].used

    def audit(self, rows: Sequence[Row]) -> None:
        """Compares with all records there are.

        Raises:
            AssertionError: naming what differs.
        """
        free = [row for row in rows if row.evictable]
        by_class = {length: queue.count for length, queue in self._classes.items() if queue.count}
        assert by_class == Counter(row.place.length for row in free), f"{by_class} records by length have a turn"
        by_tenant = {
            (tenant, length): each.count for tenant, all_ in self._tenants.items() for length, each in all_.items()
        }
        right = Counter((row.tenant, row.place.length) for row in free if self._has_quota(row.tenant))
        assert by_tenant == right, f"{by_tenant} records by tenant and length have a turn, not {right}"
        leaving, all_rows = Counter(row.extent for row in free), Counter(row.extent for row in rows)
        for index, extent in enumerate(self._extents):
            counted = (leaving[index], all_rows[index] - leaving[index])
            assert (extent.leaving, extent.staying) == counted, f"extent {index}: {extent}, not {counted}"
            emptied = 0 < leaving[index] == all_rows[index]
            assert emptied == (index in self._extent_order), f"extent {index} may be emptied: {emptied}"

    def _orders(self, row: Row) -> tuple[dict[int, _Queue], ...]:
        """Where the record has a turn: among all of its class, and among its tenant's."""
        if not self._has_quota(row.tenant):
            return (self._classes,)
        return (self._classes, self._tenants.setdefault(row.tenant, {}))

    def _unqueue(self, row: Row) -> None:
        length = row.place.length
        for queues in self._orders(row):
            queue = queues[length]
            queue.order.remove(row.key)
            queue.count -= 1
            if not queue.count and queues is not self._classes:  # there may be many tenants, most of them gone
                del queues[length]
                if not queues:
                    del self._tenants[row.tenant]

    def _settle(self, row: Row) -> None:
        """Marks a use of the record, and gives its extent the turn that follows from it."""
        self._moment += 1
        extent = self._extents[row.extent]
        row.used = extent.used = self._moment
        if extent.leaving and not extent.staying:
            self._extent_order[row.extent] = None
            self._extent_order.move_to_end(row.extent)
        else:
            self._extent_order.pop(row.extent, None)
