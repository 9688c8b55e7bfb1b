"""Rotation of queries and keys by their positions, and the way of keys and values into their blocks, in one pass.

The rotation is of Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), in the form that
pairs a number with the one half of the rotated part further on, as in Llama, Mistral, Qwen, Gemma, SmolLM3 and Phi-3.
Between reading the numbers and writing the result all is float32, the norm per head included.
"""

from dataclasses import dataclass

import numpy as np
import torch

from kvist.engine.backends.cpu.kernel import Kernel, Program, empty, matrix, share, vector
from kvist.engine.backends.cpu.kernel import real as packed
from kvist.engine.backends.cpu.numbers import (
    Array,
    Given,
    Node,
    Number,
    floats,
    inlined,
    integer,
    integers,
    narrow,
    real,
    widen,
)
from kvist.engine.backends.cpu.numbers import matrix as matrix_of
from kvist.engine.backends.cpu.numbers import vector as vector_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """RMS norms of each head of queries and keys, before they are rotated (Qwen3's and Gemma 3's).

    Attributes:
        query: weight [head_dim], of the dtype of what is normed.
        key: the same for keys.
        epsilon: what keeps a head of zeros finite.
        offset: 1.0 where weights are stored as distances from one; see `kvist.engine.backends.cpu.normalise.rms_norm`.
    """

    query: torch.Tensor
    key: torch.Tensor
    epsilon: float
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTarget:
    """Where keys and values of a step's tokens go.

    Attributes:
        keys: one layer's, [kv_heads, tokens, head_dim]; the numbers of a token's head lie side by side.
        values: the same of values.
        places: int64 [rows], contiguous: the token in there that each row becomes, at least 0 and below `tokens`,
            no two alike. Nobody checks them here.
    """

    keys: torch.Tensor
    values: torch.Tensor
    places: torch.Tensor


Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, each [rows, rotary_dim]; float32 or the dtype of what is rotated."""


def rotate_and_write(
    fused: torch.Tensor,
    rotation: Rotation | None,
    into: KvTarget,
    *,
    norms: HeadNorms | None = None,
    program: Program | None = None,
) -> torch.Tensor:
    """Norms and rotates queries and keys, and writes keys and values where they belong.

    Args:
        fused: [rows, (heads + 2 * kv_heads) * head_dim], queries, keys and values of each token side by side,
            bfloat16 or float32; rows may lie apart.
        rotation: cosines and sines; what lies behind the first `rotary_dim` numbers of a head stays as it is.
            None for a layer that does not rotate.
        into: where keys and values go; of the dtype of `fused`.
        norms: applied first, if there are any.
        program: what this is added to, instead of being done now; the result is written then.

    Returns:
        Queries [rows, heads, head_dim] of the same dtype, contiguous.
    """
    dtype, keys, values, places = fused.dtype, into.keys, into.values, into.places
    kv_heads, _, head_dim = keys.shape
    source = matrix(fused)
    rows = source[1]
    heads = fused.shape[1] // head_dim - 2 * kv_heads
    to_key, to_value = keys.stride(), values.stride()
    assert dtype is keys.dtype is values.dtype, f"{dtype} into {keys.dtype} and {values.dtype}"
    assert to_key[2] == to_value[2] == 1, f"strides {to_key} and {to_value}"
    assert values.shape == keys.shape, f"{values.shape} and {keys.shape}"
    assert places.shape == (rows,), f"{places.shape} places for {rows} rows"
    query = empty(program, rows, heads, head_dim, dtype=dtype)
    _kernel_of(dtype, rotation)(
        dtype,
        *source,
        *_rotation_arguments(rotation, rows),
        *(heads, kv_heads, head_dim),
        *(query.data_ptr(), query.numel()),
        *(keys.data_ptr(), keys.numel(), to_key[0], to_key[1]),
        *(values.data_ptr(), values.numel(), to_value[0], to_value[1]),
        *vector(places),
        *_norm_arguments(norms),
        program=program,
    )
    return query


def _kernel_of(dtype: torch.dtype, rotation: Rotation | None) -> Kernel:
    return _PLAIN if rotation is None or rotation[0].dtype is dtype else _WIDE


def _rotation_arguments(rotation: Rotation | None, rows: int) -> tuple[int, ...]:
    if rotation is None:
        return (0,) * 7
    cosines, sines = rotation
    assert cosines.shape == sines.shape, f"{cosines.shape} and {sines.shape}"
    assert cosines.shape[0] == rows, f"{cosines.shape} for {rows} rows"
    assert cosines.dtype is sines.dtype, f"{cosines.dtype} and {sines.dtype}"
    return (*matrix(cosines), *matrix(sines), cosines.shape[1])


def _norm_arguments(norms: HeadNorms | None) -> tuple[int, ...]:
    if norms is None:
        return (0,) * 6
    return *vector(norms.query), *vector(norms.key), packed(norms.epsilon), packed(norms.offset)


@inlined
def _at(base: int, i: int) -> Node:
    """An index that is known not to be negative: others are looked at one by one, which no vector unit does."""
    return np.uintp(base) + np.uintp(i)


@inlined
def _scale(x: Array, base: int, count: int, epsilon: Number) -> Number:
    squares = np.float32(0)
    for i in range(count):
        value = widen(x[_at(base, i)])
        squares += value * value
    return np.float32(1) / np.sqrt(squares / np.float32(count) + epsilon)


@inlined
def _head(source: Node, target: Node, rotation: Node, gain: Node, count: int) -> None:
    """Writes one head: the first 2 * half numbers rotated, the rest as they are, all times the gain if there is one."""
    (x, begin), (found, at) = source, target
    (cosines, sines, row, half), (scale, offset, weight, normed) = rotation, gain
    for i in range(half):
        low, high = widen(x[_at(begin, i)]), widen(x[_at(begin + half, i)])
        if normed:
            low *= scale * (offset + widen(weight[i]))
            high *= scale * (offset + widen(weight[_at(half, i)]))
        cosine, sine = widen(cosines[row, i]), widen(sines[row, i])
        other_cosine, other_sine = widen(cosines[row, _at(half, i)]), widen(sines[row, _at(half, i)])
        found[_at(at, i)] = narrow(low * cosine - high * sine, found)
        found[_at(at + half, i)] = narrow(high * other_cosine + low * other_sine, found)
    for i in range(2 * half, count):
        value = widen(x[_at(begin, i)])
        if normed:
            value *= scale * (offset + widen(weight[i]))
        found[_at(at, i)] = narrow(value, found)


@inlined
def _rotate(given: Given, cosines: Array, sines: Array) -> None:
    """Each thread takes heads of all three kinds, in the order in which they lie; arguments are those of the call."""
    fused, query, keys, values = vector_of(given, 0), vector_of(given, 13), vector_of(given, 15), vector_of(given, 19)
    places, half = integers(given, 23), integer(given, 9) // 2
    heads, kv_heads, head_dim = integer(given, 10), integer(given, 11), integer(given, 12)
    query_weight, key_weight = vector_of(given, 25), vector_of(given, 27)
    normed, epsilon, offset = integer(given, 26) > 0, real(given, 29), real(given, 30)
    together = heads + 2 * kv_heads
    first, end = share(integer(given, 1) * together, 1)
    row = first // together
    head = first - row * together
    for _ in range(first, end):
        begin = row * integer(given, 2) + head * head_dim
        found, at, turned, weighted, weight = query, (row * heads + head) * head_dim, half, normed, query_weight
        if head >= heads + kv_heads:
            found, turned, weighted = values, 0, False
            at = (head - heads - kv_heads) * integer(given, 21) + places[row] * integer(given, 22)
        elif head >= heads:
            found, weight = keys, key_weight
            at = (head - heads) * integer(given, 17) + places[row] * integer(given, 18)
        scale = _scale(fused, begin, head_dim, epsilon) if weighted else np.float32(1)
        _head((fused, begin), (found, at), (cosines, sines, row, turned), (scale, offset, weight, weighted), head_dim)
        head += 1
        if head == together:
            head, row = 0, row + 1


def _rotate_plain(given: Given) -> None:
    """With cosines and sines of the dtype of the rest."""
    _rotate(given, matrix_of(given, 3), matrix_of(given, 6))


def _rotate_wide(given: Given) -> None:
    """With cosines and sines that are float32 whatever the rest is."""
    _rotate(given, floats(given, 3), floats(given, 6))


_PLAIN, _WIDE = Kernel(_rotate_plain), Kernel(_rotate_wide)
