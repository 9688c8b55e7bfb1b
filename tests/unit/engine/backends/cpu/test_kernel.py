"""Kernels run on any number of threads, each thing once."""

import weakref
from collections.abc import Callable

import pytest
import torch

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Arena, Kernel, Program, empty, run, share, vector
from kvist.engine.backends.cpu.numbers import Given, floats, integer, widen
from kvist.engine.backends.cpu.numbers import narrow as narrowed
from kvist.engine.backends.cpu.numbers import vector as vector_of


def _count(given: Given) -> None:
    first, end = share(integer(given, 3), integer(given, 4))
    counts = floats(given, 0)
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


# Programs


def _add_neighbours(given: Given) -> None:
    """found[i] = x[i] + x[i + 1], around the end: threads read what others' parts of x are."""
    x, found = vector_of(given, 0), vector_of(given, 2)
    first, end = share(integer(given, 1), 1)
    for i in range(first, end):
        found[i] = narrowed(widen(x[i]) + widen(x[(i + 1) % integer(given, 1)]), found)


ADD_NEIGHBOURS = Kernel(_add_neighbours)


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


def test_results_of_a_program_share_no_memory_and_programs_do() -> None:
    arena = Arena()
    program = Program(arena)
    shapes = ((3, 5, torch.float32), (7, 1, torch.bfloat16), (100, 2, torch.float32))
    tensors = [program.empty(rows, columns, dtype=dtype) for rows, columns, dtype in shapes]
    for index, tensor in enumerate(tensors):
        tensor.fill_(index)
    assert [tensor.unique().tolist() for tensor in tensors] == [[0], [1], [2]]
    assert len({tensor.data_ptr() % 64 for tensor in tensors[:2]}) == 1
    assert Program(arena).empty(100, dtype=torch.float32).data_ptr() == arena.take(0, 1).data_ptr()


def test_memory_without_a_program_is_its_own() -> None:
    assert empty(None, 2, 3, dtype=torch.bfloat16).shape == (2, 3)
    assert Program().empty(2, 3, dtype=torch.float32).untyped_storage().nbytes() == 24


def test_a_program_keeps_what_it_is_given_to_hold() -> None:
    tensor, program = torch.zeros(3), Program()
    kept = weakref.ref(tensor)
    program.hold(tensor)
    del tensor
    assert kept() is not None
    del program
    assert kept() is None
