"""The commands that carry records are what the protocol says."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer

from fakes.tiers import BLUE, key_of, write_of
from kvist.tiers.ports import Address
from kvist.tiers.redis_records import command, commands, entry_of, expires_ms, set_commands

NEVER_MS = 253_402_300_799_000
ADDRESS = Address(key=key_of(0), tenant=BLUE)


def packed(*words: bytes) -> bytes:
    """A command by the package's own packer."""
    return b"".join(PythonRespSerializer(10**9, lambda word: word).pack(*words))


@given(st.lists(st.binary(max_size=40), max_size=5), st.lists(st.binary(max_size=20), max_size=3))
def test_commands_are_packed_as_the_package_packs_them(keys: list[bytes], more: list[bytes]) -> None:
    assert commands(b"VERB", keys, *more) == [packed(b"VERB", key, *more) for key in keys]
    assert [command(b"VERB", key, *more) for key in keys] == commands(b"VERB", keys, *more)


@pytest.mark.parametrize("expires", [None, 1_900_000_000.5])
def test_a_record_is_sent_from_where_it_lies_after_its_stamp(expires: float | None) -> None:
    write = write_of(ADDRESS, expires=expires)
    pieces = set_commands([b"key"], [write])
    assert any(piece is write.record for piece in pieces)
    until = b"%d" % (NEVER_MS if expires is None else 1_900_000_000_500)
    stamp = write.created_unix_s.hex()
    sent = b"".join(map(bytes, pieces))
    value = sent.split(b"\r\n", 6)[6][:608]
    assert sent == packed(b"SET", b"key", value, b"PXAT", until)
    assert value[8:] == write.record
    entry = entry_of(ADDRESS, 608, NEVER_MS, value[:8])
    assert entry is not None
    assert entry.created_unix_s.hex() == stamp


@pytest.mark.parametrize(
    ("expires_unix_s", "milliseconds"),
    [
        (None, NEVER_MS),
        (math.inf, NEVER_MS),
        (math.nan, NEVER_MS),
        (1e300, NEVER_MS),
        (1.5, 1500),
        (0.0, 1),
        (-1e300, 1),
    ],
)
def test_any_time_is_one_that_a_server_takes(expires_unix_s: float | None, milliseconds: int) -> None:
    assert expires_ms(expires_unix_s) == milliseconds


@pytest.mark.parametrize(
    "facts",
    [
        (0, -2, b""),
        (7, NEVER_MS, b"1234567"),
        (None, 1, b"12345678"),
        (608, None, b"12345678"),
        *((608, NEVER_MS, struct.pack("<d", stamp)) for stamp in (math.nan, -math.nan, math.inf, -math.inf)),
    ],
)
def test_what_has_gone_or_is_no_record_is_not_listed(facts: tuple) -> None:
    assert entry_of(ADDRESS, *facts) is None
