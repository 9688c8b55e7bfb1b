"""The published configurations of the catalogue, by name."""

from typing import Annotated

from pydantic import Field, TypeAdapter

from kvist.app.catalogue_data import Entry, tables

_FILE = "models.toml"


class PublishedModel(Entry):
    """One entry of the file.

    Attributes:
        repo: what engines call it.
        also: other names of it.
        config: the fields of its `config.json` that planning reads.
    """

    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")]
    also: tuple[str, ...] = ()
    config: Annotated[dict[str, object], Field(min_length=1)]


def published_models() -> dict[str, PublishedModel]:
    """All of them, by their first names."""
    return TypeAdapter(dict[str, PublishedModel]).validate_python(tables(_FILE))


def published(name: str) -> PublishedModel | None:
    """A model by one of its names; capitals make no difference. None: the catalogue has none such."""
    plain = name.lower()
    known = published_models().items()
    return next((model for first, model in known if plain == first or plain in model.also), None)
