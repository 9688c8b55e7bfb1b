"""What attention does with a run of tokens, as instructions on vectors: scores with their keys, sums of their values.

The compiler makes neither of plain loops at the speed of memory: in the one it adds up each vector's numbers by itself,
a third more work than the products; in the other it keeps sums in memory instead of registers. And where blocks
scatter, what is read next has to be asked for in small portions while this is computed with: asked for a block at a
time, a core waits for the asking.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kvist.engine.backends.cpu.lanes import (
    FLOAT,
    INT64,
    ask,
    at,
    fused,
    lanes,
    load,
    load_wide,
    loop,
    products_of,
    rows_there,
    size_of,
    spread,
    store_totals,
)
from kvist.engine.backends.cpu.numbers import Node

KEYS = 8
"""At most so many keys in one `score`."""

SETS = 4
"""At most so many sets of weights in one `blend`."""

_LINE_BYTES = 64


def _columns(builder: Node, number: Node, places: list[Node], span: tuple[Node, Node], vectors: int) -> None:
    """Emits the pass over all columns of a span, so many vectors of them at a time."""
    values, distance, tokens, weights, weight_distance, last, into, into_distance, ahead, _ = places
    each, size = lanes(), size_of(number)
    # Sets that are not there are the last one again: it is stored several times, the same.
    of_weights = rows_there(builder, weights, weight_distance, last, SETS)
    of_sums = rows_there(builder, into, into_distance, last, SETS)

    def column(place: Node, _: list[Node]) -> list[Node]:
        targets = [builder.add(row, builder.shl(place, INT64(2))) for row in of_sums]
        spots = [
            at(builder, builder.add(target, INT64(4 * each * vector)), ir.VectorType(FLOAT, each))
            for target in targets
            for vector in range(vectors)
        ]
        start = builder.add(values, builder.mul(place, INT64(size)))

        def token(index: Node, sums: list[Node]) -> list[Node]:
            place = builder.add(start, builder.mul(index, distance))
            for line in range(0, size * each * vectors, _LINE_BYTES):
                ask(builder, builder.add(builder.add(place, ahead), INT64(line)))
            row = [
                load_wide(builder, builder.add(place, INT64(size * each * vector)), number) for vector in range(vectors)
            ]
            found = []
            for one, address in enumerate(of_weights):
                weight = builder.load(at(builder, builder.add(address, builder.shl(index, INT64(2))), FLOAT))
                factor = spread(builder, weight)
                found += [fused(builder, sums[one * vectors + i], factor, part) for i, part in enumerate(row)]
            return found

        begun = [builder.load(spot, align=4) for spot in spots]
        for spot, total in zip(spots, loop(builder, (INT64(0), tokens, 1), begun, token), strict=True):
            builder.store(total, spot, align=4)
        return []

    loop(builder, (*span, each * vectors), [], column)


@intrinsic
def blend(_context: Node, like: Node, places: Node) -> Node:
    """Adds rows under up to four sets of weights to their sums; over the `blended` part of a row's numbers.

    In kernels: `blend(given, (values, distance, tokens, weights, weight_distance, last, into, into_distance,
    ahead, width))`:
    address of the first row, bytes between rows, how many; address of the first set of weights, float32, one for each
    row, and bytes between sets; the number of the last set that is there; address of the first set's sums, float32, and
    bytes between sets; how many bytes ahead of each row memory is asked for; numbers of a row.
    """

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        parts = cgutils.unpack_tuple(builder, arguments[1])
        each = lanes()
        vectors = 4 if each == 16 else 2  # of sums, as many as there are registers for
        most = builder.and_(parts[-1], INT64(-each * vectors))
        _columns(builder, like.dtype, parts, (INT64(0), most), vectors)
        _columns(builder, like.dtype, parts, (most, builder.and_(parts[-1], INT64(-each))), 1)
        return context.get_dummy_value()

    return types.void(like, places), generate


@intrinsic
def score(_context: Node, like: Node, places: Node) -> Node:
    """Stores the dot products of one query with up to eight keys, over the `scored` part of their numbers.

    In kernels: `score(given, (query, keys, distance, last, width, into, ahead))`: addresses of the query and of the
    first key, bytes between keys, the number of the last key that is there, numbers of a key, the address of eight
    float32, of which those of keys that are not there mean nothing, and how many bytes ahead of each key memory is
    asked for.
    """

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        query, keys, distance, last, width, into, ahead = cgutils.unpack_tuple(builder, arguments[1])
        way = products_of(like.dtype)
        addresses = [query, *rows_there(builder, keys, distance, last, KEYS)]

        def turn(index: Node, sums: list[Node]) -> list[Node]:
            byte = builder.mul(index, INT64(size_of(like.dtype)))
            places = [builder.add(address, byte) for address in addresses]
            for place in places[1:]:
                ask(builder, builder.add(place, ahead))
            asked, *read = [load(builder, place, way.read) for place in places]
            return [way.add(builder, total, asked, each) for total, each in zip(sums, read, strict=True)]

        span = (INT64(0), builder.and_(width, INT64(-way.count)), way.count)
        store_totals(builder, loop(builder, span, [ir.Constant(way.sums, None)] * KEYS, turn), into)
        return context.get_dummy_value()

    return types.void(like, places), generate


@intrinsic
def scored(_context: Node, like: Node, _width: Node) -> Node:
    """How many of a key's numbers `score` takes: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[1], INT64(-products_of(like.dtype).count))

    return types.int64(like, types.int64), generate


@intrinsic
def blended(_context: Node, _width: Node) -> Node:
    """How many of a row's numbers `blend` takes: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[0], INT64(-lanes()))

    return types.int64(types.int64), generate
