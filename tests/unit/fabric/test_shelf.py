"""What is on the shelf is found until it is taken or expires, and forgotten expiries do not pile up."""

import pytest

from fakes.keys import NAMESPACE, OTHER, TENANT, key
from kvist.base.ids import GroupId
from kvist.blocks.keys import TenantTag
from kvist.fabric.rows import Row
from kvist.fabric.shelf import Shelf
from kvist.tiers.ports import Address, Entry, Place

SCOPE = (NAMESPACE, GroupId(0), TENANT)


def row(number: int, *, expires: float | None = None, tenant: TenantTag = TENANT) -> Row:
    place = Place(offset=8 * number, length=8)
    address = Address(key=key(number), tenant=tenant, place=place)
    return Row(
        key=address.key,
        tenant=tenant,
        place=place,
        address=address,
        extent=0,
        record_bytes=8,
        expires_unix_s=expires,
        writer=None,
        entry=Entry(address=address, record_bytes=8, created_unix_s=0.0, expires_unix_s=expires, pinned=False),
    )


def test_rows_are_found_in_order_by_their_tenant() -> None:
    shelf, rows = Shelf(), [row(1), row(2, expires=5.0), row(3, tenant=OTHER)]
    for each in rows:
        shelf.put(each)
    shelf.audit(rows)
    hashes = [key(number).hash for number in (3, 2, 1, 2)]
    assert shelf.have(SCOPE, hashes, 4.9) == [False, True, True, True]
    assert shelf.have(SCOPE, hashes, 5.0) == [False, False, True, False]
    assert [entry.address.key for entry in shelf.entries(TENANT)] == [key(1), key(2)]
    assert len(list(shelf.entries(None))) == 3


def test_a_listing_may_be_read_while_rows_come_and_go() -> None:
    shelf, rows = Shelf(), [row(number) for number in range(3)]
    for each in rows:
        shelf.put(each)
    listing = shelf.entries(None)
    for each in rows:
        shelf.take(each)
    shelf.put(row(9))
    assert [entry.address.key for entry in listing] == [key(number) for number in range(3)]


def test_rows_expire_first_to_last_and_each_once() -> None:
    shelf, rows = Shelf(), [row(number, expires=10.0 - number) for number in range(5)]
    for each in rows:
        shelf.put(each)
    shelf.take(rows[4])
    assert shelf.expired(6.0) == []
    assert shelf.expired(8.0) == [rows[3], rows[2]]
    assert shelf.expired(8.0) == []


def test_expiries_of_what_is_gone_do_not_pile_up() -> None:
    shelf, stays = Shelf(), row(0, expires=1e9)
    shelf.put(stays)
    for number in range(1, 2000):
        passing = row(number, expires=1e6 + number)
        shelf.put(passing)
        shelf.take(passing)
        shelf.audit([stays])
    assert shelf.expired(2e6) == []
    assert shelf.expired(1e9) == [stays]


def test_the_audit_sees_what_is_missing_and_what_is_too_much() -> None:
    shelf, one, two = Shelf(), row(1, expires=5.0), row(2)
    shelf.put(one)
    for wrong in ([], [one, two], [two], [row(1, expires=5.0)]):
        with pytest.raises(AssertionError):
            shelf.audit(wrong)
    shelf.expired(9.0)
    with pytest.raises(AssertionError, match="never expire"):
        shelf.audit([one])
