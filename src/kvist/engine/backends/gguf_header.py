"""What a GGUF file says of itself, read without trusting it.

Knows the layout of GGUF versions 2 and 3, little-endian: metadata, tensor table, and where each tensor's bytes lie.
Reads no weights. Every count and length is checked against the bytes there are before it is used, so that
neither a truncated file nor a malicious one costs more than reading its header.

    magic, version, tensor count, metadata count | metadata | tensor table | padding | tensor data
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from kvist.base.errors import ModelError
from kvist.base.units import rounded_up

Scalar = bool | int | float | str

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT_DEFAULT = 32
_TEXT_BYTES_MAX = 16 * 2**20
_DIMENSIONS_MAX = 4
_METADATA_BYTES_MIN = 13
_TENSOR_BYTES_MIN = 24

_LAYOUTS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9

# fmt: off  (a table reads better than one entry to a line)
BLOCK_SIZES: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        0: (1, 4),
        1: (1, 2),
        24: (1, 1),
        25: (1, 2),
        26: (1, 4),
        27: (1, 8),
        28: (1, 8),
        30: (1, 2),
        2: (32, 18),
        3: (32, 20),
        6: (32, 22),
        7: (32, 24),
        8: (32, 34),
        9: (32, 40),
        20: (32, 18),
        39: (32, 17),
        10: (256, 84),
        11: (256, 110),
        12: (256, 144),
        13: (256, 176),
        14: (256, 210),
        15: (256, 292),
        16: (256, 66),
        17: (256, 74),
        18: (256, 98),
        19: (256, 50),
        21: (256, 110),
        22: (256, 82),
        23: (256, 136),
        29: (256, 56),
        34: (256, 54),
        35: (256, 66),
        40: (64, 36),
        41: (128, 18),
    }
)
# fmt: on  (end of the table)
"""By tensor type: numbers in one block of it, and bytes that the block takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayField:
    """A metadata array of which only the length is kept."""

    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor's place in the file.

    Attributes:
        shape: dimensions as the file lists them, fastest-moving first.
        start: first byte, counted from the beginning of the file.
        size: length in bytes.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Metadata and tensor table of one file; every tensor lies inside the file.

    Attributes:
        architecture: the value of ``general.architecture``.
        fields: metadata by key; arrays are represented by their length.
        tensors: by name, in file order.
        spans: first byte and end of each metadata field in the file, its key included.
        table: first byte and end of the tensor table.
        alignment: the tensor data begins at the next multiple of this after the table.
    """

    architecture: str
    fields: Mapping[str, Scalar | ArrayField]
    tensors: Mapping[str, GgufTensor]
    spans: Mapping[str, tuple[int, int]]
    table: tuple[int, int]
    alignment: int

    @property
    def data_start(self) -> int:
        """First byte of the tensor data."""
        return rounded_up(self.table[1], self.alignment)

    @property
    def parameters(self) -> int:
        """Numbers in all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    def of_model(self, key: str) -> Scalar | ArrayField | None:
        """A metadata value under the architecture's own prefix; None when it is absent."""
        return self.fields.get(f"{self.architecture}.{key}")

    def array_length(self, key: str) -> int:
        """Length of a metadata array; 0 when it is absent or no array."""
        field = self.fields.get(key)
        return field.length if isinstance(field, ArrayField) else 0


def read_header(path: Path) -> GgufHeader:
    """Reads and checks the header of a GGUF file; opens nothing else and changes nothing.

    Raises:
        ModelError: the file is missing, unreadable, truncated, damaged or not a GGUF file of a known version.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return _Reader(path, file, size).header()
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror or error}") from error


class _Reader:
    """A cursor over the header of one open file that never reads beyond its end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size

    def header(self) -> GgufHeader:
        tensor_count, field_count = self._preamble()
        fields, spans = self._fields(field_count)
        architecture = fields.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._damage("it does not say its general.architecture")
        table_start = self._file.tell()
        entries = [self._tensor_entry() for _ in range(tensor_count)]
        table = (table_start, self._file.tell())
        alignment = fields.get("general.alignment", _ALIGNMENT_DEFAULT)
        if not isinstance(alignment, int) or not 0 < alignment <= 2**20 or alignment & (alignment - 1):
            raise self._damage(f"general.alignment is {alignment!r}, not a small power of two")
        tensors = dict(self._placed(entry, rounded_up(table[1], alignment)) for entry in entries)
        if len(tensors) != len(entries) or not tensors:
            raise self._damage(f"it lists {len(entries)} tensors of which {len(tensors)} have names of their own")
        return GgufHeader(
            architecture=architecture, fields=fields, tensors=tensors, spans=spans, table=table, alignment=alignment
        )

    def _preamble(self) -> tuple[int, int]:
        if self._size < len(_MAGIC) or self._file.read(len(_MAGIC)) != _MAGIC:
            raise self._damage("it does not begin with the letters GGUF")
        version, tensor_count, field_count = self._numbers("IQQ")
        if version not in _VERSIONS:
            raise self._damage(f"it is of version {version}, and only {_VERSIONS} are read")
        room = self._size - self._file.tell()
        if field_count * _METADATA_BYTES_MIN + tensor_count * _TENSOR_BYTES_MIN > room:
            raise self._damage(f"{field_count} fields and {tensor_count} tensors can not fit in its {self._size} bytes")
        return tensor_count, field_count

    def _fields(self, count: int) -> tuple[dict[str, Scalar | ArrayField], dict[str, tuple[int, int]]]:
        fields: dict[str, Scalar | ArrayField] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(count):
            start = self._file.tell()
            key = self._text()
            if key in fields:
                raise self._damage(f"it states {key!r} twice")
            (kind,) = self._numbers("I")
            fields[key] = self._value(key, kind)
            spans[key] = (start, self._file.tell())
        return fields, spans

    def _value(self, key: str, kind: int) -> Scalar | ArrayField:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _LAYOUTS:
            raise self._damage(f"the type of {key!r} is {kind}, which does not exist")
        value: Scalar = self._numbers(_LAYOUTS[kind])[0]
        return value

    def _array(self, key: str) -> ArrayField:
        kind, count = self._numbers("IQ")
        if kind in _LAYOUTS:
            self._skip(count * struct.calcsize(_LAYOUTS[kind]))
        elif kind == _TEXT and count * 8 <= self._size:
            for _ in range(count):
                self._skip(self._numbers("Q")[0])
        else:
            raise self._damage(f"{key!r} is an array of {count} items of type {kind}, which can not be read")
        return ArrayField(length=count)

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset within the tensor data."""
        name = self._text()
        (dimensions,) = self._numbers("I")
        if not 1 <= dimensions <= _DIMENSIONS_MAX:
            raise self._damage(f"tensor {name!r} has {dimensions} dimensions")
        shape = self._numbers("Q" * dimensions)
        kind, offset = self._numbers("IQ")
        return name, shape, kind, offset

    def _placed(self, entry: tuple[str, tuple[int, ...], int, int], data_start: int) -> tuple[str, GgufTensor]:
        name, shape, kind, offset = entry
        if kind not in BLOCK_SIZES:
            raise self._damage(f"tensor {name!r} is of type {kind}, which is not known")
        block_numbers, block_bytes = BLOCK_SIZES[kind]
        numbers = math.prod(shape)
        if not numbers or shape[0] % block_numbers:
            raise self._damage(f"tensor {name!r} of shape {list(shape)} does not divide into blocks of {block_numbers}")
        start, size = data_start + offset, numbers // block_numbers * block_bytes
        if start + size > self._size:
            raise self._damage(f"tensor {name!r} ends at byte {start + size}, but the file has {self._size} bytes")
        return name, GgufTensor(name=name, shape=shape, start=start, size=size)

    def _numbers(self, layout: str) -> tuple[int, ...]:
        wanted = struct.calcsize(f"<{layout}")
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise self._damage(f"it ends at byte {self._size}, within its header")
        return struct.unpack(f"<{layout}", data)

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        if length > min(_TEXT_BYTES_MAX, self._size - self._file.tell()):
            raise self._damage(f"a text of {length} bytes in its header can not be")
        try:
            return self._file.read(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damage(f"a text in its header is not UTF-8: {error}") from error

    def _skip(self, length: int) -> None:
        if length > self._size - self._file.tell():
            raise self._damage(f"it ends at byte {self._size}, within its header")
        self._file.seek(length, os.SEEK_CUR)

    def _damage(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is not a whole GGUF file: {what}; get the file again")
