"""The most likely token of each row, in one pass over the logits as they are.

Compared are bits: of two floats with the same sign those of the larger are the larger integer, of two negative ones the
smaller. Integers have a largest whatever they are, so the compiler compares many at once, which it may not with floats
as long as some may be NaN.
"""

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Kernel, share
from kvist.engine.backends.cpu.numbers import Array, Given, Node, inlined, integer, integers, matrix

_PART = 4096
"""Numbers whose largest is known before a token is looked for: only where that is a new one is it looked for."""

_INFINITE = 0x7F800000
_LOWEST = -_INFINITE - 1
"""What minus infinity compares as; less does only what is no number, which is made the largest instead."""


def best(logits: torch.Tensor) -> tuple[list[int], bool]:
    """The first of the most likely tokens of each row.

    Args:
        logits: [rows, vocab], bfloat16 or float32, on the CPU.

    Returns:
        One token per row, and whether every row's largest logit is a finite number and no logit NaN.
    """
    rows, vocab = logits.shape
    # Rows may lie apart, but not over each other.
    logits = logits if logits.stride(-1) == 1 and logits.stride(0) >= vocab else logits.contiguous()
    found = torch.empty(2 * rows, dtype=torch.int64)
    _BEST(logits.dtype, *kernel.matrix(logits), *kernel.vector(found), vocab)
    numbers: list[int] = found.tolist()
    return numbers[rows:], all(_LOWEST < top < _INFINITE for top in numbers[:rows])


@intrinsic
def _bits(_context: Node, number: Node) -> Node:
    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        wide = ir.IntType(32)
        if number == types.float32:
            return builder.bitcast(arguments[0], wide)
        return builder.shl(builder.zext(arguments[0], wide), ir.Constant(wide, 16))

    return types.int32(number), generate


@inlined
def _order(number: Array) -> Array:
    """An int32 that compares as a stored number does: zeros are equal, and whatever is no number is the largest."""
    bits = _bits(number)
    size = bits & np.int32(0x7FFFFFFF)
    signed = -size - np.int32(1) if bits < np.int32(0) else size
    signed = np.int32(0) if size == np.int32(0) else signed
    return np.int32(0x7FFFFFFF) if size > np.int32(_INFINITE) else np.int32(signed)


def _best(given: Given) -> None:
    """Each thread has some rows."""
    logits, found = matrix(given, 0), integers(given, 3)
    rows, vocab = logits.shape[0], integer(given, 5)
    first, end = share(rows, 1)
    for row in range(first, end):
        top, part = np.int32(-0x80000000), 0
        for start in range(0, vocab, _PART):
            largest = _largest(logits[row, start : min(vocab, start + _PART)])
            if largest > top:
                top, part = largest, start
        token = part
        while _order(logits[row, token]) != top:
            token += 1
        found[row], found[rows + row] = top, token


@inlined
def _largest(numbers: Array) -> Array:
    largest = np.int32(-0x80000000)
    for i in range(numbers.shape[0]):
        largest = max(largest, _order(numbers[i]))
    return largest


_BEST = Kernel(_best)
