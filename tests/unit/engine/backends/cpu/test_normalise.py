"""One pass normalises like transformers' modules, and is nearer to the formula than they are in bfloat16."""

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from kvist.engine.backends.cpu.normalise import rms_norm

EPSILON = 1e-6
MODULES = {0.0: LlamaRMSNorm, 1.0: Gemma3RMSNorm}


def normal(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def defined(x: torch.Tensor, weight: torch.Tensor | None, *, epsilon: float, offset: float) -> torch.Tensor:
    """The formula in double precision."""
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return normed if weight is None else normed * (offset + weight.double())


def theirs(x: torch.Tensor, weight: torch.Tensor, *, offset: float) -> torch.Tensor:
    module = MODULES[offset](weight.shape[0], eps=EPSILON).to(x.dtype)
    module.weight.data.copy_(weight)
    return module(x).detach()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(0, 64), (1, 1), (1, 576), (2, 63), (7, 129), (33, 640), (300, 17)])
def test_it_is_the_formula(shape: tuple[int, int], offset: float, threads: int, torch_threads) -> None:
    torch_threads(threads)
    x, weight = normal(*shape, dtype=torch.float32), normal(shape[1], dtype=torch.float32, seed=1)
    found = rms_norm(x, weight, epsilon=EPSILON, offset=offset)
    assert found.shape == shape
    assert found.is_contiguous()
    expected = defined(x, weight, epsilon=EPSILON, offset=offset).float()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(found, theirs(x, weight, offset=offset), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(1, 576), (40, 577)])
def test_in_bfloat16_it_is_no_further_from_the_formula_than_theirs(shape: tuple[int, int], offset: float) -> None:
    x, weight = 30 * normal(*shape, dtype=torch.bfloat16), normal(shape[1], dtype=torch.bfloat16, seed=1)
    expected = defined(x, weight, epsilon=EPSILON, offset=offset)
    found = rms_norm(x, weight, epsilon=EPSILON, offset=offset)
    assert found.dtype == torch.bfloat16
    ours_off = (found.double() - expected).abs().mean()
    assert ours_off <= (theirs(x, weight, offset=offset).double() - expected).abs().mean()
    # One rounding, to eight bits, and nothing else.
    assert ((found.double() - expected).abs() <= expected.abs() * 2**-8 * 1.001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    wide, weight = normal(5, 200, dtype=dtype), normal(67, dtype=dtype, seed=1)
    before = wide.clone()
    found = rms_norm(wide[:, 100:167], weight, epsilon=EPSILON)
    assert torch.equal(found, rms_norm(wide[:, 100:167].contiguous(), weight, epsilon=EPSILON))
    assert torch.equal(found[::2], rms_norm(wide[::2, 100:167], weight, epsilon=EPSILON))
    assert torch.equal(wide, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_weight_there_is_none(dtype: torch.dtype) -> None:
    x = normal(3, 45, dtype=dtype)
    expected = defined(x, None, epsilon=0.5, offset=0.0).to(dtype)
    torch.testing.assert_close(rms_norm(x, None, epsilon=0.5, offset=1.0), expected)


def test_rows_are_alone() -> None:
    x, weight = normal(4, 32, dtype=torch.float32), normal(32, dtype=torch.float32, seed=1)
    expected = rms_norm(x, weight, epsilon=EPSILON)
    x[1, 3], x[2] = float("nan"), 0.0
    found = rms_norm(x, weight, epsilon=EPSILON)
    assert found[1].isnan().all()
    assert torch.equal(found[2], torch.zeros(32))
    assert torch.equal(found[::3], expected[::3])


def test_a_weight_of_another_kind_is_our_mistake() -> None:
    x = normal(2, 8, dtype=torch.bfloat16)
    for weight in (torch.ones(8), torch.ones(7, dtype=torch.bfloat16), torch.ones(16, dtype=torch.bfloat16)[::2]):
        with pytest.raises(AssertionError, match=r"weight|strides"):
            rms_norm(x, weight, epsilon=EPSILON)
