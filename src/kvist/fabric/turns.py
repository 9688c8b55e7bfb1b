"""Whose turn it is to be evicted: by class, by tenant, and extent by extent.

Knows which records may be evicted (acknowledged, not held, not pinned, not about to be removed) and in which order;
does not evict. Three questions, each O(1):

    first_of_class     frees a place of exactly the length that is wanted
    first_of_tenant    keeps a tenant within its quota at nobody else's expense
    oldest_extent      frees an extent for another class: the one whose last use is longest ago

An extent with one record that must stay is not among the extents.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.fabric.claims import Cause
from kvist.fabric.messages import Ticket
from kvist.fabric.policies import EvictionOrder
from kvist.tiers.ports import Address, Entry

Scope = tuple[Namespace, GroupId, TenantTag]
"""Whose blocks of which group of which model."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One place in use, from its reservation until it is free again.

    Attributes:
        offset, length, extent: the place.
        expires_unix_s: None: never.
        writer: who writes it; None once it was acknowledged.
        entry: what was acknowledged; None until then.
        holders: who reads it.
        doomed: why it goes when the last of writer and holders lets go; nobody finds it any more.
        used: counts up whenever some record is used.
    """

    address: Address
    offset: int
    length: int
    extent: int
    record_bytes: int
    expires_unix_s: float | None
    writer: Ticket | None
    entry: Entry | None = None
    holders: tuple[Ticket, ...] = ()
    doomed: Cause | None = None
    used: int = 0

    @property
    def key(self) -> BlockKey:
        """Of the record."""
        return self.address.key

    @property
    def tenant(self) -> TenantTag:
        """Whose it is."""
        return self.address.tenant

    @property
    def scope(self) -> Scope:
        """Where look-ups in bulk find it."""
        return (self.address.key.namespace, self.address.key.group, self.address.tenant)

    @property
    def evictable(self) -> bool:
        """Whether it has a turn."""
        entry = self.entry
        return entry is not None and not self.holders and not entry.pinned and self.doomed is None

    def alive(self, now_unix_s: float) -> bool:
        """Whether it has not expired; a time that is not a number has passed."""
        return self.expires_unix_s is None or self.expires_unix_s > now_unix_s


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


@dataclass(slots=True)
class _Tenant:
    queues: dict[int, _Queue] = field(default_factory=dict)
    bytes: int = 0


class Turns:
    """The orders of one tier's records. Called by `Book` alone, which looks records up by key."""

    def __init__(self, extents: int, make_order: Callable[[], EvictionOrder]) -> None:
        """Starts without records, in `extents` extents."""
        self._make_order = make_order
        self._classes: dict[int, _Queue] = {}
        self._tenants: dict[TenantTag, _Tenant] = {}
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
        for queue in self._queues(row):
            queue.order.add(row.key)
            queue.count += 1
        self._tenants[row.tenant].bytes += row.length
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
        for queue in self._queues(row):
            queue.order.touch(row.key)
        self._settle(row)

    def first_of_class(self, length: int) -> BlockKey | None:
        """The first record with places of this length; None when none has a turn."""
        queue = self._classes.get(length)
        return queue.order.choose() if queue is not None and queue.count else None

    def first_of_tenant(self, tenant: TenantTag, length: int) -> BlockKey:
        """A tenant's first record: of this length if it has one, else of the length of which it has most.

        The tenant has a record with a turn.
        """
        queues = self._tenants[tenant].queues
        queue = queues.get(length)
        if queue is None or not queue.count:
            queue = max(queues.values(), key=lambda each: each.count)
        return queue.order.choose()

    def bytes_of_tenant(self, tenant: TenantTag) -> int:
        """Bytes of a tenant's records that have a turn."""
        found = self._tenants.get(tenant)
        return 0 if found is None else found.bytes

    def oldest_extent(self) -> int | None:
        """The extent whose last use is longest ago, of those whose records all have a turn."""
        return next(iter(self._extent_order), None)

    def used(self, extent: int) -> int:
        """When a record of the extent was last used, comparable with `Row.used`."""
        return self._extents[extent].used

    def audit(self, rows: list[Row]) -> None:
        """Compares with all records there are.

        Raises:
            AssertionError: naming what differs.
        """
        free = [row for row in rows if row.evictable]
        for name, queues in (("classes", self._classes), ("tenants", None)):
            counts: dict[int, int] = {}
            found = [queues] if queues is not None else [each.queues for each in self._tenants.values()]
            for length, queue in ((length, queue) for each in found for length, queue in each.items()):
                counts[length] = counts.get(length, 0) + queue.count
            right = {length: sum(row.length == length for row in free) for length in counts}
            assert counts == right, f"{name}: {counts} have a turn, not {right}"
            assert {row.length for row in free} <= set(counts), f"{name}: a length without an order"
        for index, extent in enumerate(self._extents):
            mine = [row for row in rows if row.extent == index]
            leaving = sum(row.evictable for row in mine)
            assert (extent.leaving, extent.staying) == (leaving, len(mine) - leaving), f"extent {index}: {extent}"
            emptied = bool(mine) and leaving == len(mine)
            assert emptied == (index in self._extent_order), f"extent {index} may be emptied: {emptied}"
        held = {tenant: sum(row.length for row in free if row.tenant == tenant) for tenant in self._tenants}
        assert held == {tenant: each.bytes for tenant, each in self._tenants.items()}, f"bytes by tenant: {held}"

    def _queues(self, row: Row) -> tuple[_Queue, _Queue]:
        tenant = self._tenants.setdefault(row.tenant, _Tenant())
        return self._queue(self._classes, row.length), self._queue(tenant.queues, row.length)

    def _unqueue(self, row: Row) -> None:
        tenant = self._tenants[row.tenant]
        for queue in (self._classes[row.length], tenant.queues[row.length]):
            queue.order.remove(row.key)
            queue.count -= 1
        tenant.bytes -= row.length
        if tenant.bytes == 0:
            del self._tenants[row.tenant]

    def _queue(self, queues: dict[int, _Queue], length: int) -> _Queue:
        queue = queues.get(length)
        if queue is None:
            queue = queues[length] = _Queue(self._make_order())
        return queue

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
