"""Proves that the rows of one tier's books and their ledger agree (law 6), owner by owner."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from kvist.blocks.keys import TenantTag
from kvist.fabric.claims import BookStatistics
from kvist.fabric.messages import Ticket
from kvist.fabric.rows import Row
from kvist.tiers.ports import Address


def audit_rows(rows: Sequence[Row], live: Collection[Ticket]) -> None:
    """Checks that each row is in one state, for owners that live.

    Raises:
        AssertionError: naming the first row that is not.
    """
    for row in rows:
        told = Address(key=row.key, tenant=row.tenant, place=row.place)
        assert row.address == told, f"{row} is elsewhere"
        assert (row.writer is None) == (row.entry is not None), f"{row} is neither written nor stored"
        assert row.writer is None or not row.holders, f"{row} is read before it is written"
        assert row.doomed is None or row.writer is not None or row.holders, f"{row} is to go and nobody keeps it"
        assert len(set(row.holders)) == len(row.holders), f"{row} is held twice by one owner"
        owners = {*row.holders} if row.writer is None else {row.writer}
        assert owners <= {*live}, f"{row} is kept by {owners - {*live}}, who are gone"
        assert row.record_bytes <= row.place.length, f"{row} is longer than its place"
        assert row.entry is None or row.entry.address is row.address, f"{row} is stored as another"


def audit_ledger(rows: Sequence[Row], books: BookStatistics, quota_of: Callable[[TenantTag], int | None]) -> None:
    """Checks that all figures follow from the rows and add up, within the bounds.

    Raises:
        AssertionError: naming the figures.
    """
    stored = [row for row in rows if row.entry is not None]
    assert (books.resident, books.writing) == (len(stored), len(rows) - len(stored)), f"{books} for {len(rows)} rows"
    assert books.pinned == sum(row.entry is not None and row.entry.pinned for row in rows), f"{books.pinned} pinned"
    gone = books.evicted + books.expired + books.purged + books.quarantined + books.lost
    assert books.stored == books.resident + gone, f"{books} does not add up"
    assert books.bytes_used == sum(row.place.length for row in rows) <= max(0, books.bytes_max), (
        f"{books.bytes_used} bytes"
    )
    by_tenant: Counter[TenantTag] = Counter()
    for row in rows:
        by_tenant[row.tenant] += row.place.length
    assert books.bytes_by_tenant == by_tenant, f"{books.bytes_by_tenant}, not {by_tenant}"
    for tenant, held in by_tenant.items():
        quota = quota_of(tenant)
        assert quota is None or held <= quota, f"tenant {tenant.hex()} has {held} bytes of {quota}"
