"""Numbers that look random and follow from a seed alone; pure.

Every list is the output of SHAKE-128 over the seed and a label, read as little-endian 32-bit words. So the
same seed and label give the same numbers on every machine and version, two labels give unrelated numbers,
and a longer list begins with the shorter one.
"""

import hashlib
import struct
from dataclasses import dataclass

from kvist.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Whole numbers from `low` to `high`, both included.

    Raises:
        ConfigError: it would be empty or hold negative numbers.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigError(f"{self.low}:{self.high} is not a range; write MIN:MAX with 0 <= MIN <= MAX")

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return self.high - self.low + 1


def words(seed: int, label: str, count: int) -> tuple[int, ...]:
    """That many numbers below 2**32."""
    stream = hashlib.shake_128(f"kvist.lab.draw/1 {seed} {label}".encode()).digest(4 * count)
    return struct.unpack(f"<{count}I", stream)


def integers(seed: int, label: str, count: int, span: Span) -> tuple[int, ...]:
    """That many numbers of a span, each as likely as any other to within size / 2**32."""
    return tuple(span.low + (word * span.size >> 32) for word in words(seed, label, count))


def fractions(seed: int, label: str, count: int) -> tuple[float, ...]:
    """That many numbers strictly between 0 and 1."""
    return tuple((word + 0.5) / 2**32 for word in words(seed, label, count))
