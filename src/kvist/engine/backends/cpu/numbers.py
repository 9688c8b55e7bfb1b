"""Numbers as kernels see them: stored as bfloat16 or float32, computed with as float32.

The compiler knows no bfloat16, so its bits travel as uint16. Which of both a kernel was compiled for is in the type
of its `given` (see `kvist.engine.backends.cpu.kernel`), and `matrix` and `vector` give out arrays of that kind: code
says `widen(array[i])` to read and `array[i] = narrow(value, array)` to write, and works for both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
"""What the compiler may do with float32: sums in any order, which it needs to use vectors. But infinities and numbers
that are none stay what they are: a softmax needs the first, and whoever looks for a broken model the second.
"""


Node = Any
"""Whatever the compiler hands around while it generates code: types, values, a builder of instructions."""

Given = Any
"""A kernel's arguments, as the compiler sees them; its type says what numbers the kernel was compiled for."""

Array = Any
"""An array in a kernel."""

Number = Any
"""A float32 in a kernel."""


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function callable from kernels; ordinary code does not call it."""
    compiled: Callable[..., Any] = njit(fastmath=FAST, error_model="numpy")(function)
    return compiled


_INT32, _INT64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def widen(_context: Node, number: Node) -> Node:
    """A stored number as float32."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        if number == types.float32:
            return arguments[0]
        bits = builder.shl(builder.zext(arguments[0], _INT32), ir.Constant(_INT32, 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(number), generate


@intrinsic
def narrow(_context: Node, value: Node, like: Node) -> Node:
    """A float32 as a number to store in `like`, rounded to the nearest, of two equally near to the even one."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        if like.dtype == types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], _INT32)
        odd = builder.and_(builder.lshr(bits, ir.Constant(_INT32, 16)), ir.Constant(_INT32, 1))
        rounded = builder.add(bits, builder.add(odd, ir.Constant(_INT32, 0x7FFF)))
        none = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        kept = builder.select(none, ir.Constant(_INT32, 0x7FC00000), rounded)
        return builder.trunc(builder.lshr(kept, ir.Constant(_INT32, 16)), ir.IntType(16))

    return like.dtype(types.float32, like), generate


@intrinsic
def _as_float(_context: Node, bits: Node) -> Node:
    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def integer(_context: Node, given: Node, index: Node) -> Node:
    """One of a kernel's arguments, an int64."""

    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        array = builder.bitcast(arguments[0], _INT64.as_pointer())
        return builder.load(builder.gep(array, [arguments[1]]))

    return types.int64(given, types.int64), generate


@intrinsic
def given_at(_context: Node, _address: Node) -> Node:
    """What lies at an address, to be looked at like arguments; other kernels' or a plan's."""

    def generate(context: Node, builder: Node, signature: Node, arguments: Node) -> Node:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def _numbers(_context: Node, given: Node, address: Node) -> Node:
    """An address as a pointer to the numbers that `given` stands for."""

    def generate(context: Node, builder: Node, signature: Node, arguments: Node) -> Node:
        return builder.inttoptr(arguments[1], context.get_value_type(signature.return_type))

    return types.CPointer(given.dtype)(given, types.int64), generate


@intrinsic
def _pointer(_context: Node, address: Node, like: Node) -> Node:
    """An address as a pointer to numbers of the type of `like`."""

    def generate(context: Node, builder: Node, signature: Node, arguments: Node) -> Node:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), generate


@intrinsic
def prefetch(_context: Node, address: Node) -> Node:
    """Has the 64 bytes around an address brought near, without waiting; any address is allowed.

    A stream that each step computes much with is read from memory at the speed of its latency otherwise: a core looks
    no further ahead than a few hundred instructions.
    """

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _INT32, _INT32, _INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], byte), _INT32(0), _INT32(3), _INT32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def call(_context: Node, kernel: Node, given: Node) -> Node:
    """Calls a compiled kernel, from where it is and where its arguments are."""

    def generate(context: Node, builder: Node, __: Node, arguments: Node) -> Node:
        kind = ir.FunctionType(ir.VoidType(), [_INT64.as_pointer()])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, [builder.inttoptr(arguments[1], _INT64.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _bits(_context: Node, value: Node) -> Node:
    def generate(_: Node, builder: Node, __: Node, arguments: Node) -> Node:
        return builder.bitcast(builder.trunc(arguments[0], _INT32), ir.FloatType())

    return types.float32(types.int64), generate


@inlined
def real(given: Given, index: int) -> Number:
    """An argument that was packed as a float32; see `kvist.engine.backends.cpu.kernel.real`."""
    return _bits(integer(given, index))


@inlined
def matrix(given: Given, index: int) -> Array:
    """The matrix whose address, rows and width are in three arguments from `index` on."""
    shape = (integer(given, index + 1), integer(given, index + 2))
    return carray(_numbers(given, integer(given, index)), shape)


@inlined
def vector(given: Given, index: int) -> Array:
    """The vector whose address and length are in two arguments from `index` on."""
    return carray(_numbers(given, integer(given, index)), (integer(given, index + 1),))


@inlined
def floats(given: Given, index: int) -> Array:
    """Like `matrix`, of numbers that are float32 whatever the kernel was compiled for."""
    shape = (integer(given, index + 1), integer(given, index + 2))
    return carray(_pointer(integer(given, index), np.float32(0)), shape)


@inlined
def integers(given: Given, index: int) -> Array:
    """The int64 whose address and count are in two arguments from `index` on."""
    return carray(_pointer(integer(given, index), np.int64(0)), (integer(given, index + 1),))


@inlined
def exponential(value: Number) -> Number:
    """Raises e to the power of a float32 that is at most about 80, to about 4e-6 of it; 0 from -87 down.

    A power of two from the whole part, a polynomial for the rest (Taylor's, of 2**x around 0, within half a unit):
    plain arithmetic that the compiler can do for many numbers at once, which it cannot with a library's. What is no
    number stays none.
    """
    within = np.float32(-87.0) if value <= np.float32(-87.0) else value
    scaled = within * np.float32(1.4426950408889634)
    whole = np.floor(scaled + np.float32(0.5))
    rest = scaled - whole
    power = np.float32(1.5252733804059838e-05)
    power = power * rest + np.float32(0.00015403530393381606)
    power = power * rest + np.float32(0.0013333558146428443)
    power = power * rest + np.float32(0.009618129107628477)
    power = power * rest + np.float32(0.05550410866482158)
    power = power * rest + np.float32(0.2402265069591007)
    power = power * rest + np.float32(0.6931471805599453)
    power = power * rest + np.float32(1.0)
    found = power * _as_float(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    return np.float32(0.0) if value <= np.float32(-87.0) else found
