"""RMS normalisation of rows in one pass.

The formula is of Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019). Between reading the numbers and
writing the result all is float32: what a family rounds before it multiplies by the weight (Llama's does) is not.
"""

import numpy as np
import torch

from kvist.engine.backends.cpu.kernel import Kernel, Program, empty, matrix, share, vector
from kvist.engine.backends.cpu.kernel import real as packed
from kvist.engine.backends.cpu.numbers import Given, integer, narrow, real, widen
from kvist.engine.backends.cpu.numbers import matrix as matrix_of
from kvist.engine.backends.cpu.numbers import vector as vector_of


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    epsilon: float,
    offset: float = 0.0,
    program: Program | None = None,
) -> torch.Tensor:
    """Each row divided by the root of its mean square, times a weight: `x / sqrt(mean(x^2) + epsilon) * (offset + w)`.

    Args:
        x: [rows, n], bfloat16 or float32; rows may lie apart, the numbers of one lie side by side.
        weight: [n], of the same dtype; None for no weight at all, and `offset` is not looked at then.
        epsilon: what keeps a row of zeros finite.
        offset: 1.0 where weights are stored as distances from one (Gemma's).
        program: what this is added to, instead of being done now; the result is written then.

    Returns:
        [rows, n] of the same dtype, contiguous.
    """
    rows, columns = x.shape
    normed = empty(program, rows, columns, dtype=x.dtype)
    if weight is None:
        gain = (0, 0)
    else:
        assert weight.dtype is x.dtype, f"weight of {weight.dtype}, numbers of {x.dtype}"
        gain = vector(weight)
        assert gain[1] == columns, f"{gain[1]} weights for {columns} columns"
    given = (*matrix(x), normed.data_ptr(), rows, columns, *gain, packed(epsilon), packed(offset))
    _KERNEL(x.dtype, *given, program=program)
    return normed


def _normalise(given: Given) -> None:
    x, normed, weight = matrix_of(given, 0), matrix_of(given, 3), vector_of(given, 6)
    epsilon, offset = real(given, 8), real(given, 9)
    columns = integer(given, 5)
    weighted = integer(given, 7) > 0
    first, end = share(integer(given, 1), 1)
    for row in range(first, end):
        source, target = x[row], normed[row]
        squares = np.float32(0)
        for i in range(columns):
            value = widen(source[i])
            squares += value * value
        scale = np.float32(1) / np.sqrt(squares / np.float32(columns) + epsilon)
        if weighted:
            for i in range(columns):
                target[i] = narrow(widen(source[i]) * scale * (offset + widen(weight[i])), target)
        else:
            for i in range(columns):
                target[i] = narrow(widen(source[i]) * scale, target)


_KERNEL = Kernel(_normalise)
