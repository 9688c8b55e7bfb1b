"""Seconds as a sum of costs, learned while it is used: seconds = sum of cost[i] * amount[i].

Knows amounts and seconds; does not know what they are of. Timings are noisy by factors, not by terms, so what is
estimated is the logarithm of each cost, by an extended Kalman filter: `spread` says how uncertain the logarithms are
and with each other, and so how much the next timing may change. That also keeps every cost above zero.

Laws:
    * Timings that cannot be (not finite, not positive) change nothing.
    * One timing, whatever it says, changes a prediction by a bounded factor; the third in a row that is far off in the
      same direction is believed: then the world has changed, and it is no accident.
    * Every cost stays within `RANGE` of where it began.
"""

import math
from dataclasses import dataclass, replace

RANGE = 1e6
"""Factor by which a cost may be learned to differ from its prior, up or down."""

_NOISE = 0.2
"""Standard deviation of the logarithm of a timing: it usually differs by less than a fifth."""

_PRIOR = math.log(3)
"""Standard deviation of the logarithm of a prior: it is usually right within a factor of three."""

_DRIFT = 0.02
"""Standard deviation by which the logarithm of a cost wanders between two timings: how fast old ones fade."""

_SURPRISE = 3.0
"""A timing further off than so many standard deviations is a surprise."""

_STEP_MAX = math.log(4)
"""Most that one surprise counts as."""

_SURPRISES = 3
"""How many in a row are no accident."""

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of some costs; learning gives a new one.

    Attributes:
        prior: seconds per unit of each amount, before anything was learned; above 0.
        costs: the same, now.
        spread: covariance of the logarithms of the costs.
        surprises: timings in a row, the last one included, that were far longer (or, negative, far shorter) than
            predicted.
        agreed: by how much, as a logarithm, all of these were off at least.
        samples: timings learned from.
    """

    prior: Row
    costs: Row
    spread: tuple[Row, ...]
    surprises: int = 0
    agreed: float = 0.0
    samples: int = 0

    def predict_s(self, amounts: Row) -> float:
        """Seconds that these amounts take."""
        return sum(cost * amount for cost, amount in zip(self.costs, amounts, strict=True))

    def learned(self, amounts: Row, seconds: float) -> "Estimate":
        """What is known once these amounts were seen to take so long."""
        predicted_s = self.predict_s(amounts)
        if not (math.isfinite(seconds) and seconds > 0 and math.isfinite(predicted_s) and predicted_s > 0):
            return self
        # How much of the prediction each cost is: the derivative of its logarithm by the logarithm of the cost.
        shares = tuple(cost * amount / predicted_s for cost, amount in zip(self.costs, amounts, strict=True))
        off = math.log(seconds) - math.log(predicted_s)
        far = _SURPRISE * math.sqrt(_dot(shares, _times(self.spread, shares)) + _NOISE**2)
        step_max = min(_STEP_MAX, far)
        noted = _noted(self, off, step_max)
        if abs(noted.surprises) >= _SURPRISES:
            return _moved(_forgotten(noted), math.copysign(noted.agreed, off), shares)
        return _moved(noted, max(-step_max, min(step_max, off)), shares)


def estimate_of(prior: Row) -> Estimate:
    """What is known before anything was learned.

    Args:
        prior: seconds per unit of each amount; all above 0.
    """
    assert all(0 < each < math.inf for each in prior), f"{prior} are no costs"
    return Estimate(prior=prior, costs=prior, spread=_no_idea(len(prior)))


def _noted(estimate: Estimate, off: float, far: float) -> Estimate:
    """Counts surprises in a row."""
    if abs(off) <= far:
        return replace(estimate, surprises=0, agreed=0.0)
    sign = 1 if off > 0 else -1
    if estimate.surprises * sign > 0:
        return replace(estimate, surprises=estimate.surprises + sign, agreed=min(estimate.agreed, abs(off)))
    return replace(estimate, surprises=sign, agreed=abs(off))


def _forgotten(estimate: Estimate) -> Estimate:
    """As uncertain as at the start; where it stands is kept."""
    return replace(estimate, spread=_no_idea(len(estimate.costs)), surprises=0, agreed=0.0)


def _moved(estimate: Estimate, off: float, shares: Row) -> Estimate:
    """One step of the filter: the costs that are the most uncertain and had the greatest share move furthest."""
    spread = estimate.spread
    towards = _times(spread, shares)
    variance = _dot(shares, towards) + _NOISE**2
    moved = tuple(cost * math.exp(off * each / variance) for cost, each in zip(estimate.costs, towards, strict=True))
    surer = tuple(
        tuple(before - towards[i] * towards[j] / variance for j, before in enumerate(row))
        for i, row in enumerate(spread)
    )
    costs = _bounded(moved, estimate.prior)
    return replace(estimate, costs=costs, spread=_drifted(surer), samples=estimate.samples + 1)


def _no_idea(costs: int) -> tuple[Row, ...]:
    return tuple(tuple(_PRIOR**2 if i == j else 0.0 for j in range(costs)) for i in range(costs))


def _drifted(spread: tuple[Row, ...]) -> tuple[Row, ...]:
    """Adds one timing's worth of uncertainty, and never has more of it than at the start.

    A cost that no timing tells anything of would otherwise become so uncertain that the first one that does throws it
    anywhere.
    """
    wider = [spread[i][i] + _DRIFT**2 for i in range(len(spread))]
    scale = [math.sqrt(min(1.0, _PRIOR**2 / each)) for each in wider]
    return tuple(
        tuple((wider[i] if i == j else spread[i][j]) * scale[i] * scale[j] for j in range(len(spread)))
        for i in range(len(spread))
    )


def _bounded(costs: Row, prior: Row) -> Row:
    return tuple(max(first / RANGE, min(first * RANGE, cost)) for cost, first in zip(costs, prior, strict=True))


def _times(matrix: tuple[Row, ...], vector: Row) -> Row:
    return tuple(_dot(row, vector) for row in matrix)


def _dot(one: Row, other: Row) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
