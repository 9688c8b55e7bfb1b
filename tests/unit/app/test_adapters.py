"""An adapter is what its files are; where that is not certain, nobody says that it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvist.app.adapters import Adapters


def make(directory: Path, weights: bytes = b"weights", config: bytes = b"{}") -> str:
    directory.mkdir()
    (directory / "adapter_model.safetensors").write_bytes(weights)
    (directory / "adapter_config.json").write_bytes(config)
    return str(directory)


def test_the_files_count_and_neither_name_nor_place(tmp_path: Path) -> None:
    adapters = Adapters()
    one, same = make(tmp_path / "one"), make(tmp_path / "same")
    digest = adapters.digest("sql", one)
    assert digest is not None
    assert len(digest) == 32
    assert adapters.digest("law", same) == digest
    assert adapters.digest("sql", one) == digest


def test_other_files_are_another_adapter(tmp_path: Path) -> None:
    adapters = Adapters()
    paths = [
        make(tmp_path / "a"),
        make(tmp_path / "b", weights=b"weightt"),
        make(tmp_path / "c", config=b'{"r": 8}'),
        make(tmp_path / "d", weights=b""),
    ]
    digests = {adapters.digest("sql", path) for path in paths}
    assert None not in digests
    assert len(digests) == len(paths)


def test_an_adapter_that_changed_is_nobody_from_then_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adapters, path = Adapters(), make(tmp_path / "a")
    assert adapters.digest("sql", path) is not None
    file = tmp_path / "a" / "adapter_model.safetensors"
    before = file.stat()
    file.write_bytes(b"other weights")
    assert adapters.digest("sql", path) is None
    file.write_bytes(b"weights")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert adapters.digest("sql", path) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"adapter 'sql': its files at {path!r} have changed; its requests bypass the cache from now on"
    ]


def test_a_replaced_file_of_the_same_size_and_time_is_seen(tmp_path: Path) -> None:
    adapters, path = Adapters(), make(tmp_path / "a")
    assert adapters.digest("sql", path) is not None
    file = tmp_path / "a" / "adapter_model.safetensors"
    before = file.stat()
    draft = tmp_path / "draft"
    draft.write_bytes(b"wEights")
    os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
    draft.replace(file)
    assert adapters.digest("sql", path) is None


@pytest.mark.parametrize("path", ["", "/nowhere", "organisation/adapter", "nul\0byte", "x" * 5000, "/proc/self/mem"])
def test_what_is_not_here_cannot_be_told_apart(path: str, caplog: pytest.LogCaptureFixture) -> None:
    adapters = Adapters()
    assert adapters.digest("sql", path) is None
    assert adapters.digest("sql", path) is None
    assert len(caplog.records) == 1


def test_neither_can_an_empty_directory_or_one_of_far_too_many_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    many = tmp_path / "many"
    many.mkdir()
    for number in range(65):
        (many / str(number)).touch()
    adapters = Adapters()
    assert adapters.digest("sql", str(tmp_path / "empty")) is None
    assert adapters.digest("sql", str(many)) is None


def test_the_number_of_adapters_that_are_remembered_is_bounded(tmp_path: Path) -> None:
    adapters, path = Adapters(), make(tmp_path / "a")
    digests = [adapters.digest(str(number), path) for number in range(4097)]
    assert all(digests[:4096])
    assert digests[4096] is None


def test_the_same_files_applied_otherwise_are_another_adapter(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    whole, again, part = (Adapters(applied).digest("sql", path) for applied in ("all", "all", "q_proj alone"))
    assert whole == again != part


def test_a_path_may_begin_with_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As vLLM takes it: a shell leaves "sql=~/adapters/sql" as it is.
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = make(tmp_path / "a")
    assert Adapters().digest("sql", "~/a") == Adapters().digest("sql", whole) is not None
    assert Adapters().digest("sql", "~nobody-of-this-name/a") is None


TRUNCATING = """
import os, sys, threading
from pathlib import Path
from kvist.app.adapters import Adapters

file = Path(sys.argv[1]) / "adapter_model.safetensors"
os.truncate(file, 2**29)
reader = threading.Thread(target=Adapters().digest, args=("sql", sys.argv[1]))
reader.start()
while reader.is_alive() and file.name not in Path("/proc/self/maps").read_text():
    pass
os.truncate(file, 1)
reader.join()
"""


def test_files_that_shrink_while_they_are_read_end_no_engine(tmp_path: Path) -> None:
    program = [sys.executable, "-c", TRUNCATING, make(tmp_path / "a")]
    assert subprocess.run(program, check=False).returncode == 0


def test_names_of_files_need_not_be_text(tmp_path: Path) -> None:
    path = make(tmp_path / "a")
    before = Adapters().digest("sql", path)
    (tmp_path / "a" / os.fsdecode(b"\xff.safetensors")).touch()
    assert Adapters().digest("sql", path) not in {before, None}
