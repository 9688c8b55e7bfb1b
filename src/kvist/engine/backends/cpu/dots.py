"""Dot products of one row of weights with up to eight rows of x, in one pass over the weights.

What `products` calls for every output. It is written as instructions on vectors, because three things matter here that
the compiler does not do of itself for a loop: it is asked for memory ahead of its use all along the loop; processors
with dot products of bfloat16 (AVX512-BF16: twice the numbers in an instruction, and nothing is widened) use them; and
the sums over a vector's numbers of eight rows are added up together, a third of the work of one after the other.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvist.engine.backends.cpu.lanes import (
    FLOAT,
    INT64,
    ask,
    load,
    loop,
    products_of,
    rows_there,
    store_totals,
)
from kvist.engine.backends.cpu.numbers import Node

ROWS = 8
"""At most so many rows at once."""

AHEAD_BYTES = 8192
"""How far ahead memory is asked for: what two cores of this kind read in its latency, several times over."""


def _dots(rows: int) -> Any:  # noqa: ANN401 - what an instruction is has a type only in kernels
    """The instruction `dots` for up to so many rows, a power of two."""

    @intrinsic
    def dots(_context: Node, like: Node, places: Node) -> Node:
        def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
            way = products_of(like.dtype)
            weights, x, distance, last, size, into = cgutils.unpack_tuple(builder, arguments[1])
            addresses = [weights, *rows_there(builder, x, distance, last, rows)]

            def turn(at: Node, sums: list[Node]) -> list[Node]:
                places = [builder.add(address, at) for address in addresses]
                ask(builder, builder.add(places[0], INT64(AHEAD_BYTES)))
                read, *of_rows = [load(builder, place, way.read) for place in places]
                return [way.add(builder, total, read, row) for total, row in zip(sums, of_rows, strict=True)]

            span = (INT64(0), builder.and_(size, INT64(-way.size)), way.size)
            store_totals(builder, loop(builder, span, [ir.Constant(way.sums, None)] * rows, turn), into)
            return context.get_dummy_value()

        return types.void(like, places), generate

    return dots


dots1, dots2, dots4, dots8 = _dots(1), _dots(2), _dots(4), _dots(8)
"""Dot products of weights with up to so many rows of x, over the `whole` part of them.

In kernels: `dots8(given, (weights, x, distance, last, size, into))` with the addresses of the weights and of the first
row, bytes between rows, the number of the last row that is there, bytes of a row, and the address of as many
float32 as the name says, where sums go; those of rows that are not there mean nothing.
"""


@intrinsic
def whole(_context: Node, like: Node, _count: Node) -> Node:
    """How many of a row's numbers `dots8` and its likes take: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[1], INT64(-products_of(like.dtype).count))

    return types.int64(like, types.int64), generate


@intrinsic(prefer_literal=True)
def scratch(_context: Node, count: Node) -> Node:
    """A pointer to so many float32 of the calling function's own, a literal number; they end with the function."""

    def generate(_: Node, builder: Node, __: Node, ___: Node) -> Node:
        place = cgutils.alloca_once(builder, ir.ArrayType(FLOAT, count.literal_value))
        place.align = 64
        return builder.bitcast(place, FLOAT.as_pointer())

    return types.CPointer(types.float32)(count), generate
