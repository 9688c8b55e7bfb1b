"""The audit of the books fails for each way in which they could be wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes.keys import TENANT, key
from kvist.fabric.audit import audit_ledger, audit_rows
from kvist.fabric.claims import BookStatistics
from kvist.fabric.messages import Ticket
from kvist.fabric.rows import Row
from kvist.tiers.ports import Address, Entry, Place

ONE, TWO = Ticket(1), Ticket(2)


def row(number: int = 0, *, pinned: bool = False) -> Row:
    place = Place(offset=8 * number, length=8)
    address = Address(key=key(number), tenant=TENANT, place=place)
    return Row(
        key=address.key,
        tenant=TENANT,
        place=place,
        address=address,
        extent=0,
        record_bytes=7,
        expires_unix_s=None,
        writer=None,
        entry=Entry(address=address, record_bytes=7, created_unix_s=0.0, expires_unix_s=None, pinned=pinned),
    )


def changed(**values: object) -> Row:
    found = row()
    for name, value in values.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: changed(key=key(5)), "is elsewhere"),
        (lambda: changed(place=Place(offset=8, length=8)), "is elsewhere"),
        (lambda: changed(entry=None), "neither written nor stored"),
        (lambda: changed(writer=ONE), "neither written nor stored"),
        (lambda: changed(writer=ONE, entry=None, holders=(TWO,)), "read before it is written"),
        (lambda: changed(doomed="lost"), "nobody keeps it"),
        (lambda: changed(holders=(ONE, ONE)), "held twice"),
        (lambda: changed(holders=(Ticket(3),)), "who are gone"),
        (lambda: changed(writer=Ticket(3), entry=None), "who are gone"),
        (lambda: changed(record_bytes=9), "longer than its place"),
        (lambda: changed(entry=row(1).entry), "stored as another"),
    ],
)
def test_a_row_in_a_wrong_state_is_named_and_right_ones_pass(wrong: Callable[[], Row], message: str) -> None:
    held, written = changed(holders=(ONE, TWO), doomed="purged"), changed(writer=ONE, entry=None, doomed="expired")
    audit_rows([row(), held, written], {ONE, TWO})
    with pytest.raises(AssertionError, match=message):
        audit_rows([row(1), wrong()], {ONE, TWO})


RIGHT = BookStatistics(
    stored=8,
    resident=2,
    evicted=1,
    expired=1,
    purged=1,
    quarantined=1,
    lost=2,
    writing=1,
    pinned=1,
    bytes_used=24,
    bytes_max=24,
    bytes_by_tenant={TENANT: 24},
)
ROWS = [row(0, pinned=True), row(1), changed(writer=ONE, entry=None)]


@pytest.mark.parametrize(
    "figure",
    ["stored", "resident", "evicted", "expired", "purged", "quarantined", "lost", "writing", "pinned", "bytes_used"],
)
def test_a_figure_that_is_off_by_one_is_seen(figure: str) -> None:
    audit_ledger(ROWS, RIGHT, lambda _: None)
    for off in (-1, 1):
        wrong = replace(RIGHT, **{figure: getattr(RIGHT, figure) + off})
        with pytest.raises(AssertionError):
            audit_ledger(ROWS, wrong, lambda _: None)


def test_bounds_that_are_passed_are_seen() -> None:
    audit_ledger(ROWS, RIGHT, lambda _: 24)
    with pytest.raises(AssertionError, match="24 bytes"):
        audit_ledger(ROWS, replace(RIGHT, bytes_max=23), lambda _: None)
    with pytest.raises(AssertionError, match="has 24 bytes of 23"):
        audit_ledger(ROWS, RIGHT, lambda _: 23)
    with pytest.raises(AssertionError):
        audit_ledger(ROWS, replace(RIGHT, bytes_by_tenant={}), lambda _: None)
