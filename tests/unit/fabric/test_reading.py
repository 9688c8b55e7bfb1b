"""What a tier says it has and what comes of it: records that fit nowhere, are none, or are another block's."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fakes.fabric import BLOCK_TOKENS, BLUE, NAMESPACE, Rig, chain_of, form_of
from kvist.base.ids import GroupId
from kvist.blocks.form import HEADER_BYTES, Header, stamp_record
from kvist.blocks.keys import BlockKey, Namespace
from kvist.fabric.administration import Administration
from kvist.fabric.messages import TierName
from kvist.fabric.movers import Movers
from kvist.fabric.outcome import Outcome
from kvist.tiers.ports import Address, Write

DRAM, POOL = TierName("dram"), TierName("pool")
OTHER_MODEL = Namespace(b"o" * 32)
CHAIN = chain_of("blue", 3)
TIMEOUT_S = 30.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig(make_movers=Movers, names=("dram", "pool"))
    yield made
    assert made.fabric.close(TIMEOUT_S)
    made.fabric.audit()
    assert made.fabric.statistics().staging_bytes_used == 0
    made.regions.close()


def header_of(index: int, namespace: Namespace = NAMESPACE, payload_bytes: int = 1024) -> Header:
    """Of a block as the fabric would store it."""
    return Header(
        key=BlockKey(namespace, GroupId(0), "prefix", CHAIN[index]),
        tenant=BLUE,
        form=form_of(payload_bytes),
        first_position=index * BLOCK_TOKENS,
        tokens_valid=BLOCK_TOKENS,
        created_unix_s=5.0,
    )


def put(rig: Rig, header: Header) -> None:
    """Leaves a sound record in the pool."""
    record = memoryview(bytearray(header.form.record_bytes))
    stamp_record(record, header)
    address = Address(key=header.key, tenant=BLUE)
    rig.tiers[POOL].write([Write(address=address, record=record, created_unix_s=5.0)])


def cut(rig: Rig, index: int, size: int) -> None:
    """Shortens a record where it lies."""
    rows = rig.tiers[POOL]._tier._rows
    address = Address(key=header_of(index).key, tenant=BLUE)
    record, entry = rows[address]
    rows[address] = (record[:size], replace(entry, record_bytes=size))


@pytest.mark.parametrize("verb", ["verify", "copy", "move"])
def test_what_staging_can_never_hold_is_left_at_once_and_nobody_is_blamed(rig: Rig, verb: str) -> None:
    put(rig, header_of(0))
    put(rig, header_of(1, OTHER_MODEL, rig.staging.size))
    put(rig, header_of(2))
    admin = Administration(rig.fabric)
    entries = admin.entries(POOL, timeout_s=TIMEOUT_S)
    verbs = {
        "verify": lambda: admin.verify(POOL, timeout_s=1e9),
        "copy": lambda: admin.copy(POOL, DRAM, entries, 1e9),
        "move": lambda: admin.move(POOL, DRAM, entries, 1e9),
    }
    assert verbs[verb]() == Outcome(done=2, left=1)
    with rig.fabric.inside() as inside:
        assert not inside.desk.dispatch._is_starved
    assert len(admin.entries(POOL, timeout_s=TIMEOUT_S)) == (1 if verb == "move" else 3)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1])
def test_what_is_too_short_for_a_record_is_taken_out(rig: Rig, size: int) -> None:
    for index in range(3):
        put(rig, header_of(index))
    cut(rig, 1, size)
    admin = Administration(rig.fabric)
    assert admin.verify(POOL, timeout_s=TIMEOUT_S) == Outcome(done=2, damaged=1)
    assert admin.verify(POOL, timeout_s=TIMEOUT_S) == Outcome(done=2)
    assert rig.books("pool").quarantined == 1


WRONG = [
    {"tokens_valid": 0},
    {"tokens_valid": BLOCK_TOKENS - 1},
    {"tokens_valid": BLOCK_TOKENS + 1},
    {"tokens_valid": 2**32 - 1},
    {"first_position": 0},
    {"first_position": BLOCK_TOKENS + 1},
    {"first_position": 2 * BLOCK_TOKENS},
    {"first_position": 2**63},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_block_of_another_length_or_place_is_damage_and_reaches_no_engine(wrong: dict[str, int]) -> None:
    rig = Rig(names=("dram", "pool"))
    for index in range(3):
        put(rig, replace(header_of(index), **wrong) if index == 1 else header_of(index))
    ticket = rig.ask(CHAIN)
    rig.movers.do_all()
    plan = rig.plan(ticket)
    assert plan.tokens == 3 * BLOCK_TOKENS
    rig.fabric.load(ticket, plan)
    rig.movers.do_all()
    pieces = rig.fabric.landed(ticket)
    assert 1 not in {piece.want.index for piece in pieces}
    rig.fabric.taken(ticket, pieces)
    assert rig.fabric.state(ticket) == "failed"
    rig.fabric.drop(ticket)
    rig.movers.do_all()
    assert rig.books("pool").quarantined == 1
    assert {entry.address.key.hash for entry in rig.tiers[POOL].entries()} == {CHAIN[0], CHAIN[2]}
    assert CHAIN[1] not in {entry.address.key.hash for entry in rig.tiers[DRAM].entries()}
    rig.fabric.audit()
    rig.close()


@pytest.mark.parametrize("wrong", [each for each in WRONG if each.get("first_position", 1) % BLOCK_TOKENS])
def test_an_operator_is_told_of_blocks_that_no_engine_would_take(rig: Rig, wrong: dict[str, int]) -> None:
    put(rig, replace(header_of(0), **wrong))
    assert Administration(rig.fabric).verify(POOL, timeout_s=TIMEOUT_S) == Outcome(damaged=1)
