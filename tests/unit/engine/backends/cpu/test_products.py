"""Products with few rows are those of exact sums, rounded once, whatever the sizes; with many, torch's."""

from collections.abc import Mapping

import pytest
import torch
from torch.overrides import TorchFunctionMode

from kvist.engine.backends.cpu.kernel import DTYPES
from kvist.engine.backends.cpu.products import ROWS_FEW, ROWS_TALL, height, project

SIZES = [(1, 1), (7, 5), (31, 16), (33, 1), (64, 40), (100, 130), (576, 192)]
"""Inputs and outputs: less than a vector, a few and a rest, several tiles."""


def randn(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, ROWS_FEW, ROWS_FEW + 1, ROWS_TALL + 1])
def test_a_product_is_the_exact_one_rounded(rows: int, dtype: torch.dtype) -> None:
    for inputs, outputs in SIZES:
        x, weight = randn(rows, inputs, dtype=dtype), randn(outputs, inputs, dtype=dtype, seed=1)
        bias, plus = randn(outputs, dtype=dtype, seed=2), randn(rows, outputs, dtype=dtype, seed=3)
        product = x.double() @ weight.double().T
        # What float32 sums may be off by, and what is lost by rounding: once for few rows, for many once more.
        sizes = x.double().abs() @ weight.double().abs().T + bias.double().abs() + plus.double().abs()
        times = 1 if rows <= ROWS_FEW else 2
        for added in ({}, {"bias": bias}, {"plus": plus}, {"bias": bias, "plus": plus}):
            exact = product + sum(each.double() for each in added.values())
            bound = 1e-5 * sizes + times * torch.finfo(dtype).eps / 2 * (
                exact.abs() + 0.01 * sizes + plus.double().abs() * (times - 1)
            )
            found = project(x, weight, **added)
            assert found.dtype == dtype
            assert bool(((found.double() - exact).abs() <= bound).all()), (inputs, outputs, [*added])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 11])
def test_rows_may_lie_apart_and_nothing_else_is_read_or_written(rows: int, dtype: torch.dtype) -> None:
    wide, weights = torch.full((rows, 90), float("nan"), dtype=dtype), torch.full((50, 80), float("nan"), dtype=dtype)
    added = torch.full((rows, 60), float("nan"), dtype=dtype)
    x, weight, plus = wide[:, 7:78], weights[3:44, 5:76], added[:, 2:43]
    for number, part in enumerate((x, weight, plus)):
        part.copy_(randn(*part.shape, dtype=dtype, seed=number))
    alike = project(x.contiguous(), weight.contiguous(), plus=plus.contiguous())
    before = plus.clone()
    assert torch.equal(project(x, weight, plus=plus), alike)
    assert torch.equal(project(x.T.contiguous().T, weight, plus=plus), alike)
    assert torch.equal(plus, before)
    same = x[:1].expand(rows, -1)
    assert torch.equal(project(same, weight), project(same.clone(), weight))


class Heights(TorchFunctionMode):
    """Remembers how many rows torch's products have."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, function: object, types: object, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        assert callable(function)
        if function in (torch.mm, torch.nn.functional.linear, torch.addmm):
            x = args[function is torch.addmm]
            assert isinstance(x, torch.Tensor)
            self.seen.add(x.shape[0])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("biased", [False, True])
def test_products_of_many_rows_have_few_heights_whatever_the_lengths(biased: bool) -> None:
    longest = 3 * ROWS_TALL
    x, weight = randn(longest, 24, dtype=torch.bfloat16), randn(16, 24, dtype=torch.bfloat16, seed=1)
    bias = randn(16, dtype=torch.bfloat16, seed=2) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    with Heights() as heights:
        for rows in range(ROWS_FEW + 1, longest + 1, 5):
            found = project(x[:rows], weight, bias)
            assert found.is_contiguous()
            assert torch.allclose(found.double(), exact[:rows], rtol=0.01, atol=0.05), rows
    assert len(heights.seen) == 22
    assert max(heights.seen) == ROWS_TALL


def test_a_height_holds_the_rows_and_little_more() -> None:
    for rows in range(ROWS_TALL + 1):
        assert rows <= height(rows) <= rows + (15 if rows <= 64 else 31 if rows <= 256 else 63)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_nothing_gives_nothing_and_other_numbers_are_left_to_torch(dtype: torch.dtype) -> None:
    weight = randn(5, 8, dtype=dtype)
    assert project(randn(0, 8, dtype=dtype), weight).shape == (0, 5)
    x = randn(2, 8, dtype=dtype, seed=1)
    assert torch.allclose(project(x, weight).double(), x.double() @ weight.double().T, rtol=0.01, atol=0.02)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_stays_so_and_spoils_no_other(bad: float, dtype: torch.dtype) -> None:
    x, weight = randn(8, 64, dtype=dtype), randn(9, 64, dtype=dtype, seed=1)
    clean = project(x, weight)
    x[3, 40] = bad
    found = project(x, weight)
    assert not bool(found[3].isfinite().any())
    others = [row for row in range(8) if row != 3]
    assert torch.equal(found[others], clean[others])
