"""The user's cache directory: where it is, that it is private, who works in it, and whether there is room.

$KVIST_CACHE, else $XDG_CACHE_HOME/kvist, else ~/.cache/kvist
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kvist.base.errors import CapacityError, ConfigError
from kvist.base.units import format_bytes
from kvist.engine.backends.foreign import NO_ROOM

VARIABLE = "KVIST_CACHE"

DiskFree = Callable[[Path], int]
"""Bytes that can still be written where a path is."""

_PRIVATE_DIRECTORY = 0o700
_PRIVATE_FILE = 0o600
_MORE_ROOM = f"free some, or set {VARIABLE} to a directory on another disk"


def cache_root(environment: Mapping[str, str]) -> Path:
    """Where the cache directory is, or would be; touches nothing.

    Raises:
        ConfigError: the environment does not say.
    """
    if chosen := environment.get(VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = environment.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / "kvist"
    try:
        return Path.home() / ".cache" / "kvist"
    except RuntimeError as error:
        raise ConfigError(f"there is no home directory to keep models in; set {VARIABLE}") from error


def disk_free(path: Path) -> int:
    """Bytes that this user can still write where a path is; the path need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def make_private(directory: Path) -> None:
    """Creates a directory for the user alone, parents included; an existing one is closed to others.

    Raises:
        ConfigError: it can not be created, is no directory, or belongs to someone else.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_DIRECTORY)
        directory.mkdir(exist_ok=True, mode=_PRIVATE_DIRECTORY)
        if directory.stat().st_mode & 0o077:
            directory.chmod(_PRIVATE_DIRECTORY)
    except OSError as error:
        raise unusable(directory, error) from error


def seal(directory: Path) -> None:
    """Makes everything in a directory private and writes it through to the disk."""
    for path in [*directory.rglob("*"), directory]:
        path.chmod(_PRIVATE_DIRECTORY if path.is_dir() else _PRIVATE_FILE)
        write_through(path)


def write_through(path: Path) -> None:
    """Returns when the contents of a file, or the names in a directory, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Holds the lock that a file stands for; it is released with the process, however that ends.

    Args:
        path: of the file, which is created and stays.
        waiting: called once if another process holds the lock, before waiting for it; None does not wait.

    Yields:
        Whether the lock is held; False only if `waiting` is None.

    Raises:
        ConfigError: the file can not be created or locked.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE_FILE)
    except OSError as error:
        raise unusable(path, error) from error
    try:
        yield _acquired(handle, path, waiting)
    finally:
        os.close(handle)


def _acquired(handle: int, path: Path, waiting: Callable[[], None] | None) -> bool:
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                return False
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        raise unusable(path, error) from error
    return True


def check_room(directory: Path, wanted: int, free: DiskFree) -> None:
    """Refuses work that would fill the disk.

    Raises:
        CapacityError: fewer bytes are free than wanted.
    """
    if (there := free(directory)) < wanted:
        raise CapacityError(
            f"not enough room in {directory}: {format_bytes(wanted)} are needed at once and {format_bytes(there)} are "
            f"free; {_MORE_ROOM}"
        )


@contextlib.contextmanager
def room_watched(directory: Path, wanted: int) -> Iterator[None]:
    """Runs work that writes into a directory; a disk that fills up meanwhile becomes a CapacityError.

    Raises:
        CapacityError: the operating system said that there is no room.
        ConfigError: it said something else about writing there.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise CapacityError(
                f"no room was left in {directory} while writing ({error.strerror}): {format_bytes(wanted)} are needed "
                f"at once; {_MORE_ROOM}"
            ) from error
        raise unusable(directory, error) from error


def unusable(path: Path, error: OSError) -> ConfigError:
    """What to tell the user when the operating system refuses something in the cache directory."""
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    what = "a part of it is a file, not a directory" if is_file else error.strerror or str(error)
    return ConfigError(f"the cache directory can not be used: {path}: {what}; set {VARIABLE} to a directory of yours")
