"""Bytes and tokens as types, and the one way to read and write them."""

import re
from decimal import Decimal
from typing import NewType

from kvist.base.errors import ConfigError

Bytes = NewType("Bytes", int)
Tokens = NewType("Tokens", int)

_FACTORS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_FACTORS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> Bytes:
    """Reads a size such as ``2GiB``, ``512 MiB`` or ``1.5GB``.

    Raises:
        ConfigError: the text is not a positive size with a known unit.

    >>> parse_bytes("1.5KiB")
    1536
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _FACTORS.get(match.group(2).upper()) if match else None
    size = int(Decimal(match.group(1)) * factor) if match and factor else 0
    if size <= 0:
        shown = repr(text) if len(text) <= 40 else f"{text[:40]!r}..."
        raise ConfigError(f"{shown} is not a size; write a positive number with a unit, such as 512MiB or 2GiB")
    return Bytes(size)


def rounded_up(size: int, step: int) -> int:
    """The least multiple of a step that is no less than a size.

    >>> rounded_up(513, 512), rounded_up(512, 512), rounded_up(0, 512)
    (1024, 512, 0)
    """
    return -(-size // step) * step


def format_bytes(size: int) -> str:
    """Writes a size with the binary unit that keeps it readable.

    >>> format_bytes(23040), format_bytes(2 * 2**30)
    ('22.5 KiB', '2.0 GiB')
    """
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        shown = f"{value:.0f}" if unit == "B" else f"{value:.1f}"
        if abs(float(shown)) < 1024:
            return f"{shown} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
