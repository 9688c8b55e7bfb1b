"""Compiled kernels, run by torch's own threads.

A kernel is a function over `given`, an array of int64 that holds its arguments: whole numbers, float32 packed by
`real`, addresses and shapes of tensors by `matrix` and `vector`. Every thread calls it with the same; `share`
tells which part of the work is its own. It is compiled when it is first run, once for each type of numbers.

Why torch's threads: threads of two libraries that take turns on the same cores wait for each other. Torch's builds for
Linux start theirs with an OpenMP library that they bring along, and so do we; where it is not loaded, kernels run on
the caller alone.
"""

import ctypes
import math
import pickle
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from numba import cfunc, types

from kvist.engine.backends.cpu.keeping import Kept, kept_in
from kvist.engine.backends.cpu.numbers import FAST, call, given_at, inlined, integer
from kvist.engine.backends.device import openmp

DTYPES: dict[torch.dtype, Any] = {torch.bfloat16: types.uint16, torch.float32: types.float32}
"""Numbers that kernels are compiled for, and what the compiler calls them."""

_LINE_BYTES = 64
"""What a processor reads at once; threads that write to the same of these wait for each other."""

_NOT_KEPT = (OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, pickle.UnpicklingError)
"""What the compiler raises where its directory cannot be written, or a file in it is torn or something else."""

_keeps: list[Kept] = []


def keep_compiled(directory: Path) -> None:
    """Has kernels that are compiled from now on kept in a private directory, and found there by later processes."""
    found = kept_in(directory)
    _keeps[:] = [] if found is None else [found]


class Arena:
    """Memory that programs share which are never run at the same time, and leave each other nothing in it."""

    def __init__(self) -> None:
        """Has none yet."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, begin: int, size: int) -> torch.Tensor:
        """Bytes [begin, begin + size); there are more each time they do not suffice, and who has some keeps them."""
        if begin + size > self._bytes.numel():
            self._bytes = torch.empty(max(begin + size, 2 * self._bytes.numel()), dtype=torch.uint8)
        return self._bytes[begin : begin + size]


class Program:
    """Kernels with their arguments, to be run one after the other, and the memory of their results."""

    def __init__(self, arena: Arena | None = None) -> None:
        """Is empty; results lie in the arena, and without one each has memory of its own."""
        self.table = array("q")
        self._arena = arena
        self._used = 0
        self._held: list[object] = []

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for a result, in which no other of this program lies."""
        if self._arena is None:
            found = torch.empty(shape, dtype=dtype)
        else:
            size = math.prod(shape) * dtype.itemsize
            found = self._arena.take(self._used, size).view(dtype).view(shape)
            self._used += -(-size // _LINE_BYTES) * _LINE_BYTES
        self._held.append(found)
        return found

    def hold(self, *memory: object) -> None:
        """Keeps what the program's kernels read or write as long as the program is kept."""
        self._held.extend(memory)

    def add(self, address: int, given: "array[int]") -> None:
        """Adds a kernel that is compiled already."""
        self.table.extend((address, given.buffer_info()[0]))
        self._held.append(given)


def empty(program: Program | None, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a kernel's result: that of the program it is added to, else its own."""
    return torch.empty(shape, dtype=dtype) if program is None else program.empty(*shape, dtype=dtype)


class Kernel:
    """One kernel; module-level constants hold them."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        """Takes the function that all threads call with the arguments."""
        self._function = function
        self._addresses: dict[torch.dtype, tuple[int, object]] = {}

    def __call__(self, dtype: torch.dtype, *given: int, program: Program | None = None) -> None:
        """Runs the kernel to its end on as many threads as torch uses.

        Args:
            dtype: of the numbers that the arguments speak of, one of `DTYPES`.
            given: the arguments.
            program: what the kernel is added to, instead of being run now.
        """
        found = self._addresses.get(dtype)
        address, _ = self._compile(dtype) if found is None else found
        packed = array("q", given)  # a microsecond less than what ctypes has for it
        if program is None:
            _run(address, packed.buffer_info()[0], torch.get_num_threads(), 0)
        else:
            program.add(address, packed)

    def _compile(self, dtype: torch.dtype) -> tuple[int, object]:
        signature = types.void(types.CPointer(DTYPES[dtype]))
        try:
            compiled = cfunc(signature, fastmath=FAST, error_model="numpy", cache=bool(_keeps))(self._function)
            for kept in _keeps:
                kept.sign()
        except _NOT_KEPT:
            # The directory is never needed: what cannot be read from it or written to it is compiled for this process.
            compiled = cfunc(signature, fastmath=FAST, error_model="numpy")(self._function)
        self._addresses[dtype] = (compiled.address, compiled)
        return self._addresses[dtype]


def matrix(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Given for a matrix whose rows have all their numbers side by side: [rows, columns], or rows of a wider one.

    In a kernel a row is as wide as the distance between two of them.
    """
    # Each question to a tensor takes as long as a row of work: so each is asked once.
    (rows, columns), (apart, beside) = tensor.shape, tensor.stride()
    assert beside == 1, f"strides {apart}, {beside}"
    return tensor.data_ptr(), rows, apart if rows > 1 else columns


def vector(tensor: torch.Tensor) -> tuple[int, int]:
    """Given for a vector of numbers side by side."""
    assert tensor.is_contiguous(), f"strides {tensor.stride()}"
    return tensor.data_ptr(), tensor.numel()


def real(value: float) -> int:
    """A float32 as an argument."""
    found: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return found


# What a thread asks of OpenMP, under names of our own: other libraries' may be loaded too.
_THREAD = types.ExternalFunction("kvist_thread_number", types.int32())
_THREADS = types.ExternalFunction("kvist_thread_count", types.int32())
_WAIT = types.ExternalFunction("kvist_wait_for_threads", types.void())


@inlined
def share(count: int, quantum: int) -> tuple[int, int]:
    """The part [first, end) of `count` things that the calling thread has to do: whole multiples of `quantum`."""
    threads = _THREADS()
    each = ((count + quantum - 1) // quantum + threads - 1) // threads * quantum
    first = min(count, _THREAD() * each)
    return first, min(count, first + each)


def run(*programs: Program) -> None:
    """Runs all kernels of some programs, each when all threads are done with the one before.

    Threads are called together once for all of them: that takes as long as a small kernel does.
    """
    tables = [number for each in programs for number in (len(each.table) // 2, each.table.buffer_info()[0])]
    _IN_TURN(torch.float32, len(programs), *tables)


def _in_turn(given: Any) -> None:  # noqa: ANN401 - only the compiler knows
    for program in range(integer(given, 0)):
        table = given_at(integer(given, 2 + 2 * program))
        for index in range(integer(given, 1 + 2 * program)):
            if program + index > 0:
                _WAIT()
            call(integer(table, 2 * index), integer(table, 2 * index + 1))


_IN_TURN = Kernel(_in_turn)


def _alone(address: int, given: int, _threads: int, _flags: int) -> None:
    """What runs a kernel where torch has no OpenMP library that we know: the caller."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(given)


def _team() -> Callable[..., None]:
    """Finds what runs a kernel, and tells the compiler where to find what kernels ask for."""
    library = openmp()
    if library is None:
        run: Callable[..., None] = _alone
        answers = [_FIRST.address, _ONE.address, _NOTHING.address]
    else:
        run = library.GOMP_parallel
        answers = [
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (library.omp_get_thread_num, library.omp_get_num_threads, library.GOMP_barrier)
        ]
        library.GOMP_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        library.GOMP_parallel.restype = None
    names = ("kvist_thread_number", "kvist_thread_count", "kvist_wait_for_threads")
    for name, address in zip(names, answers, strict=True):
        llvmlite.binding.add_symbol(name, address)
    return run


_FIRST, _ONE = cfunc(types.int32())(lambda: 0), cfunc(types.int32())(lambda: 1)
_NOTHING = cfunc(types.void())(lambda: None)
_run = _team()
