"""One pass gates like torch's functions, and is nearer to the formula than they are in bfloat16."""

import functools
import math

import pytest
import torch
from torch.nn import functional

from kvist.engine.backends.cpu.gate import Activation, gated

TORCH = {
    "silu": functional.silu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "gelu": functional.gelu,
}
ALL: list[Activation] = ["silu", "gelu_tanh", "gelu"]
DTYPES = [torch.float32, torch.bfloat16]


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def theirs(both: torch.Tensor, activation: Activation) -> torch.Tensor:
    gate, up = both.chunk(2, -1)
    return TORCH[activation](gate) * up


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("shape", [(0, 6), (1, 1), (1, 1536), (2, 513), (3, 511), (9, 17), (40, 1025)])
def test_it_is_the_formula(shape: tuple[int, int], activation: Activation, threads: int, torch_threads) -> None:
    torch_threads(threads)
    both = normal(shape[0], 2 * shape[1], dtype=torch.float32)
    found = gated(both, activation)
    assert found.shape == shape
    assert found.is_contiguous()
    torch.testing.assert_close(found, theirs(both.double(), activation).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, theirs(both, activation), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ALL)
def test_far_from_zero_and_near_it_is_as_exact(activation: Activation) -> None:
    """Where torch's float32 loses small results in sums with one."""
    # As far as results are numbers of full precision.
    reach = {"silu": 80.0, "gelu_tanh": 7.0, "gelu": 12.0}[activation]
    gate = torch.cat([torch.linspace(-reach, reach, 4001), torch.logspace(-30, 0, 100), -torch.logspace(-30, 0, 100)])
    both = torch.cat([gate, torch.ones_like(gate)])[None]
    wide = gate.double()
    expected = {
        "silu": lambda: wide / (1 + (-wide).exp()),
        "gelu_tanh": lambda: wide / (1 + (-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)).exp()),
        "gelu": lambda: wide * torch.special.erfc(-wide / math.sqrt(2)) / 2,
    }[activation]()
    torch.testing.assert_close(gated(both, activation)[0].double(), expected, rtol=2e-5, atol=1e-36)


@pytest.mark.parametrize("activation", ALL)
def test_in_bfloat16_it_is_no_further_from_the_formula_than_theirs(activation: Activation) -> None:
    both = normal(20, 2 * 1000, dtype=torch.bfloat16)
    expected = theirs(both.double(), activation)
    found = gated(both, activation)
    assert found.dtype == torch.bfloat16
    ours_off = (found.double() - expected).abs().mean()
    assert ours_off <= (theirs(both, activation).double() - expected).abs().mean()
    # One rounding, to eight bits, and float32's own.
    assert ((found.double() - expected).abs() <= expected.abs() * 2**-8 * 1.01 + 1e-7).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ALL)
def test_rows_may_lie_apart(activation: Activation, dtype: torch.dtype) -> None:
    wide = normal(7, 3000, dtype=dtype)
    before = wide.clone()
    part = wide[::2, 501 : 501 + 1802]
    assert torch.equal(gated(part, activation), gated(part.contiguous(), activation))
    assert torch.equal(wide, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ALL)
def test_infinities_and_what_is_no_number(activation: Activation, dtype: torch.dtype) -> None:
    gate = torch.tensor([math.inf, 1e30, 300.0, 0.0, -300.0, -1e30, math.nan, 1.0], dtype=dtype)
    up = torch.tensor([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, math.nan], dtype=dtype)
    found = gated(torch.cat([gate, up])[None], activation)[0]
    torch.testing.assert_close(found[:6], (gate.clamp(min=0.0) * up)[:6])
    assert found[6:].isnan().all()
