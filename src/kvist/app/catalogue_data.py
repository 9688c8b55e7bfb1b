"""Reads the data files of the catalogue, and says where each figure in them was found."""

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kvist.base.errors import ConfigError
from kvist.geometry.fields import show

_DATA = Path(__file__).with_name("data")


class Source(BaseModel):
    """Where something was read.

    Attributes:
        url: of the page or file.
        read: what stood there.
        of: which fields of the entry it gives; none: all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https://[^\s]+$")]
    read: Annotated[str, Field(min_length=10)]
    of: tuple[str, ...] = ()


class Entry(BaseModel):
    """What every entry of the catalogue has.

    Attributes:
        title: what it is, for people.
        sources: of its figures.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    title: Annotated[str, Field(min_length=3)]
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]


def tables(file: str) -> Mapping[str, object]:
    """The tables of one of the catalogue's files, each an entry still to be checked."""
    return tomllib.loads((_DATA / file).read_text(encoding="utf-8"))


def unknown(what: str, name: str, known: list[str], remedy: str) -> ConfigError:
    """An error for a name that the catalogue does not have: names the nearest, all there are, and another way.

    >>> str(unknown("GPU", "h20", ["h200", "l4"], "give --gpu-memory"))
    "there is no GPU 'h20' in the catalogue; did you mean h200? It has h200, l4; give --gpu-memory"
    """
    plain = name[:40].lower()
    longer = [each for each in known if plain and each.startswith(plain)]
    near = longer or get_close_matches(plain, known, n=1)
    hint = f"; did you mean {' or '.join(near)}? It has" if near else "; it has"
    return ConfigError(f"there is no {what} {show(name)} in the catalogue{hint} {', '.join(known)}; {remedy}")
