"""How many numbers the parts of a model hold, held against torch's modules."""

import torch

from kvist.geometry.heads import Heads
from kvist.geometry.weights import (
    Weights,
    attention,
    causal_convolution,
    experts,
    gated,
    linear,
    table,
    vectors,
)


def numbers(*modules: torch.nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_a_matrix_and_a_convolution_are_as_large_as_torchs() -> None:
    for bias in (False, True):
        assert linear(7, 5, bias=bias).total == numbers(torch.nn.Linear(7, 5, bias=bias))
        convolution = torch.nn.Conv1d(6, 6, kernel_size=4, groups=6, bias=bias)
        assert causal_convolution(6, 4, bias=bias).total == numbers(convolution)
        parts = [torch.nn.Linear(7, 5, bias=bias), torch.nn.Linear(7, 5, bias=bias), torch.nn.Linear(5, 7, bias=bias)]
        assert gated(7, 5, bias=bias).total == numbers(*parts)


def test_attention_is_four_matrices_with_biases_apart_inside_and_out() -> None:
    heads = Heads(query=6, kv=2, dim=5)
    inner = [torch.nn.Linear(7, 30), torch.nn.Linear(7, 10), torch.nn.Linear(7, 10)]
    outer = torch.nn.Linear(30, 7, bias=False)
    assert attention(7, heads, bias=True).total == numbers(*inner, outer)
    assert attention(7, heads, bias=True, bias_out=True).total == numbers(*inner, torch.nn.Linear(30, 7))
    assert attention(7, heads, gate=True).total == 7 * 60 + 7 * 20 + 30 * 7


def test_parts_add_up_kind_by_kind() -> None:
    whole = vectors(3) + experts(linear(2, 2), count=5, chosen=1) + table(10, 4)
    assert whole == Weights(total=3 + 20 + 40, idle=16 + 40, experts=20, tables=40)
    assert whole + Weights() == whole
