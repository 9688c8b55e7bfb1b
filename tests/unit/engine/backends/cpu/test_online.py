"""Weights under a running maximum, and the merging of what they gave, against softmax over everything in float64."""

import numpy as np
import pytest
import torch

from kvist.engine.backends.cpu.kernel import Kernel, matrix, real
from kvist.engine.backends.cpu.numbers import Given, floats, integer
from kvist.engine.backends.cpu.numbers import real as real_of
from kvist.engine.backends.cpu.online import LOWEST, cap, fill, merged, weigh

WIDTH = 5


def _weigh(given: Given) -> None:
    scores, state, sums = floats(given, 0), floats(given, 3), floats(given, 6)
    weigh(scores[0], state[0], sums[0], real_of(given, 9), (integer(given, 10), integer(given, 11)))


def _cap(given: Given) -> None:
    cap(floats(given, 0), real_of(given, 3), real_of(given, 4))


def _merged(given: Given) -> None:
    merged(floats(given, 0), floats(given, 3)[0])


def _fill(given: Given) -> None:
    fill(floats(given, 0)[0])


WEIGH, CAP, MERGED, FILL = Kernel(_weigh), Kernel(_cap), Kernel(_merged), Kernel(_fill)


@pytest.fixture(autouse=True)
def _one_thread(torch_threads: object) -> None:
    assert callable(torch_threads)
    torch_threads(1)


def result_of(scores: torch.Tensor, values: torch.Tensor, tiles: list[int], scaling: float) -> torch.Tensor:
    """A partial result of some scores, taken a tile at a time: sums of values, maximum, sum of weights."""
    state, sums = torch.tensor([[float(LOWEST), 0.0]]), torch.zeros(1, WIDTH)
    for tile, seen in zip(scores.split(tiles), values.split(tiles), strict=True):
        row = tile[None].clone()
        WEIGH(torch.float32, *matrix(row), *matrix(state), *matrix(sums), real(scaling), 0, len(tile))
        sums += row @ seen
    return torch.cat((sums, state), dim=1)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("tiles", [[40], [1, 7, 32], [32, 7, 1]])
def test_tiles_and_parts_give_what_everything_at_once_gives(tiles: list[int], scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    scores, values = scale * torch.randn(80, generator=generator), torch.randn(80, WIDTH, generator=generator)
    parts = [result_of(scores[part], values[part], tiles, 0.5) for part in (slice(0, 40), slice(40, 80))]
    results, found = torch.cat(parts), torch.empty(1, WIDTH)
    MERGED(torch.float32, *matrix(results), *matrix(found))
    wanted = (scores.double() * 0.5).softmax(0) @ values.double()
    torch.testing.assert_close(found[0].double(), wanted, atol=2e-5, rtol=0)


def test_scores_that_are_not_seen_weigh_nothing() -> None:
    row, state, sums = torch.full((1, 9), 2.0), torch.tensor([[1.0, 3.0]]), torch.full((1, WIDTH), 4.0)
    WEIGH(torch.float32, *matrix(row), *matrix(state), *matrix(sums), real(1.0), 2, 5)
    assert row[0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]
    shrunk = float(np.exp(-1))
    torch.testing.assert_close(state, torch.tensor([[2.0, 3 * shrunk + 3]]))
    torch.testing.assert_close(sums, torch.full((1, WIDTH), 4 * shrunk))
    before = state.clone()
    WEIGH(torch.float32, *matrix(row), *matrix(state), *matrix(sums), real(1.0), 5, 5)
    assert torch.equal(state, before)
    assert not row.any()


def test_capped_scores_are_a_tangent() -> None:
    scores = torch.tensor([[-1e6, -3.0, 0.0, 0.5, 40.0, 1e6]])
    wanted = 7.0 * torch.tanh(scores * 0.3 / 7.0)
    CAP(torch.float32, *matrix(scores), real(0.3), real(7.0))
    torch.testing.assert_close(scores, wanted, atol=1e-4, rtol=0)


def test_filled_is_zero() -> None:
    numbers = torch.full((1, 7), float("nan"))
    FILL(torch.float32, *matrix(numbers))
    assert numbers.tolist() == [[0.0] * 7]
