"""The most likely token is the one that torch finds, whatever the bits."""

import math

import pytest
import torch

from kvist.engine.backends.cpu.best import best
from kvist.engine.backends.cpu.kernel import DTYPES


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 7, 63, 4095, 4096, 4097, 20_000])
def test_the_token_is_the_first_of_the_largest(vocab: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocab)
    # Few different numbers, so that many rows have several largest; and wide rows, of which only a part counts.
    for spread in (1, 100):
        wide = torch.randint(-spread, spread, (9, vocab + 5), generator=generator).to(dtype)
        logits = wide[:, 2 : 2 + vocab]
        for some in (logits, -logits.abs() - 1, logits / 1e38):
            assert best(some) == ([row.index(max(row)) for row in some.tolist()], True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_are_equal_and_denormals_are_not(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 2
    rows = [[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0], [-0.0, 0.0, tiny], [-tiny, -0.0, 0.0], [-math.inf, -math.inf, -3e38]]
    assert best(torch.tensor(rows, dtype=dtype)) == ([0, 0, 2, 1, 2], True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [0x7F80, 0x7FC0, 0xFFC0, 0x7F81, 0xFFFF])
def test_infinite_or_no_number_is_found_wherever_it_is(bad: int, dtype: torch.dtype) -> None:
    value = torch.tensor([bad << 16]).to(torch.int32).view(torch.float32).to(dtype)
    for where in (0, 1, 4096, 5000):
        logits = torch.zeros(3, 5001, dtype=dtype)
        assert best(logits)[1]
        logits[1, where] = value
        assert not best(logits)[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nothing_possible_is_no_distribution(dtype: torch.dtype) -> None:
    assert not best(torch.full((1, 5), -math.inf, dtype=dtype))[1]
    assert best(torch.zeros(0, 5, dtype=dtype)) == ([], True)
