"""Where sockets are, that they are private, and that nothing else stands in their place."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvist.app.private_socket import (
    PATH_BYTES_MAX,
    VARIABLE,
    _check_own_directory,
    _check_own_socket,
    check_socket,
    operator_listener,
    port_of,
    private_listener,
    socket_directory,
    socket_path,
    sockets_there,
)
from kvist.base.errors import ConfigError


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A directory as the system gives one to a user; its path is short enough for a socket."""
    with TemporaryDirectory(prefix="kvist-") as folder:
        yield Path(folder)


@pytest.fixture
def environment(runtime: Path) -> dict[str, str]:
    return {VARIABLE: str(runtime)}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def test_it_is_in_the_user_s_runtime_directory_or_in_one_of_their_own(environment: dict[str, str]) -> None:
    assert socket_path(environment, 8000) == Path(environment[VARIABLE], "kvist", "8000.sock")
    for none in ({}, {VARIABLE: ""}):
        assert socket_path(none, 1).as_posix() == f"/tmp/kvist-{os.getuid()}/1.sock"  # noqa: S108  where it is looked for
    with pytest.raises(ConfigError, match="no absolute path"):
        socket_directory({VARIABLE: "run"})


def test_directory_and_socket_are_the_user_s_alone_and_the_socket_goes(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    with private_listener(path):
        assert (mode_of(path.parent), mode_of(path)) == (0o700, 0o600)
        assert answers(path)
        check_socket(path)
        assert sockets_there(environment) == [path]
    assert not path.exists()
    assert sockets_there(environment) == []


def test_sockets_are_found_by_port_and_other_files_are_not(environment: dict[str, str]) -> None:
    assert sockets_there(environment) == []
    paths = [socket_path(environment, port) for port in (9, 80, 8000)]
    with private_listener(paths[2]), private_listener(paths[0]), private_listener(paths[1]):
        (paths[0].parent / "notes.txt").touch()
        (paths[0].parent / "x.sock").touch()
        assert sockets_there(environment) == paths


def test_a_socket_that_a_dead_server_left_is_replaced(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    with private_listener(path):
        assert answers(path)


def test_a_server_that_lives_is_left_alone(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    with private_listener(path):
        with pytest.raises(ConfigError, match="another server answers"), private_listener(path):
            raise AssertionError("two listen")
        assert answers(path)


def test_a_server_that_is_too_busy_to_answer_lives(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="another server answers"), private_listener(path):
            raise AssertionError("two listen")


def test_only_its_own_socket_is_removed_in_the_end(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    with private_listener(path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


def test_what_is_no_socket_is_neither_replaced_nor_asked(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    path.parent.mkdir(mode=0o700)
    path.write_text("a file")
    with pytest.raises(ConfigError, match="is not a socket"), private_listener(path):
        raise AssertionError("it was replaced")
    with pytest.raises(ConfigError, match="is not a socket"):
        check_socket(path)
    assert path.read_text() == "a file"


def test_a_link_to_a_socket_is_none(environment: dict[str, str]) -> None:
    path, link = socket_path(environment, 8000), socket_path(environment, 8001)
    with private_listener(path):
        link.symlink_to(path)
        with pytest.raises(ConfigError, match="is not a socket"):
            check_socket(link)
        with pytest.raises(ConfigError, match="is not a socket"), private_listener(link):
            raise AssertionError("it followed the link")


def test_a_directory_that_others_can_enter_is_refused(environment: dict[str, str], runtime: Path) -> None:
    directory = runtime / "kvist"
    directory.mkdir()
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"), private_listener(directory / "1.sock"):
        raise AssertionError("it listens")
    with pytest.raises(ConfigError, match="chmod 700"):
        sockets_there(environment)


def test_a_directory_that_is_a_link_is_refused(environment: dict[str, str], runtime: Path) -> None:
    real = runtime / "real"
    real.mkdir(mode=0o700)
    (runtime / "kvist").symlink_to(real)
    with pytest.raises(ConfigError, match="is not a directory"), private_listener(runtime / "kvist" / "1.sock"):
        raise AssertionError("it listens")
    with pytest.raises(ConfigError, match="is not a directory"):
        sockets_there(environment)


def test_what_belongs_to_someone_else_is_neither_used_nor_asked(runtime: Path) -> None:
    facts = list((runtime).lstat())
    facts[stat.ST_UID] = os.getuid() + 1
    facts[stat.ST_MODE] = stat.S_IFSOCK | 0o600
    with pytest.raises(ConfigError, match="belongs to someone else"):
        _check_own_socket(runtime / "1.sock", os.stat_result(facts))
    facts[stat.ST_MODE] = stat.S_IFDIR | 0o700
    with pytest.raises(ConfigError, match="belongs to someone else"):
        _check_own_directory(runtime, os.stat_result(facts))


def test_a_path_longer_than_the_system_takes_is_refused_with_the_remedy(runtime: Path) -> None:
    most = PATH_BYTES_MAX - len(os.fsencode(runtime)) - 1
    with private_listener(runtime / "kvist" / ("x" * (most - 6))) as listener:
        assert listener.getsockname()
    for name in ("x" * (most + 1), "ä" * most):
        with pytest.raises(ConfigError, match=VARIABLE), private_listener(runtime / name):
            raise AssertionError("it listens")
        with pytest.raises(ConfigError, match=VARIABLE):
            check_socket(runtime / name)


def test_nothing_there_and_no_directory_above_are_errors(runtime: Path) -> None:
    with pytest.raises(ConfigError, match="there is no server"):
        check_socket(runtime / "1.sock")
    with pytest.raises(ConfigError, match="cannot listen"), private_listener(runtime / "no" / "such" / "1.sock"):
        raise AssertionError("it listens")


def test_one_of_the_same_port_has_a_name_of_its_own_and_leaves_nothing(environment: dict[str, str]) -> None:
    with operator_listener(environment, 8000) as (first, _), operator_listener(environment, 8000) as (second, _):
        assert first == socket_path(environment, 8000)
        assert (port_of(first), port_of(second)) == (8000, 8000)
        with operator_listener(environment, 80) as (other, _):
            assert sockets_there(environment) == [other, first, second]
            assert sockets_there(environment, 8000) == [first, second]
        assert answers(first)
        assert answers(second)
        assert mode_of(second) == 0o600
    assert sockets_there(environment) == []


@pytest.mark.parametrize(
    "name",
    [
        "x.sock",
        "8000-.sock",
        "8000-xyzxyzxy.sock",
        "8000-0123456.sock",
        "8000.sock.sock",
        "\u0661.sock",
        "1234567.sock",
    ],
)
def test_other_names_are_no_server_s(name: str) -> None:
    assert port_of(Path(name)) is None


def test_what_is_in_its_place_is_not_gone_around(environment: dict[str, str]) -> None:
    path = socket_path(environment, 8000)
    path.parent.mkdir(mode=0o700)
    path.write_text("a file")
    with pytest.raises(ConfigError, match="is not a socket"), operator_listener(environment, 8000):
        raise AssertionError("it listens elsewhere")
