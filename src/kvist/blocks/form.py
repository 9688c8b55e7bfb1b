"""The one form of a block outside the engine: a header that repeats the key, and the payload (DESIGN.md, section 6).

    record = header (HEADER_BYTES) || payload
    payload = the planes of the form, one after the other, each in C order

Knows bytes; does not know where records lie. The payload's checksum is in the header and the header has one of its
own, so that no single bit of a record can change unseen. Checksums are XXH3: they find damage, not malice; whoever
may write into a tier may forge a record.

Laws:
    * `check_record` accepts exactly the record that was asked for: same key, same tenant, same form, intact.
    * Nothing of a record is trusted before the header's own checksum is.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import xxhash

from kvist.base.errors import KvistError
from kvist.base.ids import BlockHash, GroupId
from kvist.blocks.keys import BlockKey, Kind, Namespace, TenantTag
from kvist.geometry.groups import Dtype

HEADER_BYTES = 512
FORM_VERSION = 1

PlaneDtype = Literal[Dtype, "uint8"]
"""Of the numbers of a plane; "uint8": bytes that mean something to one engine alone."""

_ITEM_BYTES: Mapping[PlaneDtype, int] = {"uint8": 1, "bfloat16": 2, "float16": 2, "float32": 4}

_MAGIC = b"KVST"
_CODEC_NONE = 0
_PLANES_MAX = 8
_DIMS = 4
_NAME_BYTES = 8
_NEVER_MS = 0
_LATEST_MS = 2**64 - 1

# Their places in these are what is stored, so both may only be added to at the end; a test holds them to it.
_KINDS = get_args(Kind)
_DTYPES = get_args(PlaneDtype)

# magic, version, header bytes | namespace, group, kind, codec, hash | tenant | part | first position, tokens valid,
# payload bytes | created, expires | planes
_FIXED = struct.Struct("<4sHH 32sHBB32s 16s 4H QIQ QQ B")
_PLANE = struct.Struct(f"<{_NAME_BYTES}sBB{_DIMS}I")
_PAYLOAD_SUM = struct.Struct("<16s")
_HEADER_SUM = struct.Struct("<8s")
_PAYLOAD_SUM_AT = HEADER_BYTES - _HEADER_SUM.size - _PAYLOAD_SUM.size
_HEADER_SUM_AT = HEADER_BYTES - _HEADER_SUM.size
assert _FIXED.size + _PLANES_MAX * _PLANE.size <= _PAYLOAD_SUM_AT


class FormError(KvistError):
    """A record is damaged, or is not the one that was asked for."""


class Plane(NamedTuple):
    """One array of a payload, such as the keys ``[layers, kv_heads, block_tokens, head_dim_k]``."""

    name: str
    dtype: PlaneDtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the plane."""
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


class Part(NamedTuple):
    """Which layers of its group and which KV heads a record covers."""

    layers_first: int
    layers: int
    heads_first: int
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What every record of one group and one writer looks like.

    Attributes:
        planes: in the order in which they lie; at most 8, of at most 4 dimensions, names of at most 8 ASCII letters.
        part: what of the block they cover.
        payload_bytes: bytes after the header; follows from the planes, computed once because every record asks for it.
        record_bytes: bytes of header and payload, likewise.
    """

    planes: tuple[Plane, ...]
    part: Part
    payload_bytes: int = field(init=False, repr=False, compare=False)
    record_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        payload = sum(plane.nbytes for plane in self.planes)
        object.__setattr__(self, "payload_bytes", payload)
        object.__setattr__(self, "record_bytes", HEADER_BYTES + payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a record says of itself.

    Attributes:
        key: which KV it is.
        tenant: whose.
        form: planes and part.
        first_position: of the block's first token.
        tokens_valid: how many of the block's tokens it holds.
        created_unix_s, expires_unix_s: wall-clock seconds, stored as whole milliseconds not before 1970; None: it does
            not expire.
    """

    key: BlockKey
    tenant: TenantTag
    form: Form
    first_position: int
    tokens_valid: int
    created_unix_s: float
    expires_unix_s: float | None = None


def stamp_record(record: memoryview, header: Header) -> None:
    """Writes the header, with both checksums, in front of the payload that is in `record` already.

    Args:
        record: exactly `header.form.record_bytes` writable bytes.
        header: describes the payload; what does not fit into its fields is a mistake of ours.
    """
    assert record.nbytes == header.form.record_bytes, f"{record.nbytes} bytes, not {header.form.record_bytes}"
    _assert_fits(header)
    key, form = header.key, header.form
    packed = bytearray(HEADER_BYTES)
    expires = _NEVER_MS if header.expires_unix_s is None else max(1, _milliseconds(header.expires_unix_s))
    _FIXED.pack_into(
        packed,
        0,
        _MAGIC,
        FORM_VERSION,
        HEADER_BYTES,
        key.namespace,
        key.group,
        _KINDS.index(key.kind),
        _CODEC_NONE,
        key.hash,
        header.tenant,
        *form.part,
        header.first_position,
        header.tokens_valid,
        form.payload_bytes,
        _milliseconds(header.created_unix_s),
        expires,
        len(form.planes),
    )  # fmt: skip  one line of the table above per line
    for index, plane in enumerate(form.planes):
        shape = (*plane.shape, *(0,) * (_DIMS - len(plane.shape)))
        place = _FIXED.size + index * _PLANE.size
        _PLANE.pack_into(packed, place, plane.name.encode(), _DTYPES.index(plane.dtype), len(plane.shape), *shape)
    _PAYLOAD_SUM.pack_into(packed, _PAYLOAD_SUM_AT, xxhash.xxh3_128_digest(record[HEADER_BYTES:]))
    _HEADER_SUM.pack_into(packed, _HEADER_SUM_AT, xxhash.xxh3_64_digest(memoryview(packed)[:_HEADER_SUM_AT]))
    record[:HEADER_BYTES] = packed


def read_header(record: memoryview) -> Header:
    """Reads what a record says of itself; the payload is not looked at.

    Raises:
        FormError: it is too short, no header, of another version, or damaged.
    """
    if record.nbytes < HEADER_BYTES:
        raise FormError(f"{record.nbytes} bytes are too few for a header")
    head = bytes(record[:HEADER_BYTES])
    if xxhash.xxh3_64_digest(head[:_HEADER_SUM_AT]) != head[_HEADER_SUM_AT:]:
        raise FormError("the header's checksum does not match")
    magic, version, size, namespace, group, kind, codec, block_hash, tenant, *rest = _FIXED.unpack_from(head)
    part, (first, valid, payload, created, expires, planes) = tuple(rest[:4]), rest[4:]
    if (magic, version, size, codec) != (_MAGIC, FORM_VERSION, HEADER_BYTES, _CODEC_NONE):
        raise FormError(f"a record of version {version} and codec {codec} is not one that this version reads")
    if kind >= len(_KINDS) or planes > _PLANES_MAX:
        raise FormError(f"kind {kind} with {planes} planes is unknown to this version")
    form = _read_form(part, head[_FIXED.size : _FIXED.size + planes * _PLANE.size])
    if form.payload_bytes != payload:
        raise FormError(f"a payload of {payload} bytes does not hold planes of {form.payload_bytes}")
    return Header(
        key=BlockKey(Namespace(namespace), GroupId(group), _KINDS[kind], BlockHash(block_hash)),
        tenant=TenantTag(tenant),
        form=form,
        first_position=first,
        tokens_valid=valid,
        created_unix_s=created / 1000,
        expires_unix_s=None if expires == _NEVER_MS else expires / 1000,
    )


def check_record(record: memoryview, *, key: BlockKey, tenant: TenantTag, form: Form | None = None) -> Header:
    """Proves that a record is the one asked for and intact.

    Args:
        record: its bytes, no more and no fewer.
        key: what was asked for.
        tenant: on whose behalf.
        form: what it must look like; None where the asker does not know, as when a tier is listed.

    Raises:
        FormError: saying what differs.
    """
    header = read_header(record)
    if header.key != key:
        raise FormError("it holds another block than the one asked for")
    if header.tenant != tenant:
        raise FormError("it belongs to another tenant")
    if form is not None and header.form is not form and header.form != form:
        raise FormError(f"its form is {header.form}, not {form}")
    if record.nbytes != header.form.record_bytes:
        raise FormError(f"it is {record.nbytes} bytes long, its header says {header.form.record_bytes}")
    if xxhash.xxh3_128_digest(record[HEADER_BYTES:]) != bytes(record[_PAYLOAD_SUM_AT:_HEADER_SUM_AT]):
        raise FormError("the payload's checksum does not match")
    return header


@lru_cache(maxsize=64)
def _read_form(part: tuple[int, int, int, int], planes: bytes) -> Form:
    """The form that some bytes describe; a tier has few, and each of them in many records."""
    count = len(planes) // _PLANE.size
    return Form(planes=tuple(_read_plane(planes, index) for index in range(count)), part=Part(*part))


def _read_plane(planes: bytes, index: int) -> Plane:
    name, dtype, dims, *shape = _PLANE.unpack_from(planes, index * _PLANE.size)
    if dtype >= len(_DTYPES) or dims > _DIMS:
        raise FormError(f"plane {index} has dtype {dtype} and {dims} dimensions, unknown to this version")
    try:
        return Plane(name.rstrip(b"\0").decode("ascii"), _DTYPES[dtype], tuple(shape[:dims]))
    except UnicodeDecodeError as error:
        raise FormError(f"plane {index} has a name that is not ASCII") from error


def _assert_fits(header: Header) -> None:
    """Digests are stored at their exact length, which `struct` would cut or fill up without a word."""
    key, part = header.key, header.form.part
    sizes = (len(key.namespace), len(key.hash), len(header.tenant))
    assert sizes == (32, 32, 16), f"namespace, hash and tenant of {sizes} bytes"
    small = (key.group, *part)
    assert all(0 <= number < 2**16 for number in small), f"group and part {small} do not fit into 16 bits each"
    assert 0 <= header.tokens_valid < 2**32, f"{header.tokens_valid} valid tokens"
    assert 0 <= header.first_position < 2**64, f"first position {header.first_position}"
    planes = header.form.planes
    assert len(planes) <= _PLANES_MAX, f"{len(planes)} planes, at most {_PLANES_MAX}"
    for plane in planes:
        is_name = plane.name.isascii() and len(plane.name) <= _NAME_BYTES and "\0" not in plane.name
        assert is_name, f"a plane cannot be called {plane.name!r}"
        is_shape = len(plane.shape) <= _DIMS and all(0 <= size < 2**32 for size in plane.shape)
        assert is_shape, f"a plane cannot have the shape {plane.shape}"


def _milliseconds(seconds: float) -> int:
    """Whole milliseconds that fit the field: a wall clock may be wrong, and "in a million years" may be asked for."""
    assert not math.isnan(seconds), "not a number of seconds"
    return round(min(max(seconds * 1000, 0), _LATEST_MS))
