"""What attention does with a run of tokens, as instructions on vectors: scores with their keys, sums of their values.

The compiler makes neither of plain loops at the speed of memory: in the one it adds up each vector's numbers by itself,
a third more work than the products; in the other it keeps sums in memory instead of registers. Processors that have dot
products of bfloat16 (AVX512-BF16: twice the numbers in an instruction, and nothing is widened) use them. And where
blocks scatter, what is read next has to be asked for in small portions while this is computed with: asked for a block
at a time, a core waits for the asking.
"""

from collections.abc import Callable

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from kvist.engine.backends.cpu.numbers import Node

KEYS = 8
"""At most so many keys in one `score`."""

SETS = 4
"""At most so many sets of weights in one `blend`."""

_LINE_BYTES = 64

_INT16, _INT32, _INT64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite comes without types
    """The compiler's own bfloat16, which its interface to Python does not name."""

    null = "zeroinitializer"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(str(self))


def _has(feature: str) -> bool:
    """Whether the processor has it that is compiled for: this one, unless the environment names another."""
    named = numba.config.CPU_FEATURES
    return f"+{feature}" in (get_host_cpu_features() if named is None else named).split(",")


def _lanes() -> int:
    """Float32 of a vector."""
    return 16 if _has("avx512f") else 8 if _has("avx") else 4


def _has_products(number: Node) -> bool:
    """Whether there is an instruction for dot products of such numbers."""
    return number != types.float32 and _has("avx512bf16")


def _at(builder: Node, address: Node, kind: ir.Type) -> Node:
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Node, address: Node, number: Node, lanes: int) -> Node:
    """A vector of stored numbers, as float32."""
    if number == types.float32:
        return builder.load(_at(builder, address, ir.VectorType(_FLOAT, lanes)), align=4)
    wide = ir.VectorType(_INT32, lanes)
    bits = builder.zext(builder.load(_at(builder, address, ir.VectorType(_INT16, lanes)), align=2), wide)
    return builder.bitcast(builder.shl(bits, ir.Constant(wide, [16] * lanes)), ir.VectorType(_FLOAT, lanes))


def _ask(builder: Node, address: Node) -> None:
    """Has the memory around an address brought near, without waiting."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), _INT32(0), _INT32(3), _INT32(1)])


def _fused(builder: Node, sums: Node, weight: Node, values: Node) -> Node:
    return builder.fadd(sums, builder.fmul(weight, values, flags=("contract",)), flags=("contract",))


Body = Callable[[Node, list[Node]], list[Node]]
"""Emits what is done for one turn of a loop: takes the counter and what is carried, returns what is carried on."""


def _loop(builder: Node, span: tuple[Node, Node, int], carried: list[Node], body: Body) -> list[Node]:
    """Emits `for counter in range(*span)`; returns what is carried at its end."""
    begin, end, step = span
    before = builder.block
    head, turn, after = (builder.append_basic_block(name) for name in ("loop", "turn", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    counter = builder.phi(_INT64)
    phis = [builder.phi(each.type) for each in carried]
    builder.cbranch(builder.icmp_signed("<", counter, end), turn, after)
    builder.position_at_end(turn)
    following = body(counter, phis)
    for phi, first, later in zip(
        (counter, *phis), (begin, *carried), (builder.add(counter, _INT64(step)), *following), strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def _columns(builder: Node, number: Node, places: list[Node], span: tuple[Node, Node], vectors: int) -> None:
    """Emits the pass over all columns of a span, so many vectors of them at a time."""
    values, distance, tokens, weights, weight_distance, last, into, into_distance, ahead, _ = places
    lanes, size = _lanes(), 4 if number == types.float32 else 2
    sets = [_INT64(0)] + [
        builder.select(builder.icmp_signed("<", _INT64(one), last), _INT64(one), last) for one in range(1, SETS)
    ]  # sets that are not there are the last one again: it is stored several times, the same
    of_weights = [builder.add(weights, builder.mul(one, weight_distance)) for one in sets]

    def column(at: Node, _: list[Node]) -> list[Node]:
        targets = [
            builder.add(builder.add(into, builder.mul(one, into_distance)), builder.shl(at, _INT64(2))) for one in sets
        ]
        spots = [
            _at(builder, builder.add(target, _INT64(4 * lanes * vector)), ir.VectorType(_FLOAT, lanes))
            for target in targets
            for vector in range(vectors)
        ]
        start = builder.add(values, builder.mul(at, _INT64(size)))

        def token(index: Node, sums: list[Node]) -> list[Node]:
            place = builder.add(start, builder.mul(index, distance))
            for line in range(0, size * lanes * vectors, _LINE_BYTES):
                _ask(builder, builder.add(builder.add(place, ahead), _INT64(line)))
            row = [
                _load(builder, builder.add(place, _INT64(size * lanes * vector)), number, lanes)
                for vector in range(vectors)
            ]
            found = []
            for one, address in enumerate(of_weights):
                weight = builder.load(_at(builder, builder.add(address, builder.shl(index, _INT64(2))), _FLOAT))
                spread = _spread(builder, weight, lanes)
                found += [_fused(builder, sums[one * vectors + i], spread, each) for i, each in enumerate(row)]
            return found

        begun = [builder.load(spot, align=4) for spot in spots]
        for spot, total in zip(spots, _loop(builder, (_INT64(0), tokens, 1), begun, token), strict=True):
            builder.store(total, spot, align=4)
        return []

    _loop(builder, (*span, lanes * vectors), [], column)


def _spread(builder: Node, number: Node, lanes: int) -> Node:
    kind = ir.VectorType(_FLOAT, lanes)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), number, _INT32(0))
    return builder.shuffle_vector(first, first, _indices([0] * lanes))


@intrinsic
def blend(_context: Node, like: Node, places: Node) -> Node:
    """Adds rows under up to four sets of weights to their sums; over the `blended` part of a row's numbers.

    In kernels: `blend(slots, (values, distance, tokens, weights, weight_distance, last, into, into_distance,
    ahead, width))`:
    address of the first row, bytes between rows, how many; address of the first set of weights, float32, one for each
    row, and bytes between sets; the number of the last set that is there; address of the first set's sums, float32, and
    bytes between sets; how many bytes ahead of each row memory is asked for; numbers of a row.
    """

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        given = cgutils.unpack_tuple(builder, arguments[1])
        lanes = _lanes()
        vectors = 4 if lanes == 16 else 2  # of sums, as many as there are registers for
        most = builder.and_(given[-1], _INT64(-lanes * vectors))
        _columns(builder, like.dtype, given, (_INT64(0), most), vectors)
        _columns(builder, like.dtype, given, (most, builder.and_(given[-1], _INT64(-lanes))), 1)
        return context.get_dummy_value()

    return types.void(like, places), generate


@intrinsic
def score(_context: Node, like: Node, places: Node) -> Node:
    """Stores the dot products of one query with up to eight keys, over the `scored` part of their numbers.

    In kernels: `score(slots, (query, keys, distance, last, width, into, ahead))`: addresses of the query and of the
    first key, bytes between keys, the number of the last key that is there, numbers of a key, the address of eight
    float32, of which those of keys that are not there mean nothing, and how many bytes ahead of each key memory is
    asked for.
    """

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        query, keys, distance, last, width, into, ahead = cgutils.unpack_tuple(builder, arguments[1])
        number, lanes = like.dtype, _lanes()
        addresses = [query]
        for key in map(_INT64, range(KEYS)):
            # Keys that are not there are the last one again: nothing else may be read.
            within = builder.select(builder.icmp_signed("<", key, last), key, last)
            addresses.append(builder.add(keys, builder.mul(within, distance)))

        def step(at: Node, sums: list[Node]) -> list[Node]:
            byte = builder.mul(at, _INT64(4 if number == types.float32 else 2))
            places = [builder.add(address, byte) for address in addresses]
            for place in places[1:]:
                _ask(builder, builder.add(place, ahead))
            if _has_products(number):
                asked, *read = [_load_plain(builder, place, 2 * lanes) for place in places]
                return [_product(builder, total, asked, each) for total, each in zip(sums, read, strict=True)]
            asked, *read = [_load(builder, place, number, lanes) for place in places]
            return [_fused(builder, total, asked, each) for total, each in zip(sums, read, strict=True)]

        each = _scored(number)
        zero = ir.Constant(ir.VectorType(_FLOAT, lanes), None)
        span = (_INT64(0), builder.and_(width, _INT64(-each)), each)
        totals = _totals(builder, _loop(builder, span, [zero] * KEYS, step))
        builder.store(totals, _at(builder, into, totals.type), align=4)
        return context.get_dummy_value()

    return types.void(like, places), generate


def _scored(number: Node) -> int:
    """Numbers of a step of `score`."""
    return 2 * _lanes() if _has_products(number) else _lanes()


def _load_plain(builder: Node, address: Node, count: int) -> Node:
    return builder.load(_at(builder, address, ir.VectorType(_BFloat(), count)), align=2)


def _product(builder: Node, sums: Node, query: Node, key: Node) -> Node:
    kind = ir.FunctionType(sums.type, [sums.type, query.type, key.type])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * sums.type.count}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [sums, query, key])


def _totals(builder: Node, vectors: list[Node]) -> Node:
    """The sum of each of eight vectors' numbers, as one vector.

    Adding the halves of two vectors gives one whose first half is of the first and whose other is of the other: so
    three rounds make one vector of eight, and what is left to add of each then lies side by side.
    """
    lanes = vectors[0].type.count
    left = lanes
    while len(vectors) > 1 or left > 1:
        half, both = left // 2, len(vectors) > 1
        pairs = list(zip(vectors[::2], vectors[1::2], strict=True)) if both else [(vectors[0], vectors[0])]
        if left == 1:  # vectors of four: two of them side by side
            sides = _indices([*range(2 * vectors[0].type.count)])
            vectors = [builder.shuffle_vector(*pair, sides) for pair in pairs]
            continue
        width = vectors[0].type.count
        low = [start + lane for start in range(0, 2 * width if both else width, left) for lane in range(half)]
        high = [lane + half for lane in low]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(*pair, _indices(picked)) for picked in (low, high))) for pair in pairs
        ]
        left = half
    return vectors[0]


def _indices(picked: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INT32, len(picked)), picked)


@intrinsic
def scored(_context: Node, like: Node, _width: Node) -> Node:
    """How many of a key's numbers `score` takes: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[1], _INT64(-_scored(like.dtype)))

    return types.int64(like, types.int64), generate


@intrinsic
def blended(_context: Node, _width: Node) -> Node:
    """How many of a row's numbers `blend` takes: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[0], _INT64(-_lanes()))

    return types.int64(types.int64), generate
