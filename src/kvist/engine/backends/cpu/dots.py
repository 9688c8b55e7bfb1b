"""Dot products of one row of weights with up to eight rows of x, in one pass over the weights.

What `products` calls for every output. It is written as instructions on vectors, because three things matter here that
the compiler does not do of itself for a loop: it is asked for memory ahead of its use all along the loop; processors
with dot products of bfloat16 (AVX512-BF16: twice the numbers in an instruction, and nothing is widened) use them; and
the sums over a vector's numbers of eight rows are added up together, a third of the work of one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic

from kvist.engine.backends.cpu.numbers import Node

ROWS = 8
"""At most so many rows at once."""

AHEAD_BYTES = 8192
"""How far ahead memory is asked for: what two cores of this kind read in its latency, several times over."""

_INT16, _INT32, _INT64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite publishes no types
    """The compiler's own bfloat16, which its interface to Python does not name."""

    null = "zeroinitializer"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(str(self))


def _features() -> frozenset[str]:
    """What the processor that is compiled for can do: this one, unless the environment names another."""
    named = numba.config.CPU_FEATURES
    listed = get_host_cpu_features() if named is None else named
    return frozenset(name[1:] for name in listed.split(",") if name.startswith("+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """How one step of the loop reads numbers and adds their products to sums.

    Attributes:
        read: the type of what is read from memory at once.
        sums: the type of a row's sums, one for each of a vector's numbers.
        add: emits `sums + weights * x`, with weights and x as read.
    """

    read: ir.VectorType
    sums: ir.VectorType
    add: Callable[[Node, Node, Node, Node], Node]


def _step(number: Node) -> _Step:
    """The fastest step for numbers of this type on this processor."""
    features = _features()
    lanes = 16 if "avx512f" in features else 8 if "avx" in features else 4
    sums = ir.VectorType(_FLOAT, lanes)
    if number == types.float32:
        return _Step(read=sums, sums=sums, add=_multiply)
    if "avx512bf16" in features:
        return _Step(read=ir.VectorType(_BFloat(), 2 * lanes), sums=sums, add=_dot)
    return _Step(read=ir.VectorType(_INT16, lanes), sums=sums, add=_widen_and_multiply)


def _multiply(builder: Node, sums: Node, weights: Node, x: Node) -> Node:
    return builder.fadd(sums, builder.fmul(weights, x, flags=("contract",)), flags=("contract",))


def _widen_and_multiply(builder: Node, sums: Node, weights: Node, x: Node) -> Node:
    wide = ir.VectorType(_INT32, sums.type.count)
    by = ir.Constant(wide, [16] * sums.type.count)
    values = [builder.bitcast(builder.shl(builder.zext(bits, wide), by), sums.type) for bits in (weights, x)]
    return _multiply(builder, sums, *values)


def _dot(builder: Node, sums: Node, weights: Node, x: Node) -> Node:
    kind = ir.FunctionType(sums.type, [sums.type, weights.type, x.type])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [sums, weights, x])


def _ahead(builder: Node, address: Node) -> None:
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    where = builder.inttoptr(builder.add(address, _INT64(AHEAD_BYTES)), byte)
    builder.call(function, [where, _INT32(0), _INT32(3), _INT32(1)])


def _loop(builder: Node, step: _Step, addresses: list[Node], bytes_whole: Node) -> list[Node]:
    """Emits the loop; the first address is the weights', the others those of rows of x.

    Returns:
        The sums of each row of x, as vectors.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("dots", "step", "summed"))
    builder.branch(head)
    builder.position_at_end(head)
    at = builder.phi(_INT64)
    at.add_incoming(_INT64(0), before)
    sums = [builder.phi(step.sums) for _ in addresses[1:]]
    builder.cbranch(builder.icmp_signed("<", at, bytes_whole), body, after)
    builder.position_at_end(body)
    places = [builder.add(address, at) for address in addresses]
    _ahead(builder, places[0])
    weights, *rows = [_load(builder, place, step.read) for place in places]
    for row, each in zip(rows, sums, strict=True):
        each.add_incoming(ir.Constant(step.sums, None), before)
        each.add_incoming(step.add(builder, each, weights, row), body)
    at.add_incoming(builder.add(at, _INT64(_width(step))), body)
    builder.branch(head)
    builder.position_at_end(after)
    return sums


def _load(builder: Node, address: Node, kind: ir.VectorType) -> Node:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    # Any whole number is at an even address; a vector of them need not be at a multiple of its size.
    loaded.align = 2
    return loaded


def _width(step: _Step) -> int:
    """Bytes of a vector as read."""
    return int(step.read.count) * (4 if step.read.element == _FLOAT else 2)


def _store_totals(builder: Node, vectors: list[Node], into: Node) -> None:
    """Adds up the numbers of each vector, and stores the sums side by side.

    Adding the halves of a and of b gives one vector, with the sums of a in its first half and those of b in its other:
    so eight vectors of 16 become one, which holds two numbers for each.
    """
    lanes, left, count = vectors[0].type.count, vectors[0].type.count, len(vectors)
    while left > 1:
        half, alone = left // 2, len(vectors) == 1
        pairs = [(vectors[0], vectors[0])] if alone else [*zip(vectors[::2], vectors[1::2], strict=True)]
        low = [start + lane for start in range(0, lanes if alone else 2 * lanes, left) for lane in range(half)]
        low += [0] * (lanes - len(low))  # of one vector nothing fills the other half
        high = [lane + half for lane in low]
        vectors = [
            builder.fadd(*(builder.shuffle_vector(*pair, _indices(part)) for part in (low, high))) for pair in pairs
        ]
        left = half
    each = count // len(vectors)
    for row in range(count):
        total = builder.extract_element(vectors[row // each], _INT32(row % each))
        place = builder.add(into, _INT64(row * 4))
        builder.store(total, builder.inttoptr(place, _FLOAT.as_pointer()))


def _indices(picked: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_INT32, len(picked)), picked)


def _dots(rows: int) -> Any:  # noqa: ANN401 - what an instruction is has a type only in kernels
    """The instruction `dots` for up to so many rows, a power of two."""

    @intrinsic
    def dots(_context: Node, like: Node, places: Node) -> Node:
        def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
            step = _step(like.dtype)
            weights, x, distance, last, size, into = cgutils.unpack_tuple(builder, arguments[1])
            addresses = [weights]
            for row in map(_INT64, range(rows)):
                # Rows that are not there are the last one again: nothing else may be read.
                within = builder.select(builder.icmp_signed("<", row, last), row, last)
                addresses.append(builder.add(x, builder.mul(within, distance)))
            sums = _loop(builder, step, addresses, builder.and_(size, _INT64(-_width(step))))
            _store_totals(builder, sums, into)
            return context.get_dummy_value()

        return types.void(like, places), generate

    return dots


dots1, dots2, dots4, dots8 = _dots(1), _dots(2), _dots(4), _dots(8)
"""Dot products of weights with up to so many rows of x, over the `whole` part of them.

In kernels: `dots8(slots, (weights, x, distance, last, size, into))` with the addresses of the weights and of the first
row, bytes between rows, the number of the last row that is there, bytes of a row, and the address of as many
float32 as the name says, where sums go; those of rows that are not there mean nothing.
"""


@intrinsic
def whole(_context: Node, like: Node, _count: Node) -> Node:
    """How many of a row's numbers `dots8` and its likes take: those that fill vectors. The rest is for the caller."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.and_(arguments[1], _INT64(-_step(like.dtype).read.count))

    return types.int64(like, types.int64), generate


@intrinsic(prefer_literal=True)
def scratch(_context: Node, count: Node) -> Node:
    """A pointer to so many float32 of the calling function's own, a literal number; they end with the function."""

    def generate(_: Node, builder: Node, __: Node, ___: Node) -> Node:
        place = cgutils.alloca_once(builder, ir.ArrayType(_FLOAT, count.literal_value))
        place.align = 64
        return builder.bitcast(place, _FLOAT.as_pointer())

    return types.CPointer(types.float32)(count), generate
