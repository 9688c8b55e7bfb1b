"""The published configurations of the catalogue, by name."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter

from kvist.app.catalogue_data import Entry, tables

_FILE = "models.toml"


class PublishedModel(Entry):
    """One entry of the file.

    Attributes:
        also: other names of it.
        config: the fields of its `config.json` that planning reads.
    """

    also: tuple[str, ...] = ()
    config: Annotated[dict[str, object], Field(min_length=1)]


def published_models() -> dict[str, PublishedModel]:
    """All of them, by their first names."""
    return TypeAdapter(dict[str, PublishedModel]).validate_python(tables(_FILE))


def published_config(name: str) -> Mapping[str, object] | None:
    """The configuration of a model by one of its names; capitals make no difference. None: the catalogue has none."""
    plain = name.lower()
    for first, model in published_models().items():
        if plain == first or plain in model.also:
            return model.config
    return None
