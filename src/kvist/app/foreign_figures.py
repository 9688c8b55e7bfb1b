"""Figures that somebody else wrote: a number is one within bounds, or is refused with its name and where it was."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvist.base.errors import WireError
from kvist.geometry.fields import show

_FRACTION_MIN = 2**-20
_NUMBER_MAX = 2**50
_TEXT_MAX = 40
_NUMBER = re.compile(r"[0-9.eE+-]{1,40}", re.ASCII)
_NONE = "None"
"""How Python programs write into labels that there is nothing."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Values by name, as numbers or as text; one that is absent or "None" says nothing.

    Attributes:
        values: as they came.
        where: that was, for messages.
    """

    values: Mapping[str, object]
    where: str

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number of at least `least`.

        Raises:
            WireError: it is none.

        >>> Figures({"a": "7", "b": 7.0, "c": "None"}, "here").whole("a")
        7
        """
        number = self._number(name, least)
        if number is not None and not number.is_integer():
            raise self._wrong(name)
        return None if number is None else int(number)

    def fraction(self, name: str) -> float | None:
        """A number above 0.

        Raises:
            WireError: it is none.
        """
        return self._number(name, _FRACTION_MIN)

    def needed(self, name: str) -> int:
        """A whole number of at least 1.

        Raises:
            WireError: it is none, or absent.
        """
        number = self.whole(name)
        if number is None:
            raise WireError(f"{self.where} does not say {name}, without which nothing can be compared")
        return number

    def text(self, name: str) -> str:
        """A word.

        Raises:
            WireError: it is none, or absent.
        """
        value = self.values.get(name)
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _TEXT_MAX:
            raise self._wrong(name)
        return value

    def flag(self, name: str) -> bool | None:
        """Whether something is so; None where that is not said in Python's words."""
        return {"True": True, "False": False}.get(str(self.values.get(name)))

    def _number(self, name: str, least: float) -> float | None:
        value = self.values.get(name)
        if value is None or value == _NONE:
            return None
        number = _read(value)
        if not least <= number <= _NUMBER_MAX:  # NaN compares false and ends here too
            raise self._wrong(name)
        return number

    def _wrong(self, name: str) -> WireError:
        return WireError(f"{self.where} says {name} is {show(self.values.get(name))}, which cannot be")


def _read(value: object) -> float:
    """The number; NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
