"""Compiled kernels are found again by later processes, and never run when they are damaged or somebody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kept_kernels
import kvist.engine.backends.cpu
from kvist.engine.backends.cpu.keeping import Kept, kept_in

ONE_KERNEL = """
import sys
from pathlib import Path
import torch
from kvist.engine.backends.cpu.kernel import keep_compiled
from kvist.engine.backends.cpu.best import best
keep_compiled(Path(sys.argv[1]))
print(best(torch.tensor([[1.0, 3.0, 2.0]])))
"""

FOUND = "([1], True)\n"


@pytest.fixture
def keeps_for_tests() -> Iterator[None]:
    """Has later tests' kernels kept where they were before."""
    yield
    kept_kernels.keep()


def run_in(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ONE_KERNEL, str(directory)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def damaged(code: bytes) -> bytes:
    """Nothing but zeros in its midst, as after a power cut: the compiler would take it and end the process."""
    middle = len(code) // 2
    return code[:middle] + bytes(512) + code[middle + 512 :]


def test_a_second_process_finds_what_the_first_compiled_and_a_damaged_one_is_compiled_again(tmp_path: Path) -> None:
    assert run_in(tmp_path) == FOUND
    first = kept(tmp_path)
    assert {path.suffix for path in first} == {".nbi", ".nbc", ".sha256"}
    assert run_in(tmp_path) == FOUND
    assert kept(tmp_path) == first
    for path in tmp_path.rglob("*.nbc"):
        path.write_bytes(damaged(path.read_bytes()))
    assert run_in(tmp_path) == FOUND
    again = kept(tmp_path)
    assert again.keys() == first.keys()
    for path in tmp_path.rglob("*.nbi"):
        path.write_bytes(path.read_bytes()[:20])
    assert run_in(tmp_path) == FOUND


def test_a_directory_that_cannot_be_one_is_done_without_and_nothing_lands_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run_in(tmp_path / "file") == FOUND
    assert not list(Path(kvist.engine.backends.cpu.__path__[0]).rglob("*.nb?"))


def test_only_signed_code_stays(tmp_path: Path, keeps_for_tests: None) -> None:
    place = Kept(tmp_path)
    place.directory.mkdir()
    code = place.directory / "some.nbc"
    code.write_bytes(b"code")
    Kept(tmp_path)
    assert not code.exists()
    code.write_bytes(b"code")
    place.sign()
    Kept(tmp_path)
    assert code.read_bytes() == b"code"
    code.write_bytes(b"cold")
    Kept(tmp_path)
    assert not code.exists()


def test_what_belongs_to_somebody_else_or_is_not_there_is_not_used(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    if os.geteuid() == 0:
        os.chown(foreign, 12_345, -1)
    assert kept_in(foreign if os.geteuid() == 0 else Path("/")) is None
    assert kept_in(tmp_path / "missing") is None
