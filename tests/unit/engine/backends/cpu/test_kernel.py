"""Kernels run on any number of threads, each thing once, and are kept compiled where they are asked to be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Kernel, share
from kvist.engine.backends.cpu.numbers import Slots, floats, slot

ONE_PRODUCT = """
import sys
from pathlib import Path
import torch
from kvist.engine.backends.cpu.kernel import keep_compiled
from kvist.engine.backends.cpu.best import best
keep_compiled(Path(sys.argv[1]))
print(best(torch.tensor([[1.0, 3.0, 2.0]])))
"""

FOUND = "([1], True)\n"


def _count(slots: Slots) -> None:
    first, end = share(slot(slots, 3), slot(slots, 4))
    counts = floats(slots, 0)
    for thing in range(first, end):
        counts[0, thing] += 1


COUNT = Kernel(_count)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_thing_is_done_once(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in (0, 1, 2, 7, 8, 9, 64, 1001):
            for quantum in (1, 2, 8, 64):
                counts = torch.zeros(1, 1002)
                COUNT(torch.float32, *kernel.matrix(counts), count, quantum)
                assert counts[0, :count].eq(1).all(), (count, quantum)
                assert not counts[0, count:].any(), (count, quantum)
    finally:
        torch.set_num_threads(before)


def run_in(directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ONE_PRODUCT, str(directory)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*.nb*")}


def test_a_second_process_finds_what_the_first_compiled_and_a_torn_file_is_compiled_again(tmp_path: Path) -> None:
    assert run_in(tmp_path) == FOUND
    first = kept(tmp_path)
    assert first
    assert run_in(tmp_path) == FOUND
    assert kept(tmp_path) == first
    for path in first:
        path.write_bytes(path.read_bytes()[:20])
    assert run_in(tmp_path) == FOUND


def test_a_directory_that_cannot_be_one_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert run_in(tmp_path / "file") == FOUND
