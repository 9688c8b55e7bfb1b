"""What the books of a tier are told and what they answer: plain values.

A `Claim` asks for a place; the answer is `Reserved` or `Refused`. `BookStatistics` is the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvist.blocks.keys import BlockKey, TenantTag
from kvist.tiers.ports import Address

Cause = Literal["evicted", "expired", "purged", "quarantined", "lost"]
"""Why a record is no longer resident: it made room, was too old, was asked to go, was damaged, was not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookLimits:
    """The bounds of one placed tier.

    Attributes:
        bytes_max: for the places of records; what the tier's own index takes is already subtracted.
        extent_bytes: multiple of `alignment`, at least as long as the longest place (see `space`).
        alignment: of offsets and lengths.
        tenant_bytes_max: of the places of one tenant, for tenants with a quota of their own.
        tenant_bytes_default: of every other tenant; None: only `bytes_max` bounds them.
        records_max: that the tier can remember, however short they are; None: only bytes are scarce.
    """

    bytes_max: int
    extent_bytes: int
    alignment: int = 1
    tenant_bytes_max: Mapping[TenantTag, int] = field(default_factory=dict)
    tenant_bytes_default: int | None = None
    records_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A record that wants a place.

    Attributes:
        expires_unix_s: by the wall clock; None: never.
    """

    key: BlockKey
    tenant: TenantTag
    record_bytes: int
    expires_unix_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A place that belongs to the claim's owner until `Book.commit` or `Book.cancel`.

    Attributes:
        address: where to write.
        evicted: what the tier must forget first, whether or not the write then happens. Their places are free in the
            books from now on, so what the tier is told must keep the order in which the books answered.
    """

    address: Address
    evicted: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """No place, for a reason in words; nothing has changed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BookStatistics:
    """The ledger of one placed tier, in records: stored = resident + all the causes.

    Attributes:
        resident: have a place and were acknowledged; those that wait for their last reader to be removed included.
        writing: have a place and were not acknowledged yet; in no other figure but the bytes.
        pinned: of the resident ones.
        bytes_used: of all places in use, alignment included.
        bytes_by_tenant: the same by tenant.
    """

    stored: int
    resident: int
    evicted: int
    expired: int
    purged: int
    quarantined: int
    lost: int
    writing: int
    pinned: int
    bytes_used: int
    bytes_max: int
    bytes_by_tenant: Mapping[TenantTag, int]
