"""A record lies in staging once, and as long as anybody needs it."""

from itertools import count

import pytest

from fakes.fabric import BLUE, NAMESPACE, STAGING, chain_of
from kvist.base.ids import GroupId
from kvist.blocks.form import HEADER_BYTES
from kvist.blocks.keys import BlockKey
from kvist.fabric.messages import Ticket
from kvist.fabric.parcels import Parcels, Subject, payload_of
from kvist.fabric.staging import Staging

LOAD, JOB = Ticket(1001), Ticket(1002)


def make(records: int) -> Parcels:
    tickets = count(1)
    return Parcels(Staging(STAGING, records * 8192, extent_bytes=8192), lambda: Ticket(next(tickets)))


def subject(index: int) -> Subject:
    key = BlockKey(NAMESPACE, GroupId(0), "prefix", chain_of("a", 9)[index])
    return Subject(key=key, tenant=BLUE, index=index, record_bytes=5000)


def test_the_last_user_frees_the_bytes() -> None:
    parcels = make(1)
    parcel = parcels.to_load(subject(0), LOAD)
    assert parcel is not None
    assert parcel.staged_bytes == parcels.bytes_used == 8192
    parcel.users.add(JOB)
    assert parcels.to_load(subject(1), LOAD) is None
    parcels.leave(parcel, LOAD)
    parcels.audit({JOB})
    assert parcels.bytes_used == 8192
    parcels.leave(parcel, JOB)
    parcels.audit(set())
    assert parcels.bytes_used == 0
    with pytest.raises(KeyError):
        parcels.leave(parcel, JOB)


def test_what_is_to_be_stored_is_counted_apart_and_is_its_own_room() -> None:
    parcels = make(2)
    stored, loaded = parcels.to_store(subject(0)), parcels.to_load(subject(1), LOAD)
    assert stored is not None
    assert loaded is not None
    assert parcels.bytes_storing == 8192
    assert stored.users == {stored.owner}
    assert parcels.to_store(subject(2)) is None
    parcels.audit({stored.owner, LOAD})
    parcels.leave(stored, stored.owner)
    assert (parcels.bytes_storing, parcels.bytes_used) == (0, 8192)


def test_a_forgotten_user_is_found() -> None:
    parcels = make(1)
    parcels.to_load(subject(0), LOAD)
    with pytest.raises(AssertionError, match="1001"):
        parcels.audit({JOB})


def test_the_payload_is_behind_the_header() -> None:
    parcel = make(1).to_store(subject(0))
    assert parcel is not None
    payload = payload_of(parcel.buffer)
    assert (payload.offset, payload.length) == (parcel.buffer.offset + HEADER_BYTES, 5000 - HEADER_BYTES)
