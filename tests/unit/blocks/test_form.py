import math
import struct
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.form import (
    HEADER_BYTES,
    Form,
    FormError,
    Header,
    Part,
    Plane,
    check_record,
    read_header,
    stamp_record,
)
from kvist.blocks.keys import BlockKey, Namespace, TenantTag
from kvist.geometry.groups import DTYPE_BYTES, Dtype

KEY = BlockKey(Namespace(b"n" * 32), GroupId(3), "prefix", BlockHash(b"h" * 32))
TENANT = TenantTag(b"t" * 16)
FORM = Form(
    planes=(Plane("k", "float16", (1, 2, 3)), Plane("v", "float32", (2,))),
    part=Part(layers_first=4, layers=1, heads_first=2, heads=2),
)
HEADER = Header(key=KEY, tenant=TENANT, form=FORM, first_position=160, tokens_valid=3, created_unix_s=1.5)
PAYLOAD = bytes(range(100, 120))
HEADER_SUM_AT = HEADER_BYTES - 8
PLANES_AT = 137  # of the first plane; each is name (8), dtype (1), number of dimensions (1), four sizes (4 each)


def stamped(header: Header = HEADER, payload: bytes = PAYLOAD) -> bytearray:
    record = bytearray(HEADER_BYTES) + payload
    stamp_record(memoryview(record), header)
    return record


def check(record: bytes | bytearray, **asked: object) -> Header:
    return check_record(memoryview(record), **({"key": KEY, "tenant": TENANT, "form": FORM} | asked))


def forged(record: bytearray, place: int, value: bytes) -> bytearray:
    """A record with other bytes in its header, and a header's checksum that says they are right."""
    record = bytearray(record)
    record[place : place + len(value)] = value
    record[HEADER_SUM_AT:HEADER_BYTES] = xxhash.xxh3_64_digest(bytes(record[:HEADER_SUM_AT]))
    return record


# What is written is what is read

Sizes = st.integers(0, 3)
Planes = st.builds(
    Plane,
    st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=8),
    st.sampled_from(list(DTYPE_BYTES)),
    st.lists(Sizes, max_size=4).map(tuple),
)
Sixteen = st.integers(0, 2**16 - 1)
Moments = st.integers(1, 2**43).map(lambda ms: ms / 1000)
Headers = st.builds(
    Header,
    key=st.builds(
        BlockKey,
        st.binary(min_size=32, max_size=32),
        Sixteen,
        st.just("prefix"),
        st.binary(min_size=32, max_size=32),
    ),
    tenant=st.binary(min_size=16, max_size=16),
    form=st.builds(
        Form, planes=st.lists(Planes, max_size=8).map(tuple), part=st.builds(Part, Sixteen, Sixteen, Sixteen, Sixteen)
    ),
    first_position=st.integers(0, 2**64 - 1),
    tokens_valid=st.integers(0, 2**32 - 1),
    created_unix_s=Moments | st.just(0.0),
    expires_unix_s=Moments | st.none(),
)


@given(Headers, st.randoms(use_true_random=False))
def test_a_header_is_read_as_it_was_stamped_and_the_payload_is_left_alone(header: Header, random) -> None:
    payload = random.randbytes(header.form.payload_bytes)
    record = stamped(header, payload)
    assert read_header(memoryview(record)) == header
    assert check(record, key=header.key, tenant=header.tenant, form=header.form) == header
    assert check(record, key=header.key, tenant=header.tenant, form=None) == header
    assert record[HEADER_BYTES:] == payload
    assert (header.form.record_bytes, HEADER_BYTES) == (len(record), 512)


def test_sizes_are_those_of_the_planes() -> None:
    assert [plane.nbytes for plane in FORM.planes] == [12, 8]
    assert (FORM.payload_bytes, FORM.record_bytes) == (20, 532)
    assert Plane("x", "float32", ()).nbytes == 4


def test_records_are_the_same_for_ever() -> None:
    """They outlive a version: another layout needs another number of the form."""
    assert xxhash.xxh3_64_hexdigest(bytes(stamped())) == "bd1a1813f7ec98da"


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", 0), ("float16", 1), ("float32", 2)])
def test_the_number_of_a_dtype_is_the_same_for_ever(dtype: Dtype, code: int) -> None:
    form = replace(FORM, planes=(Plane("x", dtype, ()),))
    assert stamped(replace(HEADER, form=form), bytes(form.payload_bytes))[PLANES_AT + 8] == code


def test_the_header_is_laid_out_as_documented() -> None:
    record = stamped(replace(HEADER, expires_unix_s=2.5))
    fields = struct.unpack_from("<4sHH 32sHBB32s 16s 4H QIQ QQ B", record)
    assert fields[:8] == (b"KVST", 1, 512, b"n" * 32, 3, 0, 0, b"h" * 32)
    assert fields[8:] == (b"t" * 16, 4, 1, 2, 2, 160, 3, 20, 1500, 2500, 2)
    assert struct.unpack_from("<8sBB4I", record, PLANES_AT) == (b"k" + bytes(7), 1, 3, 1, 2, 3, 0)
    assert bytes(record[488:504]) == xxhash.xxh3_128_digest(PAYLOAD)
    assert bytes(record[504:512]) == xxhash.xxh3_64_digest(bytes(record[:504]))


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (0.0004, 0.001),  # 0 says that it does not expire
        (-5.0, 0.001),
        (-math.inf, 0.001),
        (1.2345678, 1.235),
        (1e30, (2**64 - 1) / 1000),
        (math.inf, (2**64 - 1) / 1000),
    ],
)
def test_any_time_of_expiry_can_be_kept(told: float, kept: float) -> None:
    assert check(stamped(replace(HEADER, expires_unix_s=told))).expires_unix_s == kept


@pytest.mark.parametrize(("told", "kept"), [(-1.0, 0.0), (1e30, (2**64 - 1) / 1000)])
def test_any_clock_can_be_kept(told: float, kept: float) -> None:
    assert check(stamped(replace(HEADER, created_unix_s=told))).created_unix_s == kept


# Damage


def test_every_flipped_bit_is_refused() -> None:
    record = stamped()
    assert check(record) == HEADER
    for place in range(len(record)):
        for bit in range(8):
            record[place] ^= 1 << bit
            with pytest.raises(FormError):
                check(record)
            if place < HEADER_BYTES:
                with pytest.raises(FormError):
                    read_header(memoryview(record))
            record[place] ^= 1 << bit
    assert check(record) == HEADER


def test_every_other_length_is_refused() -> None:
    record = stamped()
    for length in range(len(record)):
        with pytest.raises(FormError):
            check(record[:length])
    for more in (b"\0", b"\0" * HEADER_BYTES, bytes(record)):
        with pytest.raises(FormError, match=f"{len(record) + len(more)} bytes long, its header says {len(record)}"):
            check(record + more)
        with pytest.raises(FormError, match="bytes long"):
            check(record + more, form=None)


def test_a_payload_of_zeros_or_of_another_record_is_refused() -> None:
    record, other = stamped(), stamped(payload=bytes(20))
    assert check(other) == HEADER
    for payload in (bytes(20), PAYLOAD[::-1]):
        with pytest.raises(FormError, match="payload's checksum"):
            check(record[:HEADER_BYTES] + payload)


@settings(max_examples=examples(300))
@given(st.binary(max_size=2 * HEADER_BYTES))
def test_random_bytes_are_no_record(record: bytes) -> None:
    with pytest.raises(FormError):
        check(record)
    with pytest.raises(FormError):
        read_header(memoryview(record))


# Another block than the one asked for


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"key": KEY._replace(namespace=Namespace(b"m" * 32))}, "another block"),
        ({"key": KEY._replace(group=GroupId(2))}, "another block"),
        ({"key": KEY._replace(hash=BlockHash(b"g" * 32))}, "another block"),
        ({"tenant": TenantTag(b"u" * 16)}, "another tenant"),
        ({"form": replace(FORM, part=FORM.part._replace(heads_first=0))}, "its form is"),
        ({"form": replace(FORM, part=FORM.part._replace(layers=2))}, "its form is"),
        ({"form": replace(FORM, planes=FORM.planes[::-1])}, "its form is"),
        ({"form": replace(FORM, planes=FORM.planes[:1])}, "its form is"),
        ({"form": replace(FORM, planes=(Plane("k", "bfloat16", (1, 2, 3)), FORM.planes[1]))}, "its form is"),
        ({"form": replace(FORM, planes=(Plane("k", "float16", (1, 3, 2)), FORM.planes[1]))}, "its form is"),
        ({"form": replace(FORM, planes=(Plane("K", "float16", (1, 2, 3)), FORM.planes[1]))}, "its form is"),
    ],
)
def test_what_differs_from_what_was_asked_for_is_refused_and_named(asked: dict[str, object], complaint: str) -> None:
    with pytest.raises(FormError, match=complaint):
        check(stamped(), **asked)


# Forged headers, whose checksum is right


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (0, b"KVSU", "a record of version 1"),
        (4, b"\2\0", "a record of version 2 and codec 0"),
        (6, b"\0\4", "a record of version 1"),
        (42, b"\1", "kind 1 "),
        (43, b"\1", "codec 1"),
        (112, b"\0" * 8, "a payload of 0 bytes does not hold planes of 20"),
        (112, b"\xff" * 8, "a payload of 18446744073709551615 bytes"),
        (136, b"\3", "a payload of 20 bytes does not hold planes of"),
        (136, b"\x09", "9 planes"),
        (136, b"\xff", "255 planes"),
        (PLANES_AT, b"\xff", "plane 0 has a name that is not ASCII"),
        (PLANES_AT + 8, b"\4", "plane 0 has dtype 4"),
        (PLANES_AT + 9, b"\5", "5 dimensions"),
        (PLANES_AT + 10, b"\xff" * 16, "does not hold planes of"),
    ],
)
def test_a_header_that_cannot_be_is_refused_although_its_checksum_is_right(
    place: int, value: bytes, complaint: str
) -> None:
    with pytest.raises(FormError, match=complaint):
        check(forged(stamped(), place, value), form=None)


def test_planes_larger_than_any_memory_are_refused_by_the_records_length() -> None:
    huge = struct.pack("<8sBB4I", b"k", 2, 4, 2**32 - 1, 2**30 - 1, 1, 1)
    size = 4 * (2**32 - 1) * (2**30 - 1)
    record = forged(forged(stamped(), PLANES_AT, huge), 136, b"\1")
    record = forged(record, 112, size.to_bytes(8, "little"))
    with pytest.raises(FormError, match=f"its header says {size + HEADER_BYTES}"):
        check(record, form=None)


@settings(max_examples=examples(300))
@given(st.integers(0, HEADER_SUM_AT - 1), st.binary(min_size=1, max_size=64))
def test_whatever_a_forger_writes_is_read_or_refused_and_never_anything_else(place: int, value: bytes) -> None:
    record = forged(stamped(), place, value[: HEADER_SUM_AT - place])
    try:
        header = read_header(memoryview(record))
    except FormError:
        return
    assert header.form.payload_bytes >= 0
    try:
        accepted = check(record)
    except FormError:
        return
    assert (accepted.key, accepted.tenant, accepted.form) == (KEY, TENANT, FORM)


@settings(max_examples=examples(300))
@given(st.binary(min_size=HEADER_SUM_AT - 8, max_size=HEADER_SUM_AT - 8), st.binary(max_size=40))
def test_noise_behind_the_right_beginning_is_refused(noise: bytes, payload: bytes) -> None:
    record = forged(bytearray(HEADER_BYTES) + payload, 0, struct.pack("<4sHH", b"KVST", 1, 512) + noise)
    with pytest.raises(FormError):
        check(record, form=None)


# Our own mistakes


@pytest.mark.parametrize(
    "header",
    [
        replace(HEADER, key=KEY._replace(namespace=Namespace(b"n" * 31))),
        replace(HEADER, key=KEY._replace(namespace=Namespace(b"n" * 33))),
        replace(HEADER, key=KEY._replace(hash=BlockHash(b""))),
        replace(HEADER, key=KEY._replace(group=GroupId(2**16))),
        replace(HEADER, key=KEY._replace(group=GroupId(-1))),
        replace(HEADER, tenant=TenantTag(b"t" * 15)),
        replace(HEADER, first_position=2**64),
        replace(HEADER, first_position=-1),
        replace(HEADER, tokens_valid=2**32),
        replace(HEADER, created_unix_s=math.nan),
        replace(HEADER, expires_unix_s=math.nan),
        replace(HEADER, form=replace(FORM, part=FORM.part._replace(heads=2**16))),
        replace(HEADER, form=replace(FORM, planes=(Plane("k", "float16", ()),) * 9)),
        replace(HEADER, form=replace(FORM, planes=(Plane("k", "float16", (1,) * 5),))),
        replace(HEADER, form=replace(FORM, planes=(Plane("ninelettr", "float16", (1,)),))),
        replace(HEADER, form=replace(FORM, planes=(Plane("å", "float16", (1,)),))),
        replace(HEADER, form=replace(FORM, planes=(Plane("k\0", "float16", (1,)),))),
        replace(HEADER, form=replace(FORM, planes=(Plane("k", "float16", (0, 2**32)),))),
    ],
)
def test_what_does_not_fit_its_field_is_never_stamped(header: Header) -> None:
    record = bytearray(header.form.record_bytes)
    with pytest.raises(AssertionError):
        stamp_record(memoryview(record), header)
    assert record == bytearray(header.form.record_bytes)


@pytest.mark.parametrize("length", [0, HEADER_BYTES, FORM.record_bytes - 1, FORM.record_bytes + 1])
def test_a_record_of_another_length_is_never_stamped(length: int) -> None:
    with pytest.raises(AssertionError, match=f"{length} bytes, not 532"):
        stamp_record(memoryview(bytearray(length)), HEADER)
