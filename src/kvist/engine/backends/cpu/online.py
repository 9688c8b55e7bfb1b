"""Softmax while scores come in: weights under a running maximum, and one result of several partial ones.

Scores are taken a tile at a time, and what was summed up before shrinks when a higher one turns up (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). Rows that saw several segments have partial results,
which are merged by their sums (Dao et al., "Flash-Decoding for long-context inference", 2023).
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvist.engine.backends.cpu.numbers import Array, Node, Number, exponential, inlined, narrow

LOWEST = np.float32(-1e30)
"""Below every score, and finite: a difference of two of them is a number."""


@intrinsic
def maximum(_context: Node, _a: Node, _b: Node) -> Node:
    """The larger of two float32; none if one is none, which lets the compiler look at many at once."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType(), ir.FloatType()])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.maximum.f32")
        return builder.call(function, arguments)

    return types.float32(types.float32, types.float32), generate


@inlined
def fill(array: Array) -> None:
    """Makes all numbers 0."""
    for i in range(len(array)):
        array[i] = np.float32(0)


@inlined
def weigh(scores: Array, state: Array, sums: Array, scaling: Number, seen: tuple[int, int]) -> None:
    """Makes weights of one query's scores in columns [low, high), 0 in the others; brings its maximum and sums along.

    `state` is the query's running maximum and the running sum of weights.
    """
    low, high = seen
    fill(scores[:low])
    fill(scores[high:])
    if low >= high:
        return
    within = scores[low:high]
    highest = state[0]
    for t in range(len(within)):
        score = within[t] * scaling
        within[t] = score
        highest = maximum(highest, score)
    total = np.float32(0)
    for t in range(len(within)):
        weight = exponential(within[t] - highest)
        within[t] = weight
        total += weight
    if highest > state[0]:
        factor = exponential(state[0] - highest)
        state[0] = highest
        state[1] *= factor
        for d in range(len(sums)):
            sums[d] *= factor
    state[1] += total


@inlined
def cap(scores: Array, scaling: Number, softcap: Number) -> None:
    """Scales scores and squashes them into (-softcap, softcap): softcap * tanh(score / softcap)."""
    twice = np.float32(2) * scaling / softcap
    for m in range(len(scores)):
        row = scores[m]
        for t in range(len(row)):
            power = exponential(min(row[t] * twice, np.float32(40)))
            row[t] = softcap - np.float32(2) * softcap / (power + np.float32(1))


@inlined
def merged(results: Array, target: Array) -> None:
    """Writes one head of a row: its partial results as if under one maximum.

    Args:
        results: [several, width and 2 more]: sums of values, then the maximum and the sum of weights; the first of
            them is spoilt.
        target: [width].
    """
    width = len(target)
    highest, total = LOWEST, np.float32(0)
    for i in range(len(results)):
        highest = max(highest, results[i, width])
    sums = results[0]
    for i in range(len(results)):
        part = results[i]
        factor = exponential(part[width] - highest)
        total += part[width + 1] * factor
        if i == 0:
            for d in range(width):
                sums[d] *= factor
        else:
            for d in range(width):
                sums[d] += part[d] * factor
    for d in range(width):
        target[d] = narrow(sums[d] / total, target)
