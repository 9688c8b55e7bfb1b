"""Unix sockets that only their user can reach: where they are, and that nobody has put something else there.

    $XDG_RUNTIME_DIR/kvist/PORT.sock, or without that variable /tmp/kvist-UID/PORT.sock
    .../PORT-SOMETHING.sock where a server of the same port on another address was first

The directory is 0700 and a socket 0600. In a directory that others may write to, a name proves nothing: owner, kind and
mode of what is there are looked at, and links are not followed.
"""

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from kvist.base.errors import ConfigError

VARIABLE = "XDG_RUNTIME_DIR"
PATH_BYTES_MAX = 107
_CONNECT_S = 2.0
_BACKLOG = 16
_NAME = re.compile(r"([0-9]{1,5})(-[0-9a-f]{8})?\.sock", re.ASCII)


class SocketInUseError(ConfigError):
    """Another server answers there."""


def socket_directory(environment: Mapping[str, str]) -> Path:
    """Where this user's sockets are, or would be; touches nothing.

    Raises:
        ConfigError: the environment names a relative directory.
    """
    base = environment.get(VARIABLE)
    if not base:
        return Path("/tmp") / f"kvist-{os.getuid()}"  # noqa: S108  its owner and mode are proven before use
    if not Path(base).is_absolute():
        raise ConfigError(f"{VARIABLE} is {base[:80]!r}, which is no absolute path; set it to one, or not at all")
    return Path(base) / "kvist"


def socket_path(environment: Mapping[str, str], port: int) -> Path:
    """Where the server that listens on a port has its socket.

    Raises:
        ConfigError: as `socket_directory`.
    """
    return socket_directory(environment) / f"{port}.sock"


def sockets_there(environment: Mapping[str, str], port: int | None = None) -> list[Path]:
    """Every socket in this user's directory, or of one port, by port; whether anybody answers is another question.

    Raises:
        ConfigError: the directory is not the user's alone.
    """
    directory = socket_directory(environment)
    try:
        _check_directory(directory)
        found = [path for path in directory.glob("*.sock") if port_of(path) is not None]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{directory} cannot be looked into: {error.strerror}") from error
    return sorted(
        (path for path in found if port in {None, port_of(path)}), key=lambda path: (port_of(path), path.stem)
    )


def port_of(path: Path) -> int | None:
    """The port of the server whose socket has this name; None: it is no such name."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


@contextlib.contextmanager
def operator_listener(environment: Mapping[str, str], port: int) -> Iterator[tuple[Path, socket.socket]]:
    """Listens where the server of a port is looked for; who comes waits until it is served.

    A server has its port for itself on one address only: where another one of the same port answers already, a name of
    its own is added.

    Raises:
        ConfigError: as `private_listener`.
    """
    path = socket_path(environment, port)
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(private_listener(path))
        except SocketInUseError:
            path = path.with_name(f"{port}-{secrets.token_hex(4)}.sock")
            listener = stack.enter_context(private_listener(path))
        yield path, listener


def check_socket(path: Path) -> None:
    """Proves that a path is a socket of this user, before anything is said into it.

    Raises:
        ConfigError: it is not, or its path is too long for the system.
    """
    _check_length(path)
    try:
        there = path.lstat()
    except (OSError, ValueError) as error:
        raise ConfigError(f"there is no server at {_shown(path)}: {_reason(error)}") from error
    _check_own_socket(path, there)


@contextlib.contextmanager
def private_listener(path: Path) -> Iterator[socket.socket]:
    """Listens on a socket that only this user can reach; it is removed in the end.

    What a server that died has left there is replaced.

    Raises:
        ConfigError: somebody answers there already, something else is there, or the directory is not private.
    """
    _check_length(path)
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        _check_directory(path.parent)
        _remove_dead(path)
        listener = _bound(path)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {_shown(path)}: {_reason(error)}; set {VARIABLE} to a directory of yours"
        ) from error
    there = path.lstat()
    try:
        with listener:
            yield listener
    finally:
        _remove(path, there)


def _bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(os.fspath(path))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # somebody was faster
                raise SocketInUseError(f"another server answers at {_shown(path)}; choose another --port") from error
            raise
        path.chmod(0o600)  # before anybody can connect
        listener.listen(_BACKLOG)
    except (OSError, SocketInUseError):
        listener.close()
        raise
    return listener


def _remove(path: Path, there: os.stat_result) -> None:
    """Removes our own socket, and not one that another server has put in its place."""
    with contextlib.suppress(FileNotFoundError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) == (there.st_dev, there.st_ino):
            path.unlink()


def _remove_dead(path: Path) -> None:
    """Removes a socket at which nobody answers."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    _check_own_socket(path, there)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            _remove(path, there)
            return
        except TimeoutError:
            pass  # somebody is there, and busy
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                raise
    raise SocketInUseError(f"another server answers at {_shown(path)}; stop it, or choose another --port")


def _check_directory(directory: Path) -> None:
    _check_own_directory(directory, directory.lstat())


def _check_own_directory(directory: Path, there: os.stat_result) -> None:
    if stat.S_ISLNK(there.st_mode) or not stat.S_ISDIR(there.st_mode):
        raise ConfigError(f"{directory} is not a directory; remove it, or set {VARIABLE} to a directory of yours")
    if there.st_uid != os.getuid():
        raise ConfigError(f"{directory} belongs to someone else; set {VARIABLE} to a directory of yours")
    if there.st_mode & 0o077:
        raise ConfigError(f"{directory} is open to others; run: chmod 700 {directory}")


def _check_own_socket(path: Path, there: os.stat_result) -> None:
    if not stat.S_ISSOCK(there.st_mode):
        raise ConfigError(f"{_shown(path)} is not a socket; remove it, or name another one")
    if there.st_uid != os.getuid():
        raise ConfigError(f"the socket {_shown(path)} belongs to someone else; ask its owner")


def _check_length(path: Path) -> None:
    size = len(os.fsencode(path))
    if size > PATH_BYTES_MAX:
        raise ConfigError(
            f"the socket's path {_shown(path)} has {size} bytes, more than the {PATH_BYTES_MAX} that the system takes; "
            f"set {VARIABLE} to a shorter directory"
        )


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= 2 * PATH_BYTES_MAX else f"{text[: 2 * PATH_BYTES_MAX]}..."


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
