"""The secret that tenants' hashes are keyed with: in a file, so that it outlives the process that made it.

Servers find each other's blocks in a shared tier only if they have the same secret; whoever has it can compute any
tenant's keys, so the file is the user's alone.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from kvist.app.cache_dir import cache_root, make_private
from kvist.base.errors import ConfigError

SECRET_BYTES = 32
_LONGEST = 4096


def secret_path(named: str | None, environment: Mapping[str, str]) -> Path:
    """Where the secret is: the file that was named, or the one in the cache directory.

    Raises:
        ConfigError: the environment does not say where the cache directory is.
    """
    return cache_root(environment) / "secret" if named is None else Path(named).absolute()


def load_secret(path: Path) -> bytes:
    """The secret in a file of hexadecimal digits, which is made when missing.

    Raises:
        ConfigError: it cannot be read or made, others may read it, or it holds something else.
    """
    try:
        if not path.exists():
            _make(path)
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the cache's secret cannot be used: {path}: {error}") from error
    try:
        _check_private(path, os.fstat(handle).st_mode)
        text = os.read(handle, _LONGEST)
    finally:
        os.close(handle)
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError as error:
        raise ConfigError(_not_a_secret(path)) from error
    if len(secret) < SECRET_BYTES:
        raise ConfigError(_not_a_secret(path))
    return secret


def _check_private(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"the cache's secret {path} is not a regular file")
    if mode & 0o077:
        raise ConfigError(f"the cache's secret {path} can be read by others; run: chmod 600 {path}")


def _make(path: Path) -> None:
    """Writes a new secret beside the path and gives it its name, which only the first of several succeeds in."""
    if not path.parent.exists():
        make_private(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return  # somebody else was first, and theirs counts
    finally:
        draft.unlink()


def _not_a_secret(path: Path) -> str:
    return (
        f"the cache's secret {path} does not hold at least {2 * SECRET_BYTES} hexadecimal digits; "
        "remove it to have a new one made, which starts with an empty cache"
    )
