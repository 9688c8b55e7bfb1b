"""Seconds of computing the KV of some tokens, which grow with the tokens and with how far each looks back.

    seconds of [start, end) = linear * (end - start) + quadratic * (end^2 - start^2) / 2 + fixed * steps

Knows lengths and seconds; knows models only by how many operations they take.
"""

from dataclasses import dataclass, replace

from kvist.base.units import Tokens
from kvist.cost.estimate import Estimate, estimate_of

_FIXED_S = 1e-3
"""Seconds of a step beside its tokens: a starting point, replaced by what is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """How long one model takes on this machine; learning gives a new one.

    Attributes:
        estimate: of seconds per token, per pair of a token and one that it looks back at, and per step.
        step_tokens: most tokens of one sequence that a step computes.
    """

    estimate: Estimate
    step_tokens: Tokens

    def predict_s(self, start: int, end: int) -> float:
        """Seconds of computing tokens [start, end); none for none."""
        return self.estimate.predict_s(self._amounts(start, end)) if end > start else 0.0

    def learned(self, start: int, end: int, seconds: float) -> "PrefillModel":
        """What is known once tokens [start, end) of one sequence took so long. What cannot be is left out."""
        if not 0 <= start < end:
            return self
        return replace(self, estimate=self.estimate.learned(self._amounts(start, end), seconds))

    def _amounts(self, start: int, end: int) -> tuple[float, float, float]:
        tokens = end - start
        return float(tokens), tokens * (start + end) / 2, float(-(-tokens // self.step_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a model has to compute, and how fast that usually goes.

    Attributes:
        parameters: numbers that each token is multiplied with.
        attention_width: query heads times head size, summed over the layers that see all positions.
        operations_per_s: floating-point operations; the default is a few cores of a CPU.
    """

    parameters: int
    attention_width: int
    operations_per_s: float = 1e11


def prefill_model(work: Work, *, step_tokens: Tokens) -> PrefillModel:
    """What is known of a model that never ran: two operations per parameter, four per pair and width.

    >>> model = prefill_model(Work(parameters=135_000_000, attention_width=30 * 576), step_tokens=Tokens(512))
    >>> round(model.predict_s(0, 4096), 1), round(model.predict_s(4000, 4096), 2)
    (16.9, 0.53)
    """
    assert step_tokens >= 1, f"steps of {step_tokens} tokens"
    linear = 2 * max(1, work.parameters) / work.operations_per_s
    quadratic = 4 * max(1, work.attention_width) / work.operations_per_s
    return PrefillModel(estimate=estimate_of((linear, quadratic, _FIXED_S)), step_tokens=step_tokens)
