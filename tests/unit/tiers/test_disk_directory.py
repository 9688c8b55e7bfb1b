"""Whose a directory is, and what is done about everything that is not this tier's."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvist.base.errors import ConfigError
from kvist.tiers.disk_directory import INDEX, Directory, names_in


def made(path: Path) -> Path:
    """A directory that has been used before."""
    Directory(path).close()
    return path


def test_a_directory_is_made_private_with_parents_and_may_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where"
    for _ in range(2):
        directory = Directory(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert sorted(names_in(directory.fd)) == ["lock", "version"]
        assert {stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()} == {0o600}
        directory.close()
        directory.close()


def test_what_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = made(tmp_path / "tier")
    (path / "segment-00000").write_bytes(b"kv")
    path.chmod(0o755)
    (path / "segment-00000").chmod(0o644)
    Directory(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "segment-00000").stat().st_mode) == 0o600


def test_a_second_one_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    with pytest.raises(ConfigError, match=f"{tmp_path} is in use by the process {os.getpid()}; end that process"):
        Directory(tmp_path)
    directory.close()
    Directory(tmp_path).close()


def test_another_process_is_refused_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    code = "import sys, pathlib; from kvist.tiers.disk_directory import Directory; Directory(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"is in use by the process {os.getpid()}" in refused.stderr
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    directory.close()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


FOREIGN: dict[str, Callable[[Path], object]] = {
    "notes.txt": lambda path: path.write_text("mine"),
    "segment-1": lambda path: path.write_bytes(b""),
    "segment-000000": lambda path: path.write_bytes(b""),
    "segment-00001": lambda path: path.symlink_to("/etc/passwd"),
    "segment-00002": lambda path: path.mkdir(),
    "segment-00003": os.mkfifo,
    INDEX: lambda path: path.symlink_to("/etc/passwd"),
    f"{INDEX}-wal": lambda path: path.symlink_to("elsewhere"),
    "lock": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "version": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_not_this_tiers_is_named_and_left_alone(tmp_path: Path, name: str) -> None:
    path = made(tmp_path / "tier")
    FOREIGN[name](path / name)
    before = {each.name: each.lstat().st_mode for each in path.iterdir()}
    with pytest.raises(ConfigError, match=f"{path} .*{name}"):
        Directory(path)
    assert {each.name: each.lstat().st_mode for each in path.iterdir()} == before


def test_a_file_that_has_another_name_elsewhere_is_not_this_tiers(tmp_path: Path) -> None:
    path = made(tmp_path / "tier")
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (path / "segment-00000").hardlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="segment-00000"):
        Directory(path)


def test_files_without_a_version_are_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "segment-00000").write_bytes(b"")
    with pytest.raises(ConfigError, match="holds 'segment-00000' but no file 'version'"):
        Directory(tmp_path)


@pytest.mark.parametrize("found", [b"", b"kvist disk tier, version 2\n", b"\xff" * 10_000])
def test_another_version_is_refused(tmp_path: Path, found: bytes) -> None:
    (made(tmp_path) / "version").write_bytes(found)
    with pytest.raises(ConfigError, match=f"{tmp_path} is of another version"):
        Directory(tmp_path)


def test_a_start_that_was_cut_off_is_made_good(tmp_path: Path) -> None:
    for name in ("lock", "version.new", "probe"):
        (tmp_path / name).write_bytes(b"half")
    Directory(tmp_path).close()
    assert (tmp_path / "version").read_bytes() == b"kvist disk tier, version 1\n"


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for path, words in (
        (tmp_path / "file", "choose another directory"),
        (tmp_path / "file" / "below", "choose another directory"),
        (tmp_path / "link", "not by a symbolic link"),
        (tmp_path / ("long" * 100), "choose another directory"),
        (tmp_path / "zero\0byte", "choose another directory"),
    ):
        with pytest.raises(ConfigError, match=words):
            Directory(path)


def test_lost_and_found_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    Directory(tmp_path).close()
    assert (tmp_path / "version").exists()


def test_the_index_is_made_private_and_forgotten_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    assert directory.prepare_index() == tmp_path / INDEX
    assert stat.S_IMODE((tmp_path / INDEX).stat().st_mode) == 0o600
    (tmp_path / f"{INDEX}-wal").write_bytes(b"log")
    directory.forget_index()
    assert sorted(names_in(directory.fd)) == ["lock", "version"]
    directory.close()
