"""Products of a step's rows with weights.

Few rows read weights at the speed of memory, where torch reaches a third of it; many compute, which torch does best.
Weights stay as they lie: nothing is reordered or held twice.

oneDNN, which torch asks, compiles a kernel for each shape that it has not met: that takes half a millisecond and
0.7 MB, which it keeps. So products of many rows have few heights, and what is missing to one is computed in vain: a
server that has met all lengths holds 22 kernels per shape of weights. Models whose layers stay transformers' own get
their products from torch, and with them whatever it keeps for each length.
"""

from typing import Any

import torch
from numba import carray
from torch.nn import functional

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.dots import ROWS, dots1, dots2, dots4, dots8, scratch, whole
from kvist.engine.backends.cpu.kernel import DTYPES, Kernel, Program, empty, share
from kvist.engine.backends.cpu.numbers import Array, Given, inlined, integer, matrix, narrow, vector, widen

ROWS_FEW = 32
"""Up to so many rows the kernel is faster than torch, whatever the shape: bench/micro/products.py."""

ROWS_TALL = 1024
"""Rows of one of torch's products at most: twice as many are as fast."""

_TILE = 64
"""Outputs that are computed for all rows before the next: their weights stay in a core's own cache."""


def project(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    plus: torch.Tensor | None = None,
    program: Program | None = None,
) -> torch.Tensor:
    """Multiplies x with the transposed weights, plus what is to be added.

    Few rows are summed in float32 and rounded once, after all is added.

    Args:
        x: [rows, inputs], bfloat16 or float32 like all others; rows may lie apart.
        weight: [outputs, inputs].
        bias: [outputs].
        plus: [rows, outputs], a residual; left as it is.
        program: what this is added to, instead of being done now; the result is written then. Few rows only.

    Returns:
        [rows, outputs].
    """
    rows = x.shape[0]
    if 0 < rows <= ROWS_FEW and x.dtype in DTYPES:
        return project_few(x, weight, bias, plus=plus, program=program)
    assert program is None, f"{rows} rows of {x.dtype} are not computed by a kernel"
    return _many(x, weight, bias, plus)


def project_few(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    plus: torch.Tensor | None = None,
    program: Program | None = None,
) -> torch.Tensor:
    """What `project` does with few rows, done with any number of them, but at least one."""
    rows = x.shape[0]
    side_by_side = x.stride(-1) == 1 and (rows == 1 or x.stride(0) >= x.shape[1])
    assert program is None or side_by_side, "what a program reads is there when it runs, and so cannot be a copy"
    x = x if side_by_side else x.contiguous()
    out = empty(program, rows, weight.shape[0], dtype=x.dtype)
    _FEW(
        x.dtype,
        *kernel.matrix(x),
        *kernel.matrix(weight),
        *kernel.matrix(out),
        *((0, 0) if bias is None else kernel.vector(bias)),
        *((0, 0, 0) if plus is None else kernel.matrix(plus)),
        x.shape[1],
        program=program,
    )
    return out


def _many(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, plus: torch.Tensor | None) -> torch.Tensor:
    """Products of heights that there are few of; more rows than the tallest has are done a part after the other."""
    rows = x.shape[0]
    even = height(rows)
    if rows > ROWS_TALL:
        product = _in_parts(x, weight, bias, even)[:rows]
    elif rows < even:
        product = functional.linear(_padded(x, even), weight, bias)[:rows]
    else:
        product = functional.linear(x, weight, bias)
    # Added by the product itself, with addmm, it takes as long.
    return product if plus is None else product.add_(plus)


def _in_parts(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, even: int) -> torch.Tensor:
    """Products of `ROWS_TALL` rows and what is left of so many."""
    product, turned = x.new_empty(even, weight.shape[0]), weight.detach().t()
    for first in range(0, even, ROWS_TALL):
        into = product[first : first + ROWS_TALL]
        part = _padded(x[first : first + ROWS_TALL], into.shape[0])
        if bias is None:
            torch.mm(part, turned, out=into)
        else:
            torch.addmm(bias.detach(), part, turned, out=into)
    return product


def height(rows: int) -> int:
    """How many rows are computed for so many: where some are left of whole `ROWS_TALL`, they have one of 22 heights.

    What is computed in vain takes less than a compilation does.
    """
    left = rows % ROWS_TALL
    quantum = 16 if left <= 64 else 32 if left <= 256 else 64
    return rows - left + -(-left // quantum) * quantum


def _padded(x: torch.Tensor, rows: int) -> torch.Tensor:
    """X with as many zeros after its own rows as it takes to have so many."""
    return x if x.shape[0] == rows else functional.pad(x, (0, 0, 0, rows - x.shape[0]))


_X, _WEIGHT, _OUT, _BIAS, _PLUS, _INPUTS = 0, 3, 6, 9, 11, 14
"""Where a kernel's arguments begin."""

Part = Any
"""Some rows, or some outputs, in a kernel: the first, and how many."""


def _few(given: Given) -> None:
    """Each thread has a part of the outputs, of which it does as many at once as stay in its cache, for all rows."""
    rows, outputs = integer(given, _X + 1), integer(given, _WEIGHT + 1)
    first, end = share(outputs, 8)
    for output in range(first, end, _TILE):
        for row in range(0, rows, ROWS):
            _tile(given, (row, min(ROWS, rows - row)), (output, min(_TILE, end - output)))


@inlined
def _tile(given: Given, rows: Part, outputs: Part) -> None:
    """Some outputs of some rows, each rounded and stored before the next.

    Not all sums first and then all the rest in vectors, which would be less work: memory was then read at half the
    speed, asked for ahead or not.
    """
    x, weight, inputs = matrix(given, _X), matrix(given, _WEIGHT), integer(given, _INPUTS)
    sums, begin, last = carray(scratch(ROWS), (ROWS,)), whole(given, inputs), rows[1] - 1
    distance, size = x.shape[1] * x.itemsize, inputs * x.itemsize
    apart = weight.shape[1] * weight.itemsize
    of_x, of_weight = integer(given, _X) + rows[0] * distance, integer(given, _WEIGHT)
    for output in range(outputs[0], outputs[0] + outputs[1]):
        places = (of_weight + output * apart, of_x, distance, last, size, sums.ctypes.data)
        if last == 0:
            dots1(given, places)
        elif last == 1:
            dots2(given, places)
        elif last < 4:
            dots4(given, places)
        else:
            dots8(given, places)
        if begin < inputs:
            _add_rest(x[rows[0] : rows[0] + rows[1], begin:inputs], weight[output, begin:inputs], sums)
        _finish(given, rows, output, sums)


@inlined
def _add_rest(x: Array, weight: Array, sums: Array) -> None:
    """Adds the products of inputs that fill no vector: none, in models that are not tiny."""
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            sums[row] += widen(x[row, i]) * widen(weight[i])


@inlined
def _finish(given: Given, rows: Part, output: int, sums: Array) -> None:
    """Adds bias and residual, rounds and stores."""
    out, bias, plus = matrix(given, _OUT), vector(given, _BIAS), matrix(given, _PLUS)
    for each in range(rows[1]):
        total = sums[each]
        if bias.shape[0] > 0:
            total += widen(bias[output])
        if plus.shape[0] > 0:
            total += widen(plus[rows[0] + each, output])
        out[rows[0] + each, output] = narrow(total, out)


_FEW = Kernel(_few)
