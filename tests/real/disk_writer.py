"""A process that uses a disk tier as the fabric does, step by step, until it is killed.

What it does follows from a seed and from what the tier holds, so that whoever kills it knows what it was about to do.
It says that a step has ended by one byte, after the tier has returned.
"""

from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from fakes.dice import Dice
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.form import HEADER_BYTES, Form, Header, Part, Plane, stamp_record
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.tiers.disk import DiskTier
from kvist.tiers.disk_settings import DiskSettings
from kvist.tiers.ports import Address, Place, Stored, Write

TENANT = TenantTag(bytes(16))
KIB = 2**10
PLACES, PLACE_BYTES = 40, 64 * KIB
BYTES_MAX = 4 * 2**20
KEYS = 60
SIZES = (HEADER_BYTES, 600, 4_096, 5_002, 20 * KIB, 64 * KIB)


class Kept(NamedTuple):
    """A record: its key's number, which of its versions, at which of the places, how long."""

    number: int
    version: int
    place: int
    size: int


class Step(NamedTuple):
    """What is done in one call: records to delete, or to write."""

    delete: tuple[Kept, ...] = ()
    write: tuple[Kept, ...] = ()


State = Mapping[int, Kept]
"""What the tier holds, by the number of the key."""


def open_tier(directory: Path) -> DiskTier:
    """The tier, over several segments."""
    settings = DiskSettings(
        directory=directory,
        bytes_max=BYTES_MAX,
        bytes_free_min=0,
        record_bytes_min=16 * KIB,
        segment_bytes=16 * PLACE_BYTES,
    )
    return DiskTier("disk", settings)


def address_of(kept: Kept) -> Address:
    """Where a record lies."""
    key = BlockKey(Namespace(bytes(32)), GroupId(0), "prefix", BlockHash(blake3(kept.number.to_bytes(8)).digest()))
    return Address(key=key, tenant=TENANT, place=Place(offset=kept.place * PLACE_BYTES, length=PLACE_BYTES))


def record_of(kept: Kept) -> memoryview:
    """A record's bytes, which tell its key and its version."""
    record = memoryview(bytearray(kept.size))
    numbers = (kept.size - HEADER_BYTES) // 2
    seed = blake3(kept.number.to_bytes(8) + kept.version.to_bytes(8))
    record[HEADER_BYTES:] = seed.digest(length=2 * numbers)
    form = Form(planes=(Plane("kv", "bfloat16", (numbers,)),), part=Part(0, 1, 0, 1))
    header = Header(
        key=address_of(kept).key,
        tenant=TENANT,
        form=form,
        first_position=0,
        tokens_valid=1,
        created_unix_s=float(kept.version),
    )
    stamp_record(record, header)
    return record


def apply(state: State, step: Step) -> dict[int, Kept]:
    """What the tier holds after a step: who writes a place has given up what was there."""
    gone = {kept.number for kept in (*step.delete, *step.write)}
    taken = {kept.place for kept in step.write}
    after = {number: kept for number, kept in state.items() if number not in gone and kept.place not in taken}
    return after | {kept.number: kept for kept in step.write}


def steps(seed: int, state: State) -> Iterator[Step]:
    """Endless work: mostly writes, at free places and over others' and over the record's own; deletions between."""
    dice, version = Dice(seed), seed * 1_000_000
    while True:
        if state and dice.number(0, 3) == 0:
            gone = [kept for kept in state.values() if dice.number(0, 3) == 0]
            step = Step(delete=tuple(gone))
        else:
            written: dict[int, Kept] = {}
            for _ in range(dice.number(1, 12)):
                version += 1
                place = dice.number(0, PLACES - 1)
                number = dice.number(0, KEYS - 1)
                if number not in written and all(place != kept.place for kept in written.values()):
                    written[number] = Kept(number, version, place, dice.pick(SIZES))
            step = Step(write=tuple(written.values()))
        yield step
        state = apply(state, step)


def work(directory: Path, seed: int, kept: Sequence[Kept], told: Connection) -> None:
    """Does one step after the other, and tells of each that has ended."""
    tier = open_tier(directory)
    for step in steps(seed, {each.number: each for each in kept}):
        if step.delete:
            assert all(tier.delete([address_of(each) for each in step.delete]))
        writes = [Write(address=address_of(each), record=record_of(each), created_unix_s=1.0) for each in step.write]
        assert list(tier.write(writes)) == [Stored()] * len(writes)
        told.send_bytes(b".")
