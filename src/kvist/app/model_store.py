"""Converted models in the cache directory, one directory for each GGUF, named by the GGUF's SHA-256.

A model is built in a workspace beside its final place and renamed into it, so it is there whole or not at all:

    models/<sha256>/                 a model: kvist.json and the files that it lists
    models/.<sha256>.lock            whoever builds or replaces that model holds it
    models/.<sha256>.<random>.work/  a workspace; without the lock's holder its owner is dead, and it is removed
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kvist.app.cache_dir import (
    DiskFree,
    check_room,
    disk_free,
    locked,
    make_private,
    room_watched,
    seal,
    unusable,
    write_through,
)
from kvist.app.manifest import Manifest, read_manifest, verify_files, write_manifest
from kvist.app.progress import Progress, Report, silent
from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_facts import CONVERTED_DTYPE, CONVERTER_VERSION

_WORKSPACE = re.compile(r"\.([0-9a-f]{64})\.[^.]+\.work")


class ModelStore:
    """The models under one cache directory. Safe to use from several processes at once."""

    def __init__(self, root: Path, *, free: DiskFree = disk_free) -> None:
        """Names the place; touches nothing.

        Args:
            root: the cache directory.
            free: how many bytes can still be written there.
        """
        self._models = root / "models"
        self._free = free

    def directory(self, digest: str) -> Path:
        """Where the model made from a GGUF with this SHA-256 is, or would be."""
        return self._models / digest

    def verify(self, digest: str, *, remedy: str, report: Report = silent) -> Manifest:
        """Proves that a model is whole and unchanged.

        Args:
            digest: SHA-256 of its GGUF.
            remedy: what the user can do if it is not; ends the message.
            report: takes how far the work has come.

        Raises:
            ModelError: the model is not there, is damaged, or was converted by another version.
            ConfigError: the cache directory can not be used.
        """
        directory = self.directory(digest)
        if not self._is_there(digest):
            raise ModelError(f"the model is not in the cache ({directory}); {remedy}")
        manifest = read_manifest(directory, remedy)
        if (manifest.converter, manifest.dtype) != (CONVERTER_VERSION, CONVERTED_DTYPE):
            made = f"version {manifest.converter} of the conversion to {manifest.dtype}"
            raise ModelError(f"{directory} was made by {made}, not by {CONVERTER_VERSION}; {remedy}")
        if manifest.source_sha256 != digest:
            raise ModelError(f"{directory} was made from another file, {manifest.source_name}; {remedy}")
        verify_files(manifest, directory, remedy=remedy, report=report)
        return manifest

    def find(self, digest: str, *, report: Report = silent) -> Manifest | None:
        """The manifest of a model that is whole; None when it is not there, or not whole, which is then reported."""
        if not self._is_there(digest):
            return None
        try:
            return self.verify(digest, remedy="it will be made again", report=report)
        except ModelError as error:
            report(Progress(stage=str(error)))
            return None

    @contextlib.contextmanager
    def lock(self, digest: str, *, report: Report = silent) -> Iterator[None]:
        """Makes the caller the only one who may build this model, waiting for whoever does; cleans up after the dead.

        Raises:
            ConfigError: the cache directory can not be used.
        """
        make_private(self._models)

        def waiting() -> None:
            report(Progress(stage="another process is at work on this model; waiting for it"))

        with locked(self._lock_path(digest), waiting):
            self._remove_abandoned(digest)
            yield

    @contextlib.contextmanager
    def workspace(self, digest: str, *, wanted: int) -> Iterator[Path]:
        """An empty private directory, removed afterwards whatever happens. The caller holds the model's lock.

        Args:
            digest: of the model that will be built in it.
            wanted: bytes that will lie in it at once, at most.

        Raises:
            CapacityError: there is no room, at the start or later.
            ConfigError: the cache directory can not be used.
        """
        check_room(self._models, wanted, self._free)
        with room_watched(self._models, wanted):
            path = Path(tempfile.mkdtemp(prefix=f".{digest}.", suffix=".work", dir=self._models))
            try:
                yield path
            finally:
                self._remove(path)

    def commit(self, built: Path, manifest: Manifest) -> Path:
        """Puts a finished directory in its final place, instead of what may be there; all of it or nothing.

        Args:
            built: a directory within a workspace.
            manifest: of its files.

        Returns:
            The final place.
        """
        write_manifest(manifest, built)
        seal(built)
        final = self.directory(manifest.source_sha256)
        if final.exists():
            final.rename(built.with_name("replaced"))
        built.rename(final)
        write_through(self._models)
        return final

    def _is_there(self, digest: str) -> bool:
        try:
            return self.directory(digest).is_dir()
        except OSError as error:
            raise unusable(self.directory(digest), error) from error

    def _lock_path(self, digest: str) -> Path:
        return self._models / f".{digest}.lock"

    def _remove_abandoned(self, mine: str) -> None:
        """Removes workspaces that nobody holds the lock of any more; the caller holds that of `mine`."""
        for path in self._models.iterdir():
            match = _WORKSPACE.fullmatch(path.name)
            if match is None:
                continue
            if match.group(1) == mine:
                self._remove(path)
                continue
            with locked(self._lock_path(match.group(1))) as held:
                if held:
                    self._remove(path)

    def _remove(self, path: Path) -> None:
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise unusable(path, error) from error
