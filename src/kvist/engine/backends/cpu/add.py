"""The sum of two tensors by rows, where it is one of several kernels to be run in turn."""

import torch

from kvist.engine.backends.cpu.kernel import Kernel, Program, empty, matrix, share
from kvist.engine.backends.cpu.numbers import Given, integer, narrow, widen
from kvist.engine.backends.cpu.numbers import matrix as matrix_of


def added(x: torch.Tensor, y: torch.Tensor, *, program: Program | None = None) -> torch.Tensor:
    """Returns x + y.

    Args:
        x: [rows, n], bfloat16 or float32; rows may lie apart, the numbers of one lie side by side.
        y: the same, of the same dtype.
        program: what this is added to, instead of being done now; the result is written then.

    Returns:
        [rows, n] of the same dtype, contiguous.
    """
    assert x.shape == y.shape, f"{x.shape} and {y.shape}"
    assert x.dtype is y.dtype, f"{x.dtype} and {y.dtype}"
    found = empty(program, *x.shape, dtype=x.dtype)
    _KERNEL(x.dtype, *matrix(x), *matrix(y), *matrix(found), x.shape[1], program=program)
    return found


def _add(given: Given) -> None:
    x, y, found = matrix_of(given, 0), matrix_of(given, 3), matrix_of(given, 6)
    first, end = share(integer(given, 1), 1)
    for row in range(first, end):
        one, other, target = x[row], y[row], found[row]
        for i in range(integer(given, 9)):
            target[i] = narrow(widen(one[i]) + widen(other[i]), target)


_KERNEL = Kernel(_add)
