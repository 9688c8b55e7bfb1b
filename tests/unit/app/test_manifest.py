"""A manifest proves a directory, and any difference is told by the name of the file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.app.manifest import MANIFEST, Manifest, read_manifest, record_files, verify_files, write_manifest
from kvist.app.progress import Progress, silent
from kvist.base.errors import ModelError

REMEDY = "run: kvist fetch tiny"


def manifest_of(directory: Path) -> Manifest:
    return Manifest(
        source_sha256="a" * 64, source_name="x.gguf", dtype="bfloat16", converter=1, files=record_files(directory)
    )


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 1000)
    (folder / "empty").write_bytes(b"")
    write_manifest(manifest_of(folder), folder)
    return folder


def verify(directory: Path) -> None:
    verify_files(read_manifest(directory, REMEDY), directory, remedy=REMEDY, report=silent)


def test_what_is_written_is_read_back_and_holds(directory: Path) -> None:
    assert read_manifest(directory, REMEDY) == manifest_of(directory)
    verify(directory)
    content = (directory / "model.safetensors").read_bytes()
    recorded = {record.name: (record.size, record.blake3) for record in manifest_of(directory).files}
    assert recorded["model.safetensors"] == (256_000, blake3(content).hexdigest())
    assert recorded["empty"] == (0, blake3(b"").hexdigest())
    assert MANIFEST not in recorded


def test_progress_is_told_in_bytes(directory: Path) -> None:
    told: list[Progress] = []
    verify_files(manifest_of(directory), directory, remedy=REMEDY, report=told.append)
    assert {(each.stage, each.total) for each in told} == {("verify", 256_002)}
    assert told[-1].done == 256_002


@settings(max_examples=50, deadline=None)
@given(at=st.integers(0, 255_999), bit=st.integers(0, 7))
def test_every_flipped_bit_is_found(tmp_path_factory, at: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("model")
    path = folder / "model.safetensors"
    path.write_bytes(bytes(256_000))
    write_manifest(manifest_of(folder), folder)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([1 << bit]))
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged: its contents.*run: kvist fetch tiny"):
        verify(folder)


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def fold(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [
    (damage, name)
    for damage in (remove, cut, lengthen, link, fold)
    for name in ("config.json", "model.safetensors", "empty")
    if (damage, name) != (cut, "empty")
]


@pytest.mark.parametrize(("damage", "name"), DAMAGES)
def test_every_damage_is_told_by_the_file_s_name_and_the_way_out(
    directory: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(directory / name)
    with pytest.raises(ModelError, match=rf"{name} .*; run: kvist fetch tiny"):
        verify(directory)


def test_a_file_more_than_listed_is_refused(directory: Path) -> None:
    (directory / "added_tokens.json").write_text("{}")
    with pytest.raises(ModelError, match=r"added_tokens\.json does not belong there"):
        verify(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"source_sha256": "x"},
        {"files": []},
        {"files": [{"name": "../x", "size": 1, "blake3": "a" * 64}]},
        {"files": [{"name": "x", "size": -1, "blake3": "a" * 64}]},
        {"files": [{"name": "x", "size": "1", "blake3": "a" * 64}]},
        {"converter": "1"},
        {"unheard_of": 1},
    ],
)
def test_a_manifest_that_is_not_sound_is_refused(directory: Path, change: dict[str, object]) -> None:
    path = directory / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=rf"{MANIFEST} is damaged, or of another version: .*kvist fetch tiny"):
        read_manifest(directory, REMEDY)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * 3_000_000])
def test_a_damaged_manifest_is_refused(directory: Path, data: bytes) -> None:
    (directory / MANIFEST).write_bytes(data)
    with pytest.raises(ModelError, match=MANIFEST):
        read_manifest(directory, REMEDY)


def test_a_missing_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{MANIFEST} can not be read"):
        read_manifest(tmp_path, REMEDY)


def test_the_digest_is_that_of_names_and_contents(directory: Path) -> None:
    manifest = manifest_of(directory)
    backwards = manifest.model_copy(update={"files": manifest.files[::-1], "source_name": "y.gguf"})
    assert manifest.digest == backwards.digest
    (directory / "config.json").write_text("[]")
    assert manifest_of(directory).digest != manifest.digest
