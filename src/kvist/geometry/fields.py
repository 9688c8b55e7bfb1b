"""Reads values out of a configuration that anybody may have written.

Knows types, bounds and how to complain; does not know what any field means. Every error is a `ModelError`
that names the field as its author wrote it, the value, and what would be accepted.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvist.base.errors import ModelError

INTEGER_MAX = 2**31 - 1
"""Largest integer any field may hold: positions and token ids are 32-bit integers in the engines."""


def show(value: object) -> str:
    """Writes a value for an error message, at a bounded length whatever the value is.

    >>> show("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'"
    >>> show(10**5000), show([1, 2, 3]), show(None)
    ('an integer of 16610 bits', 'a list of 3', 'null')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "...")
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a value of type {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A mapping read with suspicion.

    Attributes:
        values: the fields; unknown ones are nobody's business and stay unread.
        source: what the reader of an error calls the whole, such as "config.json".
        names: how the author wrote a field, where that differs from its key in `values`.
        prefix: put before a field's name in errors, for fields that lie inside another field.
    """

    values: Mapping[str, object]
    source: str
    names: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def name(self, key: str) -> str:
        """The field's name as its author wrote it."""
        return self.prefix + self.names.get(key, key)

    def has(self, key: str) -> bool:
        """Whether the field is there, null included."""
        return key in self.values

    def is_null(self, key: str) -> bool:
        """Whether the field is there and null."""
        return key in self.values and self.values[key] is None

    def is_set(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(key) is not None

    def fail(self, key: str, wanted: str) -> ModelError:
        """An error about the field's present value, to be raised by the caller."""
        value = show(self.values.get(key))
        return ModelError(f"{self.source}: {self.name(key)} is {value}; it must be {wanted}")

    def require(self, keys: Iterable[str], who: str) -> None:
        """Checks that fields are there.

        Raises:
            ModelError: one or more are missing; all of them are named at once.
        """
        missing = [self.name(key) for key in keys if key not in self.values]
        if missing:
            raise ModelError(f"{self.source}: lacks {', '.join(missing)}, which {who} needs")

    def integer(self, key: str, *, default: int | None = None, least: int = 1, most: int = INTEGER_MAX) -> int:
        """An integer within bounds; an absent field is the default.

        Raises:
            ModelError: the field is absent without a default, no integer, or out of bounds.
        """
        value = self.values.get(key, default)
        # bool is a subclass of int in Python, and `true` is no count of anything.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(key, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, *, default: float | None = None, above: float = 0.0) -> float:
        """A finite number above a bound; an absent field is the default.

        Raises:
            ModelError: the field is absent without a default, no number, NaN, infinite or too small.
        """
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"a number above {above:g}")
        # A huge integer has no float; it is as unusable as infinity.
        real = float(value) if isinstance(value, float) or value.bit_length() < 1024 else math.inf
        if not (math.isfinite(real) and real > above):
            raise self.fail(key, f"a finite number above {above:g}")
        return real

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean; an absent field is the default.

        Raises:
            ModelError: the field is neither true nor false.
        """
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string; an absent field is the default.

        Raises:
            ModelError: the field is absent without a default, or no string.
        """
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value

    def items(self, key: str) -> tuple[object, ...]:
        """The items of a list, each still to be checked.

        Raises:
            ModelError: the field is no list.
        """
        value = self.values.get(key)
        if not isinstance(value, list | tuple):
            raise self.fail(key, "a list")
        return tuple(value)

    def numbers(self, key: str, *, count: int) -> tuple[float, ...]:
        """A list of so many positive finite numbers.

        Raises:
            ModelError: the field is no such list.
        """
        each = self.listed(key, count=count, wanted=f"a list of {count} numbers")
        return tuple(each.number(str(index)) for index in range(count))

    def listed(self, key: str, *, count: int, wanted: str) -> "Fields":
        """The items of a list as fields of their own, called "0", "1" and so on, each still to be checked.

        Args:
            key: of the list.
            count: of its items.
            wanted: what the field should be, for the error.

        Raises:
            ModelError: the field is no list, or one of another length.
        """
        items = self.items(key)
        if len(items) != count:
            raise self.fail(key, wanted)
        return Fields(
            values={str(index): item for index, item in enumerate(items)},
            source=self.source,
            names={str(index): f"{self.name(key)}[{index}]" for index in range(count)},
        )

    def nested(self, key: str) -> "Fields":
        """The fields inside a field; an absent or null field has none.

        Raises:
            ModelError: the field is something else than a mapping.
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.fail(key, "a mapping of fields, or null")
        return Fields(values=value or {}, source=self.source, prefix=f"{self.name(key)}.")
