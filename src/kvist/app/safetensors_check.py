"""Whether safetensors files are whole, judged by their headers and lengths: no weight is read.

Layout of a file: 8 bytes with the header's length, little-endian | header, JSON | tensor data without gaps.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kvist.base.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PREFIX_BYTES = 8
_HEADER_BYTES_MAX = 100_000_000

# fmt: off  (a table reads better than one entry to a line)
_DTYPE_BITS = MappingProxyType(
    {
        "F64": 64,
        "I64": 64,
        "U64": 64,
        "C64": 64,
        "F32": 32,
        "I32": 32,
        "U32": 32,
        "F16": 16,
        "BF16": 16,
        "I16": 16,
        "U16": 16,
        "I8": 8,
        "U8": 8,
        "BOOL": 8,
        "F8_E4M3": 8,
        "F8_E5M2": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "F4": 4,
    }
)
# fmt: on  (end of the table)


def check_weights(directory: Path) -> tuple[Path, ...]:
    """Checks the weights of a model's directory, in one file or in shards.

    Returns:
        The files that hold them.

    Raises:
        ModelError: files are missing, truncated or damaged; names the file.
    """
    if (directory / SINGLE).exists():
        check_safetensors(directory / SINGLE)
        return (directory / SINGLE,)
    if (directory / INDEX).exists():
        return _check_shards(directory)
    others = sorted(path.name for path in directory.glob("*.bin"))
    found = f"; {others[0]} is not read, because such files can run code" if others else ""
    raise ModelError(f"{directory} holds no weights: neither {SINGLE} nor {INDEX}{found}")


def check_safetensors(path: Path) -> frozenset[str]:
    """Checks one file.

    Returns:
        Names of its tensors.

    Raises:
        ModelError: the file is missing, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_PREFIX_BYTES), "little")
            room = size - _PREFIX_BYTES
            if not 2 <= length <= min(room, _HEADER_BYTES_MAX):
                raise _damage(path, f"its header should take {length} bytes of its {size}")
            header = _parsed(file.read(length), path)
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror or error}") from error
    header.pop("__metadata__", None)
    end = 0
    for start, stop, name in sorted(_extents(header, path)):
        if start != end:
            raise _damage(path, f"the data of {name!r} begins at {start}, not at {end}")
        end = stop
    if end != room - length:
        raise _damage(path, f"its tensors take {end} bytes, and it has {room - length}")
    return frozenset(header)


def _check_shards(directory: Path) -> tuple[Path, ...]:
    index = directory / INDEX
    try:
        content = _parsed(index.read_bytes(), index)
    except OSError as error:
        raise ModelError(f"{index} can not be read: {error.strerror or error}") from error
    places = content.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise _damage(index, "it has no weight_map")
    shards: dict[str, set[str]] = {}
    for tensor, shard in places.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise _damage(index, f"it places {tensor!r} in {shard!r}, which is no safetensors file beside it")
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in shards.items():
        if lacking := tensors - check_safetensors(directory / shard):
            raise _damage(directory / shard, f"{INDEX} says that it holds {min(lacking)!r}, which it does not")
    return tuple(directory / shard for shard in sorted(shards))


def _parsed(text: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damage(path, f"it should hold JSON: {error}") from error
    if not isinstance(content, dict):
        raise _damage(path, "it should hold a JSON object")
    return content


def _extents(header: dict[str, Any], path: Path) -> Iterator[tuple[int, int, str]]:
    """First byte, end and name of each tensor, once they agree with its dtype and shape."""
    for name, tensor in header.items():
        match tensor:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
                sound = dtype in _DTYPE_BITS and all(type(each) is int and each >= 0 for each in shape)
            case _:
                sound = False
        if not sound or (stop - start) * 8 != math.prod(shape) * _DTYPE_BITS[dtype]:
            raise _damage(path, f"its header contradicts itself about {name!r}")
        yield start, stop, name


def _damage(path: Path, what: str) -> ModelError:
    return ModelError(f"{path} is damaged or cut short: {what}; get the file again")
