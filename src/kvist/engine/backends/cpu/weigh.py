"""Scores to weights in one pass, for attention of many rows; and the merging of what they give for parts of a context.

Knows rows and columns of numbers; not where they come from. A row's state is the highest score it has seen, in powers
of two, the sum of its weights relative to that, and the factor for what was summed up before; kept as three rows of
float32 with one column for each row of scores.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kvist.engine.backends.cpu.kernel import Kernel, share
from kvist.engine.backends.cpu.numbers import (
    Array,
    Given,
    Node,
    Number,
    exponential,
    floats,
    inlined,
    integer,
    matrix,
    narrow,
    real,
    widen,
)

_INT32 = ir.IntType(32)
_LOG2_E = np.float32(1.4426950408889634)
_LOWEST = np.float32(-1e30)
"""Below every score, and finite: a difference of two of them is a number."""


@intrinsic
def _order(_context: Node, _value: Node) -> Node:
    """A whole number that is larger where the float32 is: the compiler finds the largest of those with vectors."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return _flipped(builder, builder.bitcast(arguments[0], _INT32))

    return types.int32(types.float32), generate


@intrinsic
def _ordered(_context: Node, _place: Node) -> Node:
    """The float32 that has this place in the order."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.bitcast(_flipped(builder, arguments[0]), ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _doubled(_context: Node, _value: Node, _times: Node) -> Node:
    """A float32 times two to the power of a whole number, by its exponent."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        power = builder.shl(arguments[1], ir.Constant(_INT32, 23))
        return builder.bitcast(builder.add(builder.bitcast(arguments[0], _INT32), power), ir.FloatType())

    return types.float32(types.float32, types.int32), generate


def _flipped(builder: Node, bits: Node) -> Node:
    """Negative numbers are stored as sign and size: their order is that of the size, turned around."""
    negative = builder.ashr(bits, ir.Constant(_INT32, 31))
    return builder.xor(bits, builder.and_(negative, ir.Constant(_INT32, 0x7FFFFFFF)))


@inlined
def _highest(scores: Array) -> Number:
    highest = _order(_LOWEST)
    for column in range(scores.shape[0]):
        highest = max(highest, _order(widen(scores[column])))
    return _ordered(highest)


@inlined
def _power(value: Number) -> Number:
    """Raises 2 to the power of a float32 that is at most about 1, to about 1e-7 of it; 0 below -125.

    The polynomial has the least squares of relative errors at Chebyshev's points of [-1/2, 1/2].
    """
    whole = np.rint(value)
    rest = value - whole
    power = np.float32(0.0013266970385784694)
    power = power * rest + np.float32(0.009675459745474013)
    power = power * rest + np.float32(0.055507426160040015)
    power = power * rest + np.float32(0.24022121753563108)
    power = power * rest + np.float32(0.6931469491610655)
    power = power * rest + np.float32(1.000000071029701)
    return np.float32(0.0) if value < np.float32(-125.0) else _doubled(power, np.int32(whole))


@inlined
def _weights(scores: Array, powers: Array, factor: Number, highest: Number) -> Number:
    total = np.float32(0.0)
    for column in range(scores.shape[0]):
        power = _power(widen(scores[column]) * factor - highest)
        powers[column] = power
        total += power
    return total


@inlined
def _capped(score: Number, cap: Number) -> Number:
    """A score squashed into (-cap, cap): cap * tanh(score / cap)."""
    doubled = min(score / cap * np.float32(2.0), np.float32(80.0))
    return cap - cap * np.float32(2.0) / (exponential(doubled) + np.float32(1.0))


@inlined
def _weights_capped(scores: Array, powers: Array, factor: Number, cap: Number, highest: Number) -> Number:
    """Like `_weights`, of scores squashed into (-cap, cap)."""
    total = np.float32(0.0)
    for column in range(scores.shape[0]):
        power = _power(_capped(widen(scores[column]) * factor, cap) * _LOG2_E - highest)
        powers[column] = power
        total += power
    return total


@inlined
def _write(powers: Array, factor: Number, scores: Array) -> None:
    for column in range(scores.shape[0]):
        scores[column] = narrow(powers[column] * factor, scores)


@inlined
def _clear(scores: Array) -> None:
    for column in range(scores.shape[0]):
        scores[column] = narrow(np.float32(0.0), scores)


@inlined
def _weigh_row(scores: Array, powers: Array, state: Array, at: int, factors: tuple[Number, Number]) -> Number:
    """Weights of one row of visible scores, in `powers`; brings its state up to date and returns what they lack."""
    scale, cap = factors
    highest_before, total_before = state[0, at], state[1, at]
    highest = _highest(scores) * scale
    if cap > np.float32(0.0):
        highest = max(highest_before, _capped(highest, cap) * _LOG2_E)
        total = _weights_capped(scores, powers, scale, cap, highest)
    else:
        highest = max(highest_before, highest * _LOG2_E)
        total = _weights(scores, powers, scale * _LOG2_E, highest)
    kept = total_before * _power(highest_before - highest)
    total += kept
    part = np.float32(0.0) if total == np.float32(0.0) else np.float32(1.0) / total
    state[0, at], state[1, at], state[2, at] = highest, total, kept * part
    return part


def _weigh(given: Given) -> None:
    """Scores of one piece of columns become weights, in place.

    Given:
        scores: matrix, rows of `heads` stacks; see `_row`.
        state: floats; powers: floats, a row for each thread, at least as wide as the piece.
        heads, stacked, per, used: stacks, rows from one to the next, heads in a row of a tile, and its rows in use.
        width, begin, position, window: columns of the piece, those that other pieces have seen to, the column at which
            the first row stands, and how many columns a row looks back.
        fresh: whether this is the first piece.
        scale, softcap: float32; no softcap is 0.
    """
    scores, state, powers = matrix(given, 0), floats(given, 3), floats(given, 6)
    stacked, per, rows = integer(given, 10), integer(given, 11), integer(given, 12) * integer(given, 11)
    width, begin, position, window = integer(given, 13), integer(given, 14), integer(given, 15), integer(given, 16)
    fresh, factors = integer(given, 17), (real(given, 18), real(given, 19))
    thread, _ = share(powers.shape[0], 1)
    first, last = share(integer(given, 9) * rows, 1)
    for row in range(first, last):
        at = row // rows * stacked + row % rows
        end = position + row % rows // per + 1
        low = min(max(begin, end - window), width)
        high = max(low, min(end, width))
        line, power = scores[at], powers[thread]
        if fresh:
            state[0, at], state[1, at] = _LOWEST, np.float32(0.0)
        part = _weigh_row(line[low:high], power, state, at, factors)
        _clear(line[:low])
        _write(power, part, line[low:high])
        _clear(line[high:width])


@inlined
def _add_row(product: Array, sums: Array, factor: Number, fresh: int) -> None:
    for column in range(sums.shape[0]):
        before = np.float32(0.0) if fresh else sums[column] * factor
        sums[column] = before + widen(product[column])


@inlined
def _move(sums: Array, out: Array) -> None:
    for column in range(sums.shape[0]):
        out[column] = narrow(sums[column], out)


def _add_product(given: Given) -> None:
    """What the weights of one piece gave is added to what those before did; after the last one it is written.

    Given:
        product: matrix, rows like the scores; state: floats; sums: floats, like the product.
        out: matrix, a row for each row of the tile.
        heads, stacked, per, used: see `_weigh`.
        fresh, done: whether this is the first piece, and the last.
        head: of `out`, in which the first stack begins.
        width: of a head.
    """
    product, state, sums, out = matrix(given, 0), floats(given, 3), floats(given, 6), matrix(given, 9)
    stacked, per, rows = integer(given, 13), integer(given, 14), integer(given, 15) * integer(given, 14)
    fresh, done, head, width = integer(given, 16), integer(given, 17), integer(given, 18), integer(given, 19)
    first, last = share(integer(given, 12) * rows, 1)
    for row in range(first, last):
        stack, index = row // rows, row % rows
        at = stack * stacked + index
        line = sums[at, :width]
        _add_row(product[at], line, state[2, at], fresh)
        if done:
            column = ((head + stack) * per + index % per) * width
            _move(line, out[index // per, column : column + width])


weigh = Kernel(_weigh)
add_product = Kernel(_add_product)
