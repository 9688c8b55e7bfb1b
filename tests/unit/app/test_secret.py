"""The file with the secret: made once, private, the same for everybody who asks; anything else is refused."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvist.app.secret import SECRET_BYTES, load_secret, secret_path
from kvist.base.errors import ConfigError


def test_it_is_made_private_and_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    secret = load_secret(path)
    assert len(secret) == SECRET_BYTES
    assert load_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert load_secret(tmp_path / "other") != secret


def test_it_is_in_the_cache_directory_unless_another_is_named(tmp_path: Path) -> None:
    environment = {"KVIST_CACHE": str(tmp_path)}
    assert secret_path(None, environment) == tmp_path / "secret"
    assert secret_path("named", environment) == Path("named").absolute()


def test_all_who_come_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: load_secret(tmp_path / "secret"), range(32)))
    assert len(found) == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"00" * 31, b"zz" * 32, b"\xff" * 64, b"0" * 63, b"00" * 5000 + b"x"])
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    if len(content) > 4096:  # longer files are read no further, and what is read must still be a secret
        content = content[:4096]
        assert len(load_secret(path)) == len(content) // 2
        return
    with pytest.raises(ConfigError, match="hexadecimal"):
        load_secret(path)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    load_secret(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_secret(path)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    load_secret(tmp_path / "secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "directory").mkdir()
    for name in ("link", "fifo", "directory", "secret/below", "a\0b"):
        with pytest.raises(ConfigError):
            load_secret(tmp_path / name)
