"""Sums by rows are torch's, now or as a part of a program."""

from collections.abc import Callable

import pytest
import torch

from kvist.engine.backends.cpu.add import added
from kvist.engine.backends.cpu.kernel import Arena, Program, run


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (1, 576), (7, 33), (64, 100)])
def test_sums_are_torch_s(
    shape: tuple[int, int], dtype: torch.dtype, threads: int, torch_threads: Callable[[int], None]
) -> None:
    torch_threads(threads)
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(*shape, generator=generator).to(dtype) for _ in range(2))
    assert torch.equal(added(x, y), x + y)
    wide = torch.randn(shape[0], 2 * shape[1], generator=generator).to(dtype)
    assert torch.equal(added(wide[:, shape[1] :], x), wide[:, shape[1] :] + x), "rows that lie apart"


def test_a_program_writes_the_sum_when_it_is_run_each_time() -> None:
    x, y, program = torch.zeros(3, 40), torch.ones(3, 40), Program(Arena())
    found = added(x, y, program=program)
    for value in (4.0, -2.5):
        x.fill_(value)
        run(program)
        assert torch.equal(found, x + y)


def test_unlike_tensors_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match=r"\[2, 3\].*\[2, 4\]"):
        added(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(AssertionError, match="bfloat16"):
        added(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bfloat16))
