"""Numbers in kernels are torch's numbers: every bfloat16 and what is rounded to it, and the exponential."""

import math

import numpy as np
import pytest
import torch

from kvist.engine.backends.cpu import kernel
from kvist.engine.backends.cpu.kernel import Kernel
from kvist.engine.backends.cpu.numbers import Given, exponential, floats, matrix, narrow, real, widen

EVERY = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)


def _widen(given: Given) -> None:
    stored, wide = matrix(given, 0), floats(given, 3)
    for i in range(stored.shape[1]):
        wide[0, i] = widen(stored[0, i])


def _narrow(given: Given) -> None:
    stored, wide = matrix(given, 0), floats(given, 3)
    for i in range(stored.shape[1]):
        stored[0, i] = narrow(wide[0, i], stored)


def _exponential(given: Given) -> None:
    found, values = floats(given, 0), floats(given, 3)
    for i in range(values.shape[1]):
        found[0, i] = exponential(values[0, i])


def _real(given: Given) -> None:
    floats(given, 0)[0, 0] = real(given, 3)


WIDEN, NARROW, EXPONENTIAL, REAL = Kernel(_widen), Kernel(_narrow), Kernel(_exponential), Kernel(_real)


def run(made: Kernel, dtype: torch.dtype, first: torch.Tensor, second: torch.Tensor) -> None:
    made(dtype, *kernel.matrix(first.view(1, -1)), *kernel.matrix(second.view(1, -1)))


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """As integers, so that zeros have signs; whatever is no number is one and the same."""
    kept = torch.where(numbers.isnan(), torch.full_like(numbers, math.nan), numbers)
    return kept.view({2: torch.int16, 4: torch.int32}[numbers.element_size()])


def test_every_bfloat16_is_read_as_what_it_is() -> None:
    wide = torch.empty(EVERY.numel())
    run(WIDEN, torch.bfloat16, EVERY, wide)
    assert torch.equal(bits(wide), bits(EVERY.float()))


@pytest.mark.parametrize("low", [0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_float32_is_rounded_as_torch_rounds(low: int) -> None:
    # Every upper half with lower halves below, at and above the middle: denormals, infinities and NaN are among them.
    wide = ((torch.arange(1 << 16) << 16) | low).to(torch.int32).view(torch.float32)
    stored = torch.empty(1 << 16, dtype=torch.bfloat16)
    run(NARROW, torch.bfloat16, stored, wide)
    assert torch.equal(bits(stored), bits(wide.bfloat16()))


def test_float32_is_stored_as_it_is() -> None:
    wide = ((torch.arange(1 << 16) << 16) | 0x1234).to(torch.int32).view(torch.float32)
    stored, back = torch.empty(1 << 16), torch.empty(1 << 16)
    run(NARROW, torch.float32, stored, wide)
    run(WIDEN, torch.float32, stored, back)
    assert torch.equal(bits(stored), bits(wide))
    assert torch.equal(bits(back), bits(wide))


def test_the_exponential_is_that_of_float64_to_four_millionths() -> None:
    values = torch.cat([torch.linspace(-86.9, 80, 100_001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5])])
    found = torch.empty_like(values)
    run(EXPONENTIAL, torch.float32, found, values)
    exact = values.double().exp()
    assert float(((found.double() - exact) / exact).abs().max()) < 5e-6


def test_the_exponential_ends_in_nothing_and_keeps_what_is_no_number() -> None:
    values = torch.tensor([-87.0, -88.0, -1e30, -math.inf, math.nan])
    found = torch.empty_like(values)
    run(EXPONENTIAL, torch.float32, found, values)
    assert found[:4].tolist() == [0.0] * 4
    assert math.isnan(found[4])


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3.25e-20, math.inf, -math.inf, 3.4e38])
def test_a_packed_real_arrives(value: float) -> None:
    found = torch.empty(1, 1)
    REAL(torch.float32, *kernel.matrix(found), kernel.real(value))
    assert np.float32(value).tobytes() == found.numpy().tobytes()
