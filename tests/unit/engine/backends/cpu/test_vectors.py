"""Instructions on vectors, against products of torch: all widths and counts, and nothing beyond what they say."""

import pytest
import torch

from kvist.engine.backends.cpu.kernel import Kernel
from kvist.engine.backends.cpu.numbers import Given, integer
from kvist.engine.backends.cpu.vectors import KEYS, SETS, blend, blended, score, scored

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def _score(given: Given) -> None:
    width = integer(given, 4)
    score(
        given,
        (
            integer(given, 0),
            integer(given, 1),
            integer(given, 2),
            integer(given, 3),
            scored(given, width),
            integer(given, 5),
            64,
        ),
    )


def _blend(given: Given) -> None:
    rows = (integer(given, 0), integer(given, 1), integer(given, 2))
    weights = (integer(given, 3), integer(given, 4), integer(given, 5))
    blend(given, (*rows, *weights, integer(given, 6), integer(given, 7), 64, blended(integer(given, 8))))


SCORE, BLEND = Kernel(_score), Kernel(_blend)


def filled(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@BOTH
@pytest.mark.parametrize("width", [32, 64, 96, 256])
@pytest.mark.parametrize("keys", range(1, KEYS + 1))
def test_a_query_is_multiplied_with_each_key(dtype: torch.dtype, width: int, keys: int, torch_threads: object) -> None:
    query, rows = filled(width, seed=1).to(dtype), torch.full((KEYS + 1, width + 3), float("nan"), dtype=dtype)
    rows[:keys, :width] = filled(keys, width, seed=2).to(dtype)
    found = torch.full((3 * KEYS,), 7.0)
    places = (query.data_ptr(), rows.data_ptr(), rows.stride(0) * rows.itemsize, keys - 1, width)
    alone(torch_threads, SCORE, dtype, *places, found[KEYS:].data_ptr())
    torch.testing.assert_close(found[KEYS : KEYS + keys], rows[:keys, :width].float() @ query.float())
    assert (found[:KEYS] == 7).all()
    assert (found[2 * KEYS :] == 7).all()


@BOTH
@pytest.mark.parametrize("width", [16, 64, 80, 256])
@pytest.mark.parametrize("sets", range(1, SETS + 1))
def test_rows_are_added_under_each_set_of_weights(
    dtype: torch.dtype, width: int, sets: int, torch_threads: object
) -> None:
    rows, weights = filled(13, width + 2, seed=1).to(dtype), filled(SETS, 15, seed=2)
    before = filled(SETS, width + 1, seed=3)
    sums = before.clone()
    places = (rows.data_ptr(), rows.stride(0) * rows.itemsize, 13, weights.data_ptr(), 4 * 15, sets - 1)
    alone(torch_threads, BLEND, dtype, *places, sums.data_ptr(), 4 * (width + 1), width)
    expected = before[:sets, :width] + weights[:sets, :13] @ rows[:, :width].float()
    torch.testing.assert_close(sums[:sets, :width], expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(sums[sets:], before[sets:]), "sets that are not there were written"
    assert torch.equal(sums[:, width:], before[:, width:]), "sums beyond a row were written"


@BOTH
def test_what_fills_no_vector_is_the_caller_s(dtype: torch.dtype, torch_threads: object) -> None:
    query, rows, sums = filled(15, seed=1).to(dtype), filled(1, 15, seed=2).to(dtype), torch.full((SETS, 15), 3.0)
    found = torch.full((KEYS,), 7.0)
    alone(torch_threads, SCORE, dtype, query.data_ptr(), rows.data_ptr(), 30, 0, 3, found.data_ptr())
    assert (found == 0).all()
    alone(torch_threads, BLEND, dtype, rows.data_ptr(), 30, 1, found.data_ptr(), 4, 0, sums.data_ptr(), 60, 3)
    assert (sums == 3).all()


def alone(torch_threads: object, kernel: Kernel, dtype: torch.dtype, *given: int) -> None:
    """Runs a kernel that does the same on every thread on one."""
    assert callable(torch_threads)
    torch_threads(1)
    kernel(dtype, *given)
