"""Dot products of weights with up to eight rows are those of torch, whatever the width, and nothing else is read."""

import pytest
import torch

from kvist.engine.backends.cpu.dots import AHEAD_BYTES, ROWS, dots1, dots2, dots4, dots8, whole
from kvist.engine.backends.cpu.kernel import DTYPES, Kernel
from kvist.engine.backends.cpu.numbers import Given, integer, integers

LARGEST = 32
"""Numbers of the widest vector."""


def _all(given: Given) -> None:
    """Every instruction with the same places, its sums behind those of the one before."""
    weights, x, distance, last, into = (
        integer(given, 0),
        integer(given, 1),
        integer(given, 2),
        integer(given, 3),
        integer(given, 4),
    )
    size, apart = integer(given, 5), 4 * ROWS
    dots1(given, (weights, x, distance, min(last, 0), size, into))
    dots2(given, (weights, x, distance, min(last, 1), size, into + apart))
    dots4(given, (weights, x, distance, min(last, 3), size, into + 2 * apart))
    dots8(given, (weights, x, distance, last, size, into + 3 * apart))


def _whole(given: Given) -> None:
    found = integers(given, 0)
    for count in range(len(found)):
        found[count] = whole(given, count)


ALL, WHOLE = Kernel(_all), Kernel(_whole)


def randn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", range(1, ROWS + 1))
def test_each_row_is_multiplied_with_the_weights(rows: int, dtype: torch.dtype, torch_threads: object) -> None:
    assert callable(torch_threads)
    torch_threads(1)
    for width in (LARGEST, 3 * LARGEST, 1024):
        # Rows that are not there and numbers beyond a row are none, and would spoil a sum that they got into.
        wide = torch.full((rows + 1, width + 5), float("nan"), dtype=dtype)
        wide[:rows, :width] = randn(rows, width, dtype=dtype, seed=1)
        weights = torch.full((width + AHEAD_BYTES,), float("nan"), dtype=dtype)
        weights[:width] = randn(width, dtype=dtype, seed=2)
        found = torch.full((5, ROWS), 7.0)
        places = (weights.data_ptr(), wide.data_ptr(), wide.stride(0) * wide.itemsize, rows - 1, found.data_ptr())
        ALL(dtype, *places, width * wide.itemsize)
        exact = wide[:rows, :width].float() @ weights[:width].float()
        for sums, most in zip(found, (1, 2, 4, 8), strict=False):
            there = min(rows, most)
            torch.testing.assert_close(sums[:there], exact[:there], rtol=1e-5, atol=1e-4)
            assert sums[most:].eq(7).all(), f"dots{most} wrote beyond its sums"
        assert found[4].eq(7).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_fills_no_vector_is_the_caller_s(dtype: torch.dtype, torch_threads: object) -> None:
    assert callable(torch_threads)
    torch_threads(1)
    found = torch.empty(3 * LARGEST, dtype=torch.int64)
    WHOLE(dtype, found.data_ptr(), found.numel())
    (vector,) = {int(count) for count in found.unique()[1:2]}
    assert LARGEST % vector == 0
    assert found.tolist() == [count // vector * vector for count in range(3 * LARGEST)]
