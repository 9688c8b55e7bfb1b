"""A directory that belongs to one disk tier of one process: private, locked, of a known version, and nobody else's.

Everything in it is opened through the directory's own descriptor and never through a symbolic link, so that nobody can
put another file in the place of one of ours.
"""

import fcntl
import os
import re
import stat
from pathlib import Path
from typing import Final

from kvist.base.errors import ConfigError

INDEX: Final = "index.sqlite"
_LOCK: Final = "lock"
_VERSION: Final = "version"
_VERSION_TEXT: Final = b"kvist disk tier, version 1\n"
_OURS: Final = re.compile(r"lock|version(\.new)?|probe|index\.sqlite(-wal|-shm|-journal)?|segment-\d{5}")
_IGNORED: Final = frozenset({"lost+found"})
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_ELSEWHERE: Final = "choose another directory for this tier"


class Directory:
    """The directory, held for as long as this object is open.

    Attributes:
        path: as configured.
        fd: a descriptor of it.
    """

    def __init__(self, path: Path) -> None:
        """Takes a directory, and makes it if there is none.

        Raises:
            ConfigError: it cannot be used, is in use, or is not a tier's; the message says why and what to do.
        """
        self.path = path
        self._lock_fd = -1
        self.fd = _open_directory(path)
        try:
            self._check_owner()
            self._check_contents()
            self._take_lock()
            self._check_version()
            os.fchmod(self.fd, 0o700)
        except OSError as error:
            self.close()
            raise ConfigError(f"{path} cannot be used: {error.strerror}; {_ELSEWHERE}") from error
        except ConfigError:
            self.close()
            raise

    def forget_index(self) -> None:
        """Removes the index, whatever state it is in."""
        for name in names_in(self.fd):
            if name.startswith(INDEX):
                os.unlink(name, dir_fd=self.fd)

    def prepare_index(self) -> Path:
        """Where the index is; the file is made, private, if there is none."""
        os.close(os.open(INDEX, _FLAGS, 0o600, dir_fd=self.fd))
        return self.path / INDEX

    @property
    def file_system_bytes(self) -> int:
        """What the directory's file system holds when it is empty; 0 where it does not say."""
        found = os.fstatvfs(self.fd)
        return found.f_blocks * found.f_frsize

    def close(self) -> None:
        """Lets others have it. May be repeated."""
        for fd in (self._lock_fd, self.fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self.fd = -1

    def _check_owner(self) -> None:
        owner, me = os.fstat(self.fd).st_uid, os.geteuid()
        if owner != me:
            raise ConfigError(f"{self.path} belongs to user {owner}, not to {me} who runs this; {_ELSEWHERE}")

    def _check_contents(self) -> None:
        for name in sorted(names_in(self.fd)):
            if name in _IGNORED:
                continue
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            private = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1
            if not _OURS.fullmatch(name) or not private:
                raise ConfigError(f"{self.path} holds {name!r}, which is not this tier's; {_ELSEWHERE}")
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.chmod(name, 0o600, dir_fd=self.fd)

    def _take_lock(self) -> None:
        self._lock_fd = os.open(_LOCK, _FLAGS, 0o600, dir_fd=self.fd)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock_fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            message = f"{self.path} is in use by the process {holder}; end that process, or {_ELSEWHERE}"
            raise ConfigError(message) from error
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)

    def _check_version(self) -> None:
        names = set(names_in(self.fd)) - _IGNORED
        if _VERSION in names:
            fd = os.open(_VERSION, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
            try:
                found = os.read(fd, 2 * len(_VERSION_TEXT))
            finally:
                os.close(fd)
            if found != _VERSION_TEXT:
                raise ConfigError(f"{self.path} is of another version, {found!r}; empty it, or {_ELSEWHERE}")
            return
        if strangers := names - {_LOCK, f"{_VERSION}.new", "probe"}:
            raise ConfigError(f"{self.path} holds {min(strangers)!r} but no file {_VERSION!r}; {_ELSEWHERE}")
        fd = os.open(f"{_VERSION}.new", _FLAGS | os.O_TRUNC, 0o600, dir_fd=self.fd)
        try:
            os.write(fd, _VERSION_TEXT)
            os.fsync(fd)  # else a loss of power leaves an empty file of that name, and the directory is nobody's
        finally:
            os.close(fd)
        os.rename(f"{_VERSION}.new", _VERSION, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)


def names_in(directory_fd: int) -> list[str]:
    """What a directory holds."""
    with os.scandir(directory_fd) as found:
        return [each.name for each in found]


def _open_directory(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        remedy = f"{_ELSEWHERE}, and name it itself, not by a symbolic link"
        raise ConfigError(f"{path} cannot be opened as a directory: {error}; {remedy}") from error
