"""What instructions on vectors are made of: how wide they are on a processor, how numbers get into one, sums out of it.

Everything here emits code, and is called while `dots` and `vectors` are compiled. Addresses are int64 there, in bytes.
Processors that have dot products of bfloat16 (AVX512-BF16: twice the numbers in an instruction, and nothing is widened)
use them; others widen what is stored to float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features

from kvist.engine.backends.cpu.numbers import Node

INT32, INT64, FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()

_INT16 = ir.IntType(16)


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


def lanes() -> int:
    """Float32 of a vector."""
    features = _features()
    return 16 if "avx512f" in features else 8 if "avx" in features else 4


def size_of(number: Node) -> int:
    """Bytes of a stored number."""
    return 4 if number == types.float32 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """How products of stored numbers are added up, a vector at a time.

    Attributes:
        read: the type of what is read from memory at once.
        sums: the type of the sums, one for each of a vector's float32.
        add: emits `sums + a * b`, with a and b as read.
    """

    read: ir.VectorType
    sums: ir.VectorType
    add: Callable[[Node, Node, Node, Node], Node]

    @property
    def count(self) -> int:
        """Numbers of what is read at once."""
        return int(self.read.count)

    @property
    def size(self) -> int:
        """Bytes of what is read at once."""
        return self.count * (4 if self.read.element == FLOAT else 2)


def products_of(number: Node) -> Products:
    """The fastest way for numbers of this type on this processor."""
    sums = ir.VectorType(FLOAT, lanes())
    if number == types.float32:
        return Products(read=sums, sums=sums, add=fused)
    if "avx512bf16" in _features():
        return Products(read=ir.VectorType(_BFloat(), 2 * sums.count), sums=sums, add=_dot)
    return Products(read=ir.VectorType(_INT16, sums.count), sums=sums, add=_widen_and_multiply)


def fused(builder: Node, sums: Node, a: Node, b: Node) -> Node:
    """Emits `sums + a * b`, of float32, rounded once where the processor can."""
    return builder.fadd(sums, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


def _widen_and_multiply(builder: Node, sums: Node, a: Node, b: Node) -> Node:
    return fused(builder, sums, _widened(builder, a), _widened(builder, b))


def _widened(builder: Node, bits: Node) -> Node:
    """Float32 of bfloat16: the same bits, and as many zeros after them."""
    wide = ir.VectorType(INT32, bits.type.count)
    shifted = builder.shl(builder.zext(bits, wide), ir.Constant(wide, [16] * wide.count))
    return builder.bitcast(shifted, ir.VectorType(FLOAT, wide.count))


def _dot(builder: Node, sums: Node, a: Node, b: Node) -> Node:
    kind = ir.FunctionType(sums.type, [sums.type, a.type, b.type])
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * sums.type.count}"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [sums, a, b])


def at(builder: Node, address: Node, kind: ir.Type) -> Node:
    """An address as a pointer."""
    return builder.inttoptr(address, kind.as_pointer())


def load(builder: Node, address: Node, kind: ir.VectorType) -> Node:
    """A vector as it is stored; a number is at an even address, a vector need not be at a multiple of its size."""
    return builder.load(at(builder, address, kind), align=2)


def load_wide(builder: Node, address: Node, number: Node) -> Node:
    """A vector of stored numbers, as float32."""
    if number == types.float32:
        return load(builder, address, ir.VectorType(FLOAT, lanes()))
    return _widened(builder, load(builder, address, ir.VectorType(_INT16, lanes())))


def ask(builder: Node, address: Node) -> None:
    """Has the memory around an address brought near, without waiting."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, byte), INT32(0), INT32(3), INT32(1)])


def rows_there(builder: Node, first: Node, distance: Node, last: Node, count: int) -> list[Node]:
    """Addresses of so many rows; those after the last that is there are it again: nothing else may be read."""
    found = []
    for row in map(INT64, range(count)):
        within = builder.select(builder.icmp_signed("<", row, last), row, last)
        found.append(builder.add(first, builder.mul(within, distance)))
    return found


Body = Callable[[Node, list[Node]], list[Node]]
"""Emits what is done for one turn of a loop: takes the counter and what is carried, returns what is carried on."""


def loop(builder: Node, span: tuple[Node, Node, int], carried: list[Node], body: Body) -> list[Node]:
    """Emits `for counter in range(*span)`; returns what is carried at its end."""
    begin, end, step = span
    before = builder.block
    head, turn, after = (builder.append_basic_block(name) for name in ("loop", "turn", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    counter = builder.phi(INT64)
    phis = [builder.phi(each.type) for each in carried]
    builder.cbranch(builder.icmp_signed("<", counter, end), turn, after)
    builder.position_at_end(turn)
    following = body(counter, phis)
    for phi, first, later in zip(
        (counter, *phis), (begin, *carried), (builder.add(counter, INT64(step)), *following), strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return phis


def store_totals(builder: Node, vectors: list[Node], into: Node) -> None:
    """Adds up the numbers of each vector, of which there is a power of two, and stores the sums side by side.

    Adding the halves of a and of b gives one vector, with the sums of a in its first half and those of b in its other:
    so eight vectors of 16 become one, which holds two numbers for each.
    """
    count, width = len(vectors), vectors[0].type.count
    left = width
    while left > 1:
        half, alone = left // 2, len(vectors) == 1
        pairs = [(vectors[0], vectors[0])] if alone else [*zip(vectors[::2], vectors[1::2], strict=True)]
        low = [start + lane for start in range(0, width if alone else 2 * width, left) for lane in range(half)]
        low += [0] * (width - len(low))  # of one vector nothing fills the other half
        high = [lane + half for lane in low]
        vectors = [builder.fadd(*(_picked(builder, *pair, part) for part in (low, high))) for pair in pairs]
        left = half
    each = count // len(vectors)
    for index, vector in enumerate(vectors):
        totals = _picked(builder, vector, vector, [*range(each)])
        builder.store(totals, at(builder, builder.add(into, INT64(4 * each * index)), totals.type), align=4)


def spread(builder: Node, number: Node) -> Node:
    """A vector of the same float32."""
    undefined = ir.Constant(ir.VectorType(FLOAT, lanes()), ir.Undefined)
    first = builder.insert_element(undefined, number, INT32(0))
    return _picked(builder, first, first, [0] * lanes())


def _picked(builder: Node, a: Node, b: Node, lanes_of_both: list[int]) -> Node:
    indices = ir.Constant(ir.VectorType(INT32, len(lanes_of_both)), lanes_of_both)
    return builder.shuffle_vector(a, b, indices)
