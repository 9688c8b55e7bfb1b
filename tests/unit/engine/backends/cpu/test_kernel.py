"""Kernels run on all threads or in turn as a program, and are found again by the next process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvist.engine.backends.cpu.kernel import Arena, Kernel, Program, empty, matrix, real, run, share, vector
from kvist.engine.backends.cpu.numbers import integers, slot, widen
from kvist.engine.backends.cpu.numbers import narrow as narrowed
from kvist.engine.backends.cpu.numbers import vector as vector_of


def _add_neighbours(slots: Any) -> None:
    """found[i] = x[i] + x[i + 1], around the end: threads read what others' parts of x are."""
    x, found = vector_of(slots, 0), vector_of(slots, 2)
    first, end = share(slot(slots, 1), 1)
    for i in range(first, end):
        found[i] = narrowed(widen(x[i]) + widen(x[(i + 1) % slot(slots, 1)]), found)


def _count(slots: Any) -> None:
    counts = integers(slots, 0)
    first, end = share(slot(slots, 1), slot(slots, 2))
    for i in range(first, end):
        counts[i] += 1


ADD_NEIGHBOURS, COUNT = Kernel(_add_neighbours), Kernel(_count)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("things", "quantum"), [(0, 1), (1, 1), (7, 1), (8, 3), (100, 16), (5, 64)])
def test_everything_is_somebody_s_share_once(
    things: int, quantum: int, threads: int, torch_threads: Callable[[int], None]
) -> None:
    torch_threads(threads)
    counts = torch.zeros(things + 1, dtype=torch.int64)
    COUNT(torch.float32, counts.data_ptr(), things, quantum)
    assert counts.tolist() == [1] * things + [0]


@pytest.mark.parametrize("threads", [1, 2])
def test_each_kernel_of_a_program_sees_all_that_the_one_before_wrote(
    threads: int, torch_threads: Callable[[int], None]
) -> None:
    torch_threads(threads)
    x = torch.arange(1000, dtype=torch.float32)
    programs = [Program(Arena()), Program()]
    held = [x]
    for turn in range(20):
        program = programs[turn // 10]
        held.append(empty(program, 1000, dtype=torch.float32))
        ADD_NEIGHBOURS(torch.float32, *vector(held[-2]), held[-1].data_ptr(), 1000, program=program)
    for _ in range(30):
        run(*programs)
        wanted = x
        for _ in range(20):
            wanted = wanted + wanted.roll(-1)
        assert torch.equal(held[-1], wanted)
        x.mul_(0.5).add_(1)


def test_programs_that_lie_beside_each_other_share_no_memory() -> None:
    arena = Arena()
    one = Program(arena)
    first, second = one.empty(3, 5, dtype=torch.float32), one.empty(7, dtype=torch.bfloat16)
    other = Program(arena, beside=one)
    third = other.empty(100, dtype=torch.float32)
    for index, tensor in enumerate((first, second, third)):
        tensor.fill_(index)
    assert first.unique().tolist() == [0]
    assert second.unique().tolist() == [1]
    assert third.unique().tolist() == [2]
    assert all(tensor.data_ptr() % 64 == first.data_ptr() % 64 for tensor in (second, third))
    assert Program(arena).empty(100, dtype=torch.float32).data_ptr() == arena.take(0, 1).data_ptr()


def test_memory_without_a_program_is_its_own() -> None:
    assert empty(None, 2, 3, dtype=torch.bfloat16).shape == (2, 3)
    assert Program().empty(2, 3, dtype=torch.float32).untyped_storage().nbytes() == 24


def test_rows_of_a_wider_matrix_are_told_by_their_distance() -> None:
    wide = torch.zeros(4, 10)
    assert matrix(wide[:, 2:5]) == (wide.data_ptr() + 8, 4, 10)
    assert matrix(wide[:1, :3]) == (wide.data_ptr(), 1, 3)
    for odd in (lambda: matrix(wide.T), lambda: vector(wide[:, 0])):
        with pytest.raises(AssertionError, match="strides"):
            odd()


def test_a_real_is_packed_as_its_bits() -> None:
    assert real(1.0) == 0x3F800000
    assert real(-0.0) == -0x80000000


def test_a_kept_kernel_is_found_by_the_next_process(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, torch\n"
        "from kvist.engine.backends.cpu import kernel\n"
        "from kvist.engine.backends.cpu.add import added\n"
        "kernel.keep_compiled(pathlib.Path(sys.argv[1]))\n"
        "assert added(torch.ones(1, 3), torch.ones(1, 3)).tolist() == [[2, 2, 2]]\n"
    )
    times = []
    for _ in range(2):
        command = [sys.executable, "-W", "error", "-c", script, str(tmp_path)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        times.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")})
    assert times[0]
    assert times[0] == times[1], "compiled anew"
