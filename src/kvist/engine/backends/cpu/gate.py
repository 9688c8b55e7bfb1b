"""The gate of a feed-forward layer: an activation and a product, in one pass over both projections.

The forms are of Shazeer, "GLU Variants Improve Transformer" (2020), the activations of Hendrycks and Gimpel, "Gaussian
Error Linear Units" (2016). Each is written with a power of e that is at most one: nothing overflows, and results near
zero are as exact as large ones.
"""

from typing import Literal

import numpy as np
import torch

from kvist.engine.backends.cpu.kernel import Kernel, Program, empty, matrix, share
from kvist.engine.backends.cpu.numbers import Array, Given, Number, exponential, inlined, integer, narrow, widen
from kvist.engine.backends.cpu.numbers import matrix as matrix_of

Activation = Literal["silu", "gelu_tanh", "gelu"]
"""What gates: x * sigmoid(x); the tanh formula of x * Phi(x); x * Phi(x) itself. Phi: of the normal distribution."""


def gated(both: torch.Tensor, activation: Activation, *, program: Program | None = None) -> torch.Tensor:
    """Returns `activation(gate) * up`.

    Args:
        both: [rows, 2n] = gate | up, bfloat16 or float32; rows may lie apart, the numbers of one lie side by side.
        activation: which.
        program: what this is added to, instead of being done now; the result is written then.

    Returns:
        [rows, n] of the same dtype, contiguous.
    """
    rows, columns = both.shape[0], both.shape[1] // 2
    found = empty(program, rows, columns, dtype=both.dtype)
    _KERNELS[activation](both.dtype, *matrix(both), found.data_ptr(), rows, columns, program=program)
    return found


_STRETCH = 512
"""Columns that a thread takes at once: a single row is work for several."""


@inlined
def _sigmoid_times(x: Number, power: Number) -> Number:
    """Returns `x / (1 + e^-power)`."""
    small = exponential(-abs(power))
    part = x / (np.float32(1) + small)
    return part if power >= np.float32(0) else part * small


@inlined
def _silu(x: Number) -> Number:
    return _sigmoid_times(x, x)


@inlined
def _gelu_tanh(x: Number) -> Number:
    """Uses that (1 + tanh(u)) / 2 is the sigmoid of 2u, u = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    return _sigmoid_times(x, x * (np.float32(1.5957691216057308) + np.float32(0.07135481627260025) * x * x))


@inlined
def _gelu(x: Number) -> Number:
    """Phi(-z sqrt(2)) is erfc(z) / 2; erfc(z) e^(z^2) is a polynomial of 1 / (1 + z / 2) to 6e-7 of it.

    The coefficients are a minimax fit for z from 0 to 7; behind that the power is below 1e-21.
    """
    size = abs(x)
    t = np.float32(1) / (np.float32(1) + size * np.float32(0.3535533905932738))
    tail = np.float32(0.09442614018917084)
    tail = tail * t - np.float32(0.3789232075214386)
    tail = tail * t + np.float32(0.4208190143108368)
    tail = tail * t + np.float32(0.014998912811279297)
    tail = tail * t + np.float32(0.29036077857017517)
    tail = tail * t + np.float32(0.27585455775260925)
    tail = tail * t + np.float32(0.2824637293815613)
    tail = tail * t * exponential(size * size * np.float32(-0.5)) * np.float32(0.5)
    return x * (np.float32(1) - tail if x >= np.float32(0) else tail)


@inlined
def _parts(given: Given) -> tuple[int, int]:
    """The thread's share of the stretches of all rows."""
    mine: tuple[int, int] = share(integer(given, 4) * _stretches(given), 1)
    return mine


@inlined
def _stretches(given: Given) -> int:
    """How many stretches a row has."""
    columns: int = integer(given, 5)
    return (columns + _STRETCH - 1) // _STRETCH


@inlined
def _stretch(given: Given, part: int) -> tuple[Array, Array, Array, int]:
    """Gates, ups and results of one stretch, and how many there are of each."""
    both, found, columns = matrix_of(given, 0), matrix_of(given, 3), integer(given, 5)
    row = part // _stretches(given)
    begin = (part - row * _stretches(given)) * _STRETCH
    return both[row, begin:], both[row, columns + begin :], found[row, begin:], min(_STRETCH, columns - begin)


# Three times the same but for the activation: a kernel that is given a function is not kept, nor is one that is made by
# a function found again.
def _gate_silu(given: Given) -> None:
    first, end = _parts(given)
    for part in range(first, end):
        gates, ups, found, count = _stretch(given, part)
        for i in range(count):
            found[i] = narrow(_silu(widen(gates[i])) * widen(ups[i]), found)


def _gate_gelu_tanh(given: Given) -> None:
    first, end = _parts(given)
    for part in range(first, end):
        gates, ups, found, count = _stretch(given, part)
        for i in range(count):
            found[i] = narrow(_gelu_tanh(widen(gates[i])) * widen(ups[i]), found)


def _gate_gelu(given: Given) -> None:
    first, end = _parts(given)
    for part in range(first, end):
        gates, ups, found, count = _stretch(given, part)
        for i in range(count):
            found[i] = narrow(_gelu(widen(gates[i])) * widen(ups[i]), found)


_KERNELS: dict[Activation, Kernel] = {
    "silu": Kernel(_gate_silu),
    "gelu_tanh": Kernel(_gate_gelu_tanh),
    "gelu": Kernel(_gate_gelu),
}
