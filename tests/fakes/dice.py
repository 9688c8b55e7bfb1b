"""Chance from a number: even where a property-testing library would rather try what is small or at a bound."""

from collections.abc import Sequence
from typing import TypeVar

from blake3 import blake3

T = TypeVar("T")


class Dice:
    """Throws that follow from a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._throws = 0

    def number(self, least: int, most: int) -> int:
        """A number in [least, most], each as likely as the others."""
        self._throws += 1
        digest = blake3(f"{self._seed}:{self._throws}".encode()).digest(length=8)
        return least + int((int.from_bytes(digest, "little") >> 11) / (1 << 53) * (most - least + 1))

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, each as likely as the others."""
        return options[self.number(0, len(options) - 1)]
