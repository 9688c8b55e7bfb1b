"""The catalogue's files are read, and names that are not in them are met with help."""

import pytest
from pydantic import ValidationError

from kvist.app.catalogue_data import Entry, tables, unknown

SOURCE = {"url": "https://example.org/a", "read": "80 GB and 2 TB/s"}


@pytest.mark.parametrize("file", ["accelerators.toml", "models.toml"])
def test_the_files_hold_tables(file: str) -> None:
    found = tables(file)
    assert len(found) >= 8
    assert all(isinstance(entry, dict) for entry in found.values())


def test_an_entry_with_a_source_is_taken() -> None:
    entry = Entry.model_validate({"title": "A GPU", "sources": [SOURCE]})
    assert entry.sources[0].url == "https://example.org/a"
    assert entry.sources[0].of == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "A GPU"},
        {"title": "A GPU", "sources": []},
        {"title": "", "sources": [SOURCE]},
        {"title": "A GPU", "sources": [SOURCE], "surplus": 1},
        {"title": "A GPU", "sources": [{**SOURCE, "url": "http://example.org"}]},
        {"title": "A GPU", "sources": [{**SOURCE, "url": "hearsay"}]},
        {"title": "A GPU", "sources": [{**SOURCE, "read": ""}]},
        {"title": "A GPU", "sources": [{"url": SOURCE["url"]}]},
    ],
    ids=str,
)
def test_an_entry_without_a_source_or_with_what_nobody_knows_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Entry.model_validate(fields)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("h20", "did you mean h200?"), ("H100", "did you mean h100-sxm?"), ("", "it has h200"), ("ß" * 10_000, "it has")],
)
def test_an_unknown_name_is_met_with_the_nearest_and_all(name: str, hint: str) -> None:
    error = str(unknown("GPU", name, ["h200", "h100-sxm", "l4"], "give --gpu-memory"))
    assert hint in error
    assert error.endswith("h200, h100-sxm, l4; give --gpu-memory")
    assert len(error) < 250
