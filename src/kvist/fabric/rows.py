"""A row of the books: everything that is known about one place in use."""

from dataclasses import dataclass

from kvist.base.ids import GroupId
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.fabric.claims import Cause
from kvist.fabric.messages import Ticket
from kvist.tiers.ports import Address, Entry, Place

Scope = tuple[Namespace, GroupId, TenantTag]
"""Whose blocks of which group of which model."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One place in use, from its reservation until it is free again.

    Attributes:
        key, tenant, place: of the address, at hand.
        extent: in which the place lies.
        expires_unix_s: None: never.
        writer: who writes it; None once it was acknowledged.
        entry: what was acknowledged; None until then.
        holders: who reads it.
        doomed: why it goes when the last of writer and holders lets go; nobody finds it any more.
        used: counts up whenever some record is used.
    """

    key: BlockKey
    tenant: TenantTag
    place: Place
    address: Address
    extent: int
    record_bytes: int
    expires_unix_s: float | None
    writer: Ticket | None
    entry: Entry | None = None
    holders: tuple[Ticket, ...] = ()
    doomed: Cause | None = None
    used: int = 0

    @property
    def scope(self) -> Scope:
        """Where look-ups in bulk find it."""
        return (self.key.namespace, self.key.group, self.tenant)

    @property
    def evictable(self) -> bool:
        """Whether it has a turn."""
        entry = self.entry
        return entry is not None and not self.holders and not entry.pinned and self.doomed is None

    def alive(self, now_unix_s: float) -> bool:
        """Whether it has not expired; a time that is not a number has passed."""
        return self.expires_unix_s is None or self.expires_unix_s > now_unix_s
