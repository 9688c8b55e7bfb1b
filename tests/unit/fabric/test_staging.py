"""Staging belongs to named owners until they give it back, whatever becomes of what they wanted it for."""

from itertools import pairwise

import pytest

from kvist.fabric.messages import Ticket
from kvist.fabric.staging import STAGING_ALIGNMENT, Staging
from kvist.tiers.regions import Buffer, RegionId

REGION = RegionId("staging")
EXTENT = 4 * STAGING_ALIGNMENT
ONE, TWO = Ticket(1), Ticket(2)


def make(extents: int = 2) -> Staging:
    return Staging(REGION, extents * EXTENT, extent_bytes=EXTENT)


def test_a_buffer_has_the_length_asked_for_and_begins_where_a_disk_can_write() -> None:
    staging = make()
    for length in (1, 5000, 4096, 9000):
        buffer = staging.take(ONE, length)
        assert buffer is not None
        assert (buffer.region, buffer.length, buffer.offset % STAGING_ALIGNMENT) == (REGION, length, 0)
        staging.audit({ONE})
        staging.give(buffer, ONE)
    assert staging.bytes_used == 0


def test_buffers_are_disjoint_until_there_is_no_room() -> None:
    staging, buffers = make(), []
    while (buffer := staging.take(ONE, 5000)) is not None:
        buffers.append(buffer)
    assert len(buffers) == 4
    assert staging.bytes_used == 4 * 8192 == staging.bytes_max
    ends = sorted((buffer.offset, buffer.offset + buffer.length) for buffer in buffers)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    staging.audit({ONE})


def test_what_is_given_back_can_be_taken_again_in_another_length() -> None:
    staging = make(extents=1)
    whole = staging.take(ONE, EXTENT)
    assert whole is not None
    assert staging.take(TWO, 1) is None
    staging.give(whole, ONE)
    assert staging.take(TWO, 1) is not None
    staging.audit({TWO})


def test_only_the_owner_gives_back_and_only_once() -> None:
    staging = make()
    buffer = staging.take(ONE, 100)
    assert buffer is not None
    for wrong in (buffer, Buffer(region=REGION, offset=0, length=99), Buffer(region=REGION, offset=4096, length=100)):
        with pytest.raises(AssertionError, match="not 2's to give"):
            staging.give(wrong, TWO)
    staging.give(buffer, ONE)
    with pytest.raises(AssertionError, match="not 1's to give"):
        staging.give(buffer, ONE)


def test_what_never_fits_is_not_waited_for() -> None:
    staging = make()
    for length in (0, -1, EXTENT + 1):
        assert staging.take(ONE, length) is None
        assert staging.why_never(length)
    assert staging.why_never(EXTENT) is None
    assert Staging(REGION, 0, extent_bytes=EXTENT).why_never(1) is not None


def test_the_audit_names_owners_that_are_gone() -> None:
    staging = make()
    assert staging.take(ONE, 10) is not None
    assert staging.take(ONE, 10) is not None
    assert staging.take(TWO, 10) is not None
    assert staging.owners() == {ONE: 2, TWO: 1}
    staging.audit({ONE, TWO, Ticket(3)})
    with pytest.raises(AssertionError, match=r"owned by \{2\}, who are gone"):
        staging.audit({ONE})
