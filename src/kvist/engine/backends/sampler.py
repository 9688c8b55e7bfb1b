"""From logits to tokens: filters, draws and log-probabilities.

Knows distributions; the randomness comes in as one number per draw, so that a draw is a pure function.
"""

from collections.abc import Sequence

import torch

from kvist.base.ids import TokenId
from kvist.engine.backend import BackendError
from kvist.engine.backends.cpu.best import best
from kvist.engine.backends.device import runs_kernels
from kvist.engine.batch import Drawn, DrawSpec
from kvist.engine.request import Sampling


def draw(logits: torch.Tensor, specs: Sequence[DrawSpec]) -> list[Drawn]:
    """Draws one token per row.

    Args:
        logits: [rows, vocab], any floating dtype.
        specs: one per row.

    Raises:
        BackendError: a row is not a distribution (the model computed NaN).
    """
    greedy, finite = _greedy(logits)
    if not finite:
        raise BackendError("the model computed logits that are not numbers")
    return [_draw_row(logits[row], spec, greedy[row]) for row, spec in enumerate(specs)]


def _greedy(logits: torch.Tensor) -> tuple[list[int], bool]:
    """The first of the most likely tokens of each row, and whether all rows are distributions."""
    if runs_kernels(logits.device, logits.dtype):
        return best(logits)
    top = logits.max(dim=-1)
    return top.indices.tolist(), bool(top.values.isfinite().all())


def _draw_row(logits: torch.Tensor, spec: DrawSpec, greedy: int) -> Drawn:
    sampling = spec.sampling
    if sampling.temperature == 0 and sampling.logprobs is None:
        return Drawn(token=TokenId(greedy))
    logits = logits.float()
    token = greedy if sampling.temperature == 0 else _sample(logits, sampling, spec.uniform)
    if sampling.logprobs is None:
        return Drawn(token=TokenId(token))
    logprobs = torch.log_softmax(logits, dim=-1)
    top = logprobs.topk(min(sampling.logprobs, logprobs.numel()))
    return Drawn(
        token=TokenId(token),
        logprob=float(logprobs[token]),
        top=tuple((TokenId(i), p) for i, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)),
    )


def _sample(logits: torch.Tensor, sampling: Sampling, uniform: float) -> int:
    """Inverts the cumulative distribution of what the filters leave, at `uniform`."""
    # Double precision: with 262,144 tokens the sum of float32 probabilities is off by more than some of them.
    scaled = (logits - logits.max()).double() / sampling.temperature
    if sampling.top_k is None and sampling.top_p >= 1 and sampling.min_p <= 0:
        return _invert(torch.softmax(scaled, dim=-1), uniform)
    count = scaled.numel() if sampling.top_k is None else min(sampling.top_k, scaled.numel())
    kept = scaled.topk(count)
    probabilities = torch.softmax(kept.values, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    stays = (before < sampling.top_p) & (probabilities >= sampling.min_p * probabilities[0])
    stays[0] = True
    choice = _invert(probabilities[: int(stays.sum())], uniform)
    return int(kept.indices[choice])


def _invert(weights: torch.Tensor, uniform: float) -> int:
    cumulative = weights.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))
    # Rounding can put the number past the last weight; an index without weight must never come out.
    return min(index, int(weights.nonzero()[-1]))
