"""The cache directory is where the user says, private, guarded by locks, and never filled to the brim."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvist.app.cache_dir import (
    cache_root,
    check_room,
    disk_free,
    locked,
    make_private,
    room_watched,
    seal,
    unusable,
    write_through,
)
from kvist.base.errors import CapacityError, ConfigError

NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"KVIST_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, Path("/a/b")),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/kvist")),
        ({"XDG_CACHE_HOME": "relative"}, Path.home() / ".cache/kvist"),
        ({"KVIST_CACHE": "", "XDG_CACHE_HOME": ""}, Path.home() / ".cache/kvist"),
        ({"KVIST_CACHE": "here"}, Path.cwd() / "here"),
        ({"KVIST_CACHE": "~/there"}, Path.home() / "there"),
    ],
)
def test_the_environment_says_where(environment: dict[str, str], root: Path) -> None:
    assert cache_root(environment) == root


def test_directories_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "root" / "models")
    finally:
        os.umask(before)
    assert mode(tmp_path / "root" / "models") == mode(tmp_path / "root") == 0o700


def test_an_open_directory_is_closed_and_its_parent_left_alone(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    make_private(tmp_path / "models")
    assert (mode(tmp_path / "models"), mode(tmp_path)) == (0o700, 0o755)


@pytest.mark.parametrize("place", ["file", "file/models", "file/deeper/models"])
def test_a_file_in_the_way_is_said_to_be_one(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"is a file, not a directory.*KVIST_CACHE"):
        make_private(tmp_path / place)


def test_a_place_where_nobody_may_write_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"/proc/kvist.*KVIST_CACHE"):
        make_private(Path("/proc/kvist/models"))


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Runs the test as a user without rights, where it would otherwise have all."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    if before == 0:
        os.seteuid(0)


@pytest.fixture
def read_only(tmp_path: Path) -> Path:
    """A directory in which nothing can be created."""
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    return folder


def test_a_directory_without_the_right_to_write_is_refused(read_only: Path, unprivileged: None) -> None:
    with pytest.raises(ConfigError, match=r"Permission denied.*KVIST_CACHE"):
        make_private(read_only / "models")
    with pytest.raises(ConfigError, match=r"Permission denied"), locked(read_only / "lock"):
        pass


def test_sealed_files_are_private(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir(mode=0o777)
    (tmp_path / "inner" / "file").write_text("x")
    (tmp_path / "inner" / "file").chmod(0o644)
    seal(tmp_path)
    write_through(tmp_path)
    assert mode(tmp_path / "inner") == mode(tmp_path) == 0o700
    assert mode(tmp_path / "inner" / "file") == 0o600


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock") as third:
        assert third
    assert mode(tmp_path / "lock") == 0o600


HOLDER = """
import sys
from pathlib import Path
from kvist.app.cache_dir import locked
with locked(Path(sys.argv[1])) as held:
    print("held", held, flush=True)
    sys.stdin.read()
"""


def test_whoever_waits_is_told_once_and_goes_on_when_the_holder_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held True\n"
        told: list[str] = []

        def waiting() -> None:
            told.append("waiting")
            holder.kill()

        with locked(tmp_path / "lock", waiting) as held:
            assert (held, told) == (True, ["waiting"])


def test_a_lock_is_no_link_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="can not be used"), locked(tmp_path / "lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_room_is_asked_for_before_the_work(tmp_path: Path) -> None:
    check_room(tmp_path, 2**20, lambda _: 2**20)
    with pytest.raises(CapacityError, match=r"1\.0 MiB are needed at once and 1023 B are free.*KVIST_CACHE"):
        check_room(tmp_path, 2**20, lambda _: 1023)


def test_free_room_is_that_of_the_disk_even_below_what_does_not_exist(tmp_path: Path) -> None:
    assert 0 < disk_free(tmp_path / "no" / "such") < 2**60


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_fills_up_is_told_as_such(number: int, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"no room was left.*5 B are needed"), room_watched(tmp_path, 5):
        raise OSError(number, os.strerror(number))


def test_a_device_that_is_full_is_one_of_them(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="No space left"), room_watched(tmp_path, 5):
        Path("/dev/full").write_bytes(b"x")


def test_other_errors_of_the_system_are_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Input/output error.*KVIST_CACHE"), room_watched(tmp_path, 5):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    assert "is a file" in str(unusable(tmp_path, NotADirectoryError()))
    assert "odd" in str(unusable(tmp_path, OSError("odd")))


def test_errors_that_are_not_the_system_s_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), room_watched(tmp_path, 5):
        raise ZeroDivisionError
