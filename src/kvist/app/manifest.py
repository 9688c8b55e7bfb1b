"""What a converted model consists of, file by file, so that each start can prove that nothing changed.

The manifest lies beside the files it lists and is written last: a directory without one is not a model.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvist.app.progress import Progress, Report
from kvist.base.errors import ModelError

MANIFEST = "kvist.json"

_MANIFEST_BYTES_MAX = 2**20

Hex256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
PlainName = Annotated[str, Field(pattern=r"^[^/\x00]{1,255}$")]


class FileRecord(BaseModel):
    """One file of the model: its name within the directory, its length in bytes, and its digest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: PlainName
    size: Annotated[int, Field(ge=0)]
    blake3: Hex256


class Manifest(BaseModel):
    """Everything known about a converted model.

    Attributes:
        source_sha256: of the GGUF it was made from.
        source_name: that file's name, for people.
        dtype: of the weights.
        converter: version of the conversion; another one may give other files.
        terms_accepted: address of the terms that the user accepted; None when there are none.
        files: all files but the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = 1
    source_sha256: Hex256
    source_name: str
    dtype: str
    converter: int
    terms_accepted: str | None = None
    # JSON has lists only, so this one field may be read from one.
    files: Annotated[tuple[FileRecord, ...], Field(min_length=1, strict=False)]

    @property
    def digest(self) -> str:
        """One digest of all files: equal exactly when names and contents are."""
        listed = sorted((record.name, record.size, record.blake3) for record in self.files)
        return str(blake3(json.dumps(listed).encode()).hexdigest())


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Measures every file of a directory that is to become a model."""
    paths = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
    return tuple(FileRecord(name=path.name, size=path.stat().st_size, blake3=_digest(path)) for path in paths)


def write_manifest(manifest: Manifest, directory: Path) -> None:
    """Writes the manifest into the model's directory."""
    (directory / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(directory: Path, remedy: str) -> Manifest:
    """Reads the manifest of a model's directory.

    Args:
        directory: of the model.
        remedy: what the user can do if it is not there or not sound; ends the message.

    Raises:
        ModelError: it is missing, damaged, or of another version of Kvist.
    """
    path = directory / MANIFEST
    try:
        with path.open("rb") as file:
            text = file.read(_MANIFEST_BYTES_MAX)
    except OSError as error:
        raise ModelError(f"{path} can not be read: {error.strerror or error}; {remedy}") from error
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ModelError(f"{path} is damaged, or of another version: {where}: {first['msg']}; {remedy}") from error


def verify_files(manifest: Manifest, directory: Path, *, remedy: str, report: Report) -> None:
    """Compares every file of a model with its manifest, lengths first, then contents.

    Raises:
        ModelError: a file is missing, changed, or does not belong there; names it and ends with `remedy`.
    """
    try:
        _check_names(manifest.files, directory, remedy)
        total, done = sum(record.size for record in manifest.files), 0
        for record in manifest.files:
            report(Progress(stage="verify", done=done, total=total))
            if _digest(directory / record.name) != record.blake3:
                raise ModelError(f"{directory / record.name} is damaged: its contents have changed; {remedy}")
            done += record.size
        report(Progress(stage="verify", done=done, total=total))
    except OSError as error:
        raise ModelError(f"{error.filename or directory} can not be read: {error.strerror}; {remedy}") from error


def _check_names(records: Iterable[FileRecord], directory: Path, remedy: str) -> None:
    there = {path.name: path for path in directory.iterdir() if path.name != MANIFEST}
    for record in records:
        path = there.pop(record.name, None)
        if path is None:
            raise ModelError(f"{directory / record.name} is missing; {remedy}")
        if path.is_symlink() or not path.is_file():
            raise ModelError(f"{path} is no longer a plain file; {remedy}")
        if (size := path.stat().st_size) != record.size:
            raise ModelError(f"{path} is damaged: it has {size} bytes instead of {record.size}; {remedy}")
    if there:
        # transformers would read some files merely because they are there.
        raise ModelError(f"{min(there.values())} does not belong there; {remedy}")


def _digest(path: Path) -> str:
    hasher = blake3(max_threads=blake3.AUTO)
    # An empty file can not be mapped.
    return str((hasher.update_mmap(path) if path.stat().st_size else hasher).hexdigest())
