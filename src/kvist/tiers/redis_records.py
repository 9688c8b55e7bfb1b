"""How a record lies in a Redis server, and the commands and replies that carry it.

    value = time of creation (8 bytes, a little-endian double) || record

The record is never copied on its way between the socket and the caller's memory.
"""

import math
import struct
from collections.abc import Sequence

from redis.exceptions import InvalidResponse, ResponseError

from kvist.tiers.ports import Absent, Address, Damaged, Entry, Found, ReadOutcome, Write
from kvist.tiers.redis_wire import RedisWire, Reply

_LISTING_BYTES_MAX = 16 * 2**20  # of keys in one reply to a scan
_STAMP = struct.Struct("<d")
STAMP_BYTES = _STAMP.size
_NEVER_MS = 253_402_300_799_000  # 9999-12-31T23:59:59Z, of records that neither expire nor are pinned
_NO_END, _GONE = -1, -2  # what PEXPIRETIME says

_FOUND = Found()
_ABSENT = Absent()


def command(*words: bytes) -> bytes:
    """A command as the protocol has it."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def commands(verb: bytes, keys: Sequence[bytes], *more: bytes) -> list[bytes]:
    """The same command for each of many keys."""
    head = b"*%d\r\n$%d\r\n%b\r\n" % (2 + len(more), len(verb), verb)
    tail = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in more])
    return [b"%b$%d\r\n%b\r\n%b" % (head, len(key), key, tail) for key in keys]


def set_commands(keys: Sequence[bytes], writes: Sequence[Write]) -> list[bytes | memoryview]:
    """What is sent to store records, with the records themselves where they are."""
    pieces: list[bytes | memoryview] = []
    for key, write in zip(keys, writes, strict=True):
        head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, STAMP_BYTES + write.record.nbytes)
        expires = b"%d" % expires_ms(write.expires_unix_s)
        pieces += [
            head + _STAMP.pack(write.created_unix_s),
            write.record,
            b"\r\n$4\r\nPXAT\r\n$%d\r\n%b\r\n" % (len(expires), expires),
        ]
    return pieces


def expires_ms(expires_unix_s: float | None) -> int:
    """When the server is to forget a record that is not pinned."""
    if expires_unix_s is None or not math.isfinite(expires_unix_s):
        return _NEVER_MS
    return min(max(1, round(expires_unix_s * 1000)), _NEVER_MS)


def receive_done(wire: RedisWire) -> ResponseError | None:
    """The answer to one SET: None when it was done."""
    reply = wire.receive()
    if reply == b"OK":
        return None
    if isinstance(reply, ResponseError):
        return reply
    raise InvalidResponse(f"{reply!r:.40} is no answer to a SET")


def receive_record(wire: RedisWire, into: memoryview) -> ReadOutcome | ResponseError:
    """The answer to one GETRANGE: a record, or what there is instead."""
    length = wire.receive_length()
    if isinstance(length, ResponseError):
        return Damaged(reason="a value of another type is there") if is_of_another_type(length) else length
    wanted = STAMP_BYTES + into.nbytes
    if length is None or length > wanted + 1:
        raise InvalidResponse(f"{length} bytes came where at most {wanted + 1} were asked for")
    stamp = memoryview(bytearray(STAMP_BYTES + 1))
    # What is too long or too short goes the same way, to nobody.
    wire.take_into(stamp[: min(length, STAMP_BYTES)])
    wire.take_into(into[: max(0, length - STAMP_BYTES)])
    wire.take_into(stamp[: max(0, length - wanted)])
    wire.end_string()
    if length == wanted:
        return _FOUND
    if not length:
        return _ABSENT
    there = f"more than {into.nbytes}" if length > wanted else str(max(0, length - STAMP_BYTES))
    return Damaged(reason=f"{there} bytes are there, not {into.nbytes}")


def receive_scan(wire: RedisWire) -> tuple[bytes, list[bytes]]:
    """Where a scan goes on, and the keys that it has found."""
    wire.receive_array_head(2)
    cursor = wire.receive()
    if not (isinstance(cursor, bytes) and cursor.isdigit()):
        raise InvalidResponse(f"{cursor!r:.40} is no cursor of a scan")
    return cursor, wire.receive_array(_LISTING_BYTES_MAX)


def is_of_another_type(reply: object) -> bool:
    """Whether a reply says that the value is a list, a set or the like."""
    return isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE")


def entry_of(address: Address, length: Reply, expires: Reply, stamp: Reply) -> Entry | None:
    """A record as it is listed; None: it has gone, or is none that Kvist wrote."""
    if not (isinstance(length, int) and isinstance(expires, int) and isinstance(stamp, bytes)):
        return None
    if len(stamp) != STAMP_BYTES or expires == _GONE:
        return None
    (created,) = _STAMP.unpack(stamp)
    if not math.isfinite(created):
        return None
    return Entry(
        address=address,
        record_bytes=length - STAMP_BYTES,
        created_unix_s=created,
        expires_unix_s=None if expires in (_NO_END, _NEVER_MS) else expires / 1000,
        pinned=expires == _NO_END,
    )
