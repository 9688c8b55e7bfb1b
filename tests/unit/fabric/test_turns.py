"""Who goes next, by class, by tenant and by extent."""

import pytest

from fakes.keys import OTHER, TENANT, key
from kvist.blocks.keys import TenantTag
from kvist.fabric.messages import Ticket
from kvist.fabric.policies import LongestUnused
from kvist.fabric.rows import Row
from kvist.fabric.turns import Turns
from kvist.tiers.ports import Address, Entry, Place


def row(number: int, *, extent: int = 0, length: int = 8, tenant: TenantTag = TENANT) -> Row:
    place = Place(offset=64 * extent + length * number, length=length)
    address = Address(key=key(number), tenant=tenant, place=place)
    return Row(
        key=address.key,
        tenant=tenant,
        place=place,
        address=address,
        extent=extent,
        record_bytes=length,
        expires_unix_s=None,
        writer=None,
        entry=Entry(address=address, record_bytes=length, created_unix_s=0.0, expires_unix_s=None, pinned=False),
    )


def turns_of(*rows: Row, quota: bool = True) -> Turns:
    turns = Turns(4, LongestUnused, lambda tenant: quota and tenant == TENANT)
    for each in rows:
        turns.enter(each)
        turns.allow(each)
    turns.audit(rows)
    return turns


def test_a_class_goes_in_the_order_of_use() -> None:
    rows = [row(1), row(2), row(3, length=16, extent=1)]
    turns = turns_of(*rows)
    assert (turns.first_of_class(8), turns.first_of_class(16), turns.first_of_class(24)) == (key(1), key(3), None)
    turns.touch(rows[0])
    assert turns.first_of_class(8) == key(2)
    turns.drop(rows[2])
    assert turns.first_of_class(16) is None
    turns.audit(rows[:2])


def test_a_tenant_gives_its_own_of_the_same_length_before_others() -> None:
    rows = [row(1, length=16), row(2, length=16), row(3, extent=1), row(4, extent=1, tenant=OTHER)]
    turns = turns_of(*rows)
    assert turns.first_of_tenant(TENANT, 8) == key(3)
    assert turns.first_of_tenant(TENANT, 64) == key(1), "of the length of which it has most"
    assert turns.bytes_of_tenant(TENANT) == 40
    turns.forbid(rows[2])
    assert turns.first_of_tenant(TENANT, 8) == key(1)
    assert turns.bytes_of_tenant(TENANT) == 32
    assert turns.bytes_of_tenant(OTHER) == 0, "nobody asks for a tenant without a quota, so nobody counts"


def test_the_extent_used_longest_ago_is_the_one_to_empty() -> None:
    rows = [row(1), row(2), row(3, extent=1), row(4, extent=2)]
    turns = turns_of(*rows)
    assert turns.oldest_extent() == 0
    turns.touch(rows[0])
    assert turns.oldest_extent() == 1
    assert turns.used(1) == rows[2].used < rows[0].used == turns.used(0)
    rows[2].holders = (Ticket(1),)
    turns.forbid(rows[2])
    assert turns.oldest_extent() == 2
    turns.audit(rows)
    rows[2].holders = ()
    turns.allow(rows[2])
    assert [turns.oldest_extent(), turns.first_of_class(8)] == [2, key(2)]


def test_an_extent_that_loses_a_record_is_not_younger_for_it() -> None:
    rows = [row(1), row(2), row(3, extent=1)]
    turns = turns_of(*rows)
    turns.drop(rows[0])
    assert turns.oldest_extent() == 0
    turns.drop(rows[1])
    assert turns.oldest_extent() == 1
    turns.drop(rows[2])
    assert turns.oldest_extent() is None
    turns.audit([])


def test_an_extent_is_whole_again_when_what_must_stay_has_left() -> None:
    first, written = row(1), row(2)
    turns = turns_of(first)
    written.entry, written.writer = None, Ticket(1)
    turns.enter(written)
    assert turns.oldest_extent() is None
    turns.audit([first, written])
    turns.leave(written)
    assert turns.oldest_extent() == 0
    turns.audit([first])


def test_the_audit_sees_a_record_without_a_turn_and_a_turn_without_a_record() -> None:
    for quota in (True, False):
        rows = [row(1), row(2, extent=1)]
        turns = turns_of(*rows, quota=quota)
        for wrong in (rows[:1], [*rows, row(3)], [rows[0], row(2, extent=2)], [rows[0], row(2, extent=1, length=16)]):
            with pytest.raises(AssertionError):
                turns.audit(wrong)
        turns.audit(rows)
